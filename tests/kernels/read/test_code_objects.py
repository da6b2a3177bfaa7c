"""Reading code objects of any compiler and any container: equal to what their compilers say, and checked."""

import importlib
import re
import sys
import zlib
from pathlib import Path

import msgspec
import pytest

from rocattn.toolchain.code_object import read_elf, read_metadata
from rocattn.toolchain.compilers import find_compilers
from rocattn_profiling.kernels.read import bundles
from rocattn_profiling.kernels.read.code_objects import CodeObjectError, read_objects

from ..code_files import archive, bundle, compile_text, compressed, host_object, pinned

ROOT = Path(__file__).resolve().parents[3]
# Targets with the version of the format they are compiled in.
COMPILED = [
    ("gfx906", 4), ("gfx90a:sramecc+:xnack-", 5), ("gfx942", 6), ("gfx950", 5), ("gfx1030", 4), ("gfx1100", 5),
    ("gfx1151", 5), ("gfx1201", 5), ("gfx1250", 6), ("gfx11-generic", 6),
]  # fmt: skip
FIELDS = {
    "symbol": ".name", "wave_size": ".wavefront_size", "block": ".max_flat_workgroup_size", "vgprs": ".vgpr_count",
    "agprs": ".agpr_count", "sgprs": ".sgpr_count", "vgpr_spills": ".vgpr_spill_count",
    "sgpr_spills": ".sgpr_spill_count", "lds_bytes": ".group_segment_fixed_size",
    "scratch_bytes": ".private_segment_fixed_size", "kernarg_bytes": ".kernarg_segment_size",
}  # fmt: skip


def said_by(assembly):
    """Return what a compiler's text says of each kernel: the scalar fields of its metadata, and its arguments."""
    text = assembly[assembly.index("amdhsa.kernels:") :]
    text = re.split(r"^amdhsa\.(?:target|version|printf)", text, flags=re.MULTILINE)[0]
    kernels = []
    for part in re.split(r"^  - ", text, flags=re.MULTILINE)[1:]:
        fields = dict(re.findall(r"^    (\.\w+):\s+(\S+)$", f"    {part}", re.MULTILINE))
        args = re.findall(r"\.offset:\s+(\d+)\n\s+\.size:\s+(\d+)\n\s+\.value_kind:\s+(\w+)", part)
        kernels.append((fields, args))
    return kernels


def check_equal(data, assembly):
    """Hold what is read of a code object against its compiler's own text; return the code object."""
    (device,) = read_objects(data, "k.hsaco")
    kernels = said_by(assembly)
    assert len(kernels) == len(device.kernels) > 0
    for (fields, args), kernel in zip(kernels, device.kernels, strict=True):
        compared = {name: key for name, key in FIELDS.items() if key in fields}
        assert len(compared) >= 10
        assert {name: str(getattr(kernel, name)) for name in compared} == {
            name: fields[key] for name, key in compared.items()
        }
        assert [(str(arg.offset), str(arg.size), arg.kind) for arg in kernel.args] == args
        assert kernel.unknown == ()
        assert kernel.descriptor.vgprs >= kernel.vgprs
        assert kernel.code_bytes > 0
    assert device.problems == ()
    return device


class TestCompilers:
    """Equality with what compilers say."""

    @pytest.mark.parametrize(("target", "version"), COMPILED)
    def test_of_the_pinned_compiler(self, built, target, version):
        """Every number, for each family of GPUs and each version that it makes; LLVM's own target name, too."""
        data, assembly = built(target, version)
        device = check_equal(data, assembly)
        assert (device.target, device.version, device.processor) == (target, version, target.partition(":")[0])
        assert device.elf == data
        names = re.findall(r"\.amdhsa_kernel (\S+)", assembly)
        directives = dict(re.findall(r"\.amdhsa_(\w+) (\S+)$", assembly, re.MULTILINE))  # the last kernel's
        empty = next(kernel for kernel in device.kernels if kernel.symbol == names[-1]).descriptor
        assert empty.wave_size == (32 if directives.get("wavefront_size32") == "1" else 64)
        if "workgroup_processor_mode" in directives:
            assert empty.wgp_mode is (directives["workgroup_processor_mode"] == "1")
        assert str(empty.accum_offset) == directives.get("accum_offset", "0")

    @pytest.mark.parametrize(
        ("option", "wave_size", "wgp_mode"), [("-mwavefrontsize64", 64, True), ("-mcumode", 32, False)]
    )
    def test_of_modes(self, tmp_path, option, wave_size, wgp_mode):
        """Waves of 64 lanes and CU mode stand in the descriptor; its granule depends on the wave."""
        compiler = pinned()
        device = check_equal(*compile_text(compiler.argv, compiler.linker, tmp_path, "gfx1100", option))
        for kernel in device.kernels:
            granule = 4 if wave_size == 64 else 8
            assert (kernel.descriptor.wave_size, kernel.descriptor.wgp_mode) == (wave_size, wgp_mode)
            assert kernel.descriptor.vgprs == max(1, -(-kernel.vgprs // granule)) * granule

    @pytest.mark.parametrize("target", ["gfx90a", "gfx1030"])
    def test_of_a_clang_of_the_system(self, tmp_path, target):
        """Another LLVM than the pinned one writes what is read the same way."""
        others = [one for one in find_compilers() if one.kind in {"clang", "rocm"} and target in one.targets]
        if not others:
            pytest.skip("no clang of the system, only the pinned one")
        check_equal(*compile_text(others[0].argv, others[0].linker or pinned().linker, tmp_path, target))

    @pytest.mark.parametrize("target", ["gfx942", "gfx1100"])
    def test_of_triton(self, tmp_path, monkeypatch, target):
        """Its .hsaco is what its .amdgcn says; the kernel is the one of research/peers/against_triton.py."""
        triton = pytest.importorskip("triton", reason="Triton is not installed")
        compiler = pytest.importorskip("triton.backends.amd.compiler", reason="Triton has no AMD backend")
        if not hasattr(compiler, "get_amd_codegen_revision"):
            pytest.skip("research/peers/against_triton.py needs Triton 3.7")
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
        monkeypatch.syspath_prepend(ROOT / "research" / "peers")
        against_triton = importlib.import_module("against_triton")
        made = []
        compile_kernel = triton.compile
        monkeypatch.setattr(triton, "compile", lambda *a, **k: made.append(compile_kernel(*a, **k)) or made[0])
        against_triton.triton_row(against_triton.Case(target, 64, causal=True), (128, 64), 4, 1, small=False)
        device = check_equal(made[0].asm["hsaco"], made[0].asm["amdgcn"])
        assert device.target == target
        assert device.kernels[0].symbol == made[0].metadata.name


class TestContainers:
    """Where code objects lie."""

    def test_an_offload_bundle(self, built):
        """Entries of several targets, the host's left out; the name says which is meant."""
        entries = {
            "hipv4-amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-": built("gfx90a:sramecc+:xnack-")[0],
            "hip-amdgcn-amd-amdhsa-unknown-gfx1100": built("gfx1100")[0],
        }
        found = read_objects(bundle(entries), "k.out")
        assert [device.name for device in found] == ["k.out[gfx90a:sramecc+:xnack-]", "k.out[gfx1100]"]
        assert [device.elf for device in found] == list(entries.values())
        assert [device.problems for device in found] == [(), ()]

    @pytest.mark.parametrize("version", [1, 2, 3])
    def test_a_compressed_bundle(self, built, version):
        """Each version of the header; another bundle follows, whose magic occurs in the first one's content, too."""
        host = {"host-x86_64-unknown-linux-gnu-": b"CCOB" * 20}
        one = bundle({**host, "hip-amdgcn-amd-amdhsa--gfx942": built("gfx942")[0]})
        other = bundle({"hip-amdgcn-amd-amdhsa--gfx1100": built("gfx1100")[0]})
        first = compressed(one, version, content=zlib.compress(one, level=0))
        assert first.count(b"CCOB") == 21
        found = read_objects(first + b"\0" * 4000 + compressed(other, version), "k")
        assert [(device.name, len(device.kernels)) for device in found] == [("k[gfx942]", 3), ("k[gfx1100]", 3)]
        with pytest.raises(CodeObjectError, match=r"is damaged|does not unpack"):
            read_objects(compressed(one, version, content=zlib.compress(one)[:-99]), "k")

    def test_zstd_needs_a_module(self, built, monkeypatch):
        """Without one there is a line that says what to do; with one it is read."""
        plain = bundle({"hip-amdgcn-amd-amdhsa--gfx942": built("gfx942")[0]})
        module = bundles.zstd_module()
        monkeypatch.setattr(bundles, "zstd_module", lambda: None)
        with pytest.raises(
            CodeObjectError, match=r"^k: its bundle is compressed with zstd.* install.* zstandard, use Python"
        ):
            read_objects(compressed(plain, 3, method=1, content=b"(\xb5/\xfd"), "k")
        monkeypatch.undo()
        if module is None:
            pytest.skip("no module for zstd: Python 3.14 has one")
        packed = module.compress(plain)
        for version in (1, 2, 3):
            (device,) = read_objects(compressed(plain, version, method=1, content=packed), "k")
            assert len(device.kernels) == 3
        with pytest.raises(CodeObjectError, match=r"is damaged|does not unpack"):
            read_objects(compressed(plain, 2, method=1, content=packed[:-9]), "k")
        with pytest.raises(CodeObjectError, match="does not unpack"):
            read_objects(compressed(plain, 2, method=1, content=packed, size=99), "k")

    def test_a_host_file_with_fat_binaries(self, built, tmp_path):
        """A section .hip_fatbin holds one bundle for each translation unit, on pages of their own."""
        unit = bundle({"hipv4-amdgcn-amd-amdhsa--gfx1030": built("gfx1030")[0]})
        data = host_object(tmp_path, unit + b"\0" * (-len(unit) % 4096) + unit)
        found = read_objects(data, "app")
        assert [device.name for device in found] == ["app[gfx1030]", "app[gfx1030]#2"]
        assert found[0].kernels == found[1].kernels

    def test_an_archive(self, built, tmp_path):
        """Members with GPU code are read, those without passed over; long names lie in a table."""
        fat = host_object(tmp_path, bundle({"hipv4-amdgcn-amd-amdhsa--gfx1100": built("gfx1100")[0]}))
        plain = host_object(tmp_path, b"no code", ".rodata")
        library = archive({"plain.o": plain, "a_long_name_of_a_member.o": fat, "k.hsaco": built("gfx942")[0]})
        found = read_objects(library, "lib.a")
        assert [device.name for device in found] == ["lib.a(a_long_name_of_a_member.o)[gfx1100]", "lib.a(k.hsaco)"]
        with pytest.raises(CodeObjectError, match="contains no code for AMD GPUs"):
            read_objects(archive({"plain.o": plain}), "lib.a")

    @pytest.mark.parametrize(
        ("data", "words"),
        [
            (b"", "it is empty"),
            (b"BC\xc0\xde" + b"\0" * 100, "LLVM bitcode"),
            (b"!<thin>\n", "thin archive"),
            (b"MZ\x90", "Windows"),
            (b"PK\x03\x04\x14\0", "zip archive: unpack it"),
            (b"\x1f\x8b\x08\0", "gzip: unpack it"),
            (b"\x7fELF\x01\x01", "not a 64-bit"),
            (b"int main() {}", "is not an AMD GPU code object"),
            (bundle({}), "contains no code for AMD GPUs"),
            (bundle({"hip-amdgcn-amd-amdhsa--gfx942": b"BC\xc0\xde"}), r"k\[gfx942\]: it is LLVM bitcode"),
        ],
    )
    def test_other_files_are_one_line(self, data, words):
        """It says what the file is and what to do."""
        with pytest.raises(CodeObjectError, match=words) as caught:
            read_objects(data, "k")
        assert str(caught.value).startswith("k")

    def test_a_program_without_gpu_code_is_one_line(self):
        """The interpreter that runs this is one."""
        with pytest.raises(CodeObjectError, match="without code for AMD GPUs"):
            read_objects(Path(sys.executable).read_bytes(), "python")


def test_metadata_is_what_an_independent_decoder_reads(built):
    """The whole note, with a decoder that is not ours."""
    data = built("gfx1250", 6)[0]
    (note,) = (text for owner, _, text in read_elf(data).notes if owner == b"AMDGPU\0")
    assert read_metadata(data) == msgspec.msgpack.decode(note)
