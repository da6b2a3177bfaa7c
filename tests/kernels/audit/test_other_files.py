"""``rocattn kernels audit FILE ...``: how kernels of others are told apart, named and explained."""

import dataclasses
import html
import json
import sys
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from rocattn.toolchain import code_object
from rocattn_profiling import cli
from rocattn_profiling.base.markup import markdown
from rocattn_profiling.kernels import shipped
from rocattn_profiling.kernels.audit import audit_files
from rocattn_profiling.kernels.facts import OCCUPANCY
from rocattn_profiling.kernels.foreign import LaunchConfig
from rocattn_profiling.kernels.read import cxx_names

from ...screens import line, screen
from ..code_files import assemble, bundle, pinned
from ..read.test_contradictory_objects import metadata_changed

KERNEL = """\
\t.amdgcn_target "amdgcn-amd-amdhsa--{target}"
\t.type\t{name},@function
{name}:
\ts_endpgm
.Lend:
\t.size {name}, .Lend-{name}
\t.amdhsa_kernel {name}
\t\t.amdhsa_next_free_vgpr 8
\t.end_amdhsa_kernel
"""


@pytest.fixture
def audit(tmp_path, capsys):
    """Return a function that audits files and gives the status, stdout, stderr and the Markdown."""

    def run(*arguments):
        status = cli.main(["kernels", "audit", "--out", str(tmp_path / "out"), *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err, (tmp_path / "out/audit.md").read_text()

    return run


def kernel(path, name="matmul", target="gfx942"):
    """Write the assembly of an empty kernel, and return its path."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(KERNEL.format(name=name, target=target))
    return path


def test_two_versions_of_triton_are_named_and_compared(audit, tmp_path):
    """Only the JSON beside them says which it was; where it does not, they are taken for one compiler's."""
    path, before = kernel(tmp_path / "cache" / "matmul.amdgcn"), tmp_path / "before.json"

    def compiled_by(version, vgprs, more=""):
        text = kernel(path).read_text()
        path.write_text(text.replace("vgpr 8", f"vgpr {vgprs}").replace("\ts_endpgm", f"{more}\ts_endpgm"))
        said = {"shared": 0, "num_warps": 4, "warp_size": 64, **({"triton_version": version} if version else {})}
        path.with_suffix(".json").write_text(json.dumps(said))

    for old, new, vgprs, status in (
        ("3.5.1", "3.9.0", 8, 3), ("3.5.1", "3.9.0", 256, 1), ("3.9.0", "3.9.0", 256, 1), ("", "", 256, 1),
        ("", "3.9.0", 8, 3),
    ):  # fmt: skip
        compiled_by(old, 8)
        assert audit(path)[0] == 0
        (tmp_path / "out/audit.json").rename(before)
        compiled_by(new, vgprs, "\tv_mov_b32 v0, 0\n" * (old != new))
        got, _, _, text = audit(path, "--against", before)
        assert got == status
        assert ("compiled by" in text) == (old != new)
        if old == "3.5.1":
            assert text.partition("compiled by ")[2].partition(" now")[0] == "Triton 3.5.1 before and by Triton 3.9.0"


def test_kernels_of_one_name_are_told_apart_by_their_files(audit, tmp_path):
    """As those of Triton's cache are; a file with kernels for two targets is two, and one alone needs no column."""
    paths = [kernel(tmp_path / name / "matmul.amdgcn") for name in ("one", "two")]
    _, _, err, text = audit(*paths)
    for shown in (err, html.unescape(text)):
        assert [sum(str(path) in line for line in shown.splitlines() if "gfx942" in line) for path in paths] == [1, 1]
    assert text.count("| file |") == 1
    assert "| file |" not in audit(paths[0])[3]
    paths[0].write_text("".join(KERNEL.format(name="k", target=f"gfx90a:xnack{sign}") for sign in "+-"))
    _, _, err, text = audit(paths[0])
    for sign in "+-":
        assert f"matmul.amdgcn[gfx90a:xnack{sign}]" in err
        assert markdown(f"matmul.amdgcn[gfx90a:xnack{sign}]") in text


def test_growing_stack_makes_scratch_a_lower_bound(audit, tmp_path):
    """Recursion and calls through pointers: the number is what the compiler could see."""
    said = "scratch: its stack grows as it runs (recursion, calls through pointers), at least 0 bytes"
    path = kernel(tmp_path / "k.s", "k", "gfx1100")
    assert said not in audit(path)[2]
    more = "\t\t.amdhsa_next_free_sgpr 8\n\t\t.amdhsa_uses_dynamic_stack 1\n\t.end_"
    path.write_text(path.read_text().replace("\t.end_", more))
    compiler = pinned()
    assemble(compiler.argv, compiler.linker, tmp_path, "gfx1100", "k")
    for one in (path, tmp_path / "k.hsaco"):
        _, _, err, text = audit(one)
        assert f"not known: {said}" in err
        assert f"- k: {said}" in text


def test_an_empty_file_is_said_to_be_empty(tmp_path):
    """As a program leaves it that was ended while it wrote one: it is neither text nor code without a kernel."""
    (tmp_path / "k.hsaco").touch()
    (problem,) = audit_files([tmp_path / "k.hsaco"]).problems
    assert problem.line == f"{tmp_path}/k.hsaco: it is empty"


SYMBOL, NAME = "_ZN5aiter3mlaIDF16_EEvPT_", "void aiter::mla<_Float16>(_Float16*)"
READS = f"import sys\nfor line in sys.stdin: print({{{SYMBOL!r}: {NAME!r}}}.get(line.strip(), line.strip()))\n"


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Return a function that leaves no program on PATH but those that are named, as Python code."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    (tmp_path / "bin").mkdir()

    def install(**programs):
        for name, code in programs.items():
            path = tmp_path / "bin" / name.replace("cxxfilt", "c++filt").replace("llvm_c++filt", "llvm-cxxfilt")
            path.write_text(f"#!{sys.executable}\n{code}")
            path.chmod(0o755)

    return install


def test_people_read_names_of_cxx_and_programs_symbols(audit, tools, tmp_path):
    """Table, findings and Markdown have the name; JSON and what is compared go by the symbol."""
    tools(cxxfilt=READS)
    path = kernel(tmp_path / "mla.s", SYMBOL, "gfx1100")
    _, out, err, text = audit(path, "--json")
    assert json.loads(out)["audit"]["kernels"][0]["kernel"] == SYMBOL
    assert NAME in err
    assert SYMBOL not in err
    assert f"| {markdown('void aiter::mla<_Float16>(_Float16*)')} | gfx1100 |" in text
    before = (tmp_path / "out/audit.json").rename(tmp_path / "before.json")
    path.write_text(path.read_text().replace("vgpr 8", "vgpr 250"))
    status, out, _, _ = audit(path, "--against", before)
    assert (status, out.count(f"\n{NAME} on gfx1100: 16 -> 5 of 16 waves per SIMD"), SYMBOL in out) == (1, 1, False)
    assert SYMBOL in (tmp_path / "out/comparison.json").read_text()


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nsys.exit(1)\n",
        f"print({NAME!r})\nprint({NAME!r})\n",
        "import os\nos.abort()\n",
        "import time\ntime.sleep(60)\n",
        "print('x' * 100000)\n",
        "print('\\x1b[31mred')\n",
        "held = ' ' * 2**31\n",
        "import sys\nwhile True: print('x' * 4096)\n",
    ],
)
def test_failing_demangler_leaves_the_symbol_to_the_next(tools, monkeypatch, code):
    """Symbols are anybody's: some unfold to more than there is memory."""
    if "sleep" in code:
        monkeypatch.setattr(cxx_names, "_TIMEOUT_S", 0.5)
    monkeypatch.setattr(cxx_names, "_MAX_OUTPUT_BYTES", 1 << 20)
    tools(llvm_cxxfilt=code)
    assert cxx_names.readable([SYMBOL, "plain"]) == {}
    tools(cxxfilt=READS)
    assert cxx_names.readable([SYMBOL, "plain"]) == ({} if "sleep" in code else {SYMBOL: NAME})


def test_what_is_no_symbol_of_cxx_is_asked_of_nobody(tools, tmp_path, monkeypatch):
    """No program starts for the kernels that rocattn or Triton names."""
    monkeypatch.chdir(tmp_path)
    tools(cxxfilt="open('started', 'w')\n")
    assert cxx_names.readable(["flash_attention f16 D=128", "matmul", "_Z with a space", "_Zü"]) == {}
    assert not Path("started").exists()


def test_a_program_of_llvm_or_binutils_reads_half_precision():
    """What Composable Kernel's names are full of."""
    if not cxx_names._tools():
        pytest.skip("neither llvm-cxxfilt nor c++filt is here")
    assert cxx_names.readable([SYMBOL]) == {SYMBOL: NAME}


def test_a_folder_is_searched(audit, tmp_path, built, monkeypatch):
    """Recursively; text beside its object is no second kernel, and what is for no GPU is counted, not an error.

    Processes find the same.
    """
    code, text = built("gfx1100")
    folder = tmp_path / "build"
    for name in ("a/one", "b/c/two", "three"):
        (folder / name).mkdir(parents=True)
        (folder / name / "k.hsaco").write_bytes(code)
        (folder / name / "k.s").write_text(text)
    kernel(folder / "lone.s", "lone", "gfx90a")
    (folder / "notes.s").write_text("mov eax, 1\n")
    (folder / "host.so").write_bytes(code[:18] + b"\x3e\0" + code[20:])  # of an x86-64
    (folder / "README").write_text("build me\n")
    found = audit_files([folder])
    assert len(found.kernels) == 3 * 3 + 1
    assert [(each.line, each.noted) for each in found.problems] == [("skipped 3 files without code for AMD GPUs", True)]
    monkeypatch.setattr(shipped, "_ALONE_S", 0)
    assert audit_files([folder], jobs=2) == found
    status, _, err, _ = audit(folder, "--jobs", "1", "--arch", "gfx90a")
    assert (status, "audit: 1 kernel of" in err) == (0, True)


def test_an_odd_number_is_said_and_the_rest_is_judged(audit, tmp_path, built):
    """Of one file among others: it was looked at; another that cannot be read was not."""
    code, _ = built("gfx1100")
    odd = metadata_changed(code, ".vgpr_count", 0, 127)
    for name, data in (("good", code), ("odd", odd)):
        (tmp_path / f"{name}.hsaco").write_bytes(data)
    files = [tmp_path / "good.hsaco", tmp_path / "odd.hsaco"]
    status, _, err, _ = audit(*files)
    assert status == 0
    assert line(screen(err, tmp=tmp_path), "descriptor") == snapshot(
        "tmp/odd.hsaco: empty: it uses 127 VGPRs, and its descriptor allocates 8"
    )
    (tmp_path / "out/audit.json").rename(tmp_path / "before.json")
    assert audit(*files, "--against", tmp_path / "before.json")[0] == 0
    files[0].write_bytes(code[:2000])
    assert audit(*files, "--against", tmp_path / "before.json")[0] == 3


def test_a_kernel_that_is_gone_is_not_passed(audit, tmp_path):
    """Taken away or under a new name: nobody compared what takes its place. A new kernel alone takes none."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    for name in ("stays", "goes"):
        kernel(folder / f"{name}.s", name, "gfx1100")
    audit(folder)
    before = (tmp_path / "out/audit.json").rename(tmp_path / "before.json")
    kernel(folder / "comes.s", "comes", "gfx1100")
    line = "1 kernel of base on gfx1100: no kernel here has its name"
    assert line not in audit(folder, "--against", before)[1]
    (folder / "goes.s").unlink()
    status, out, _, _ = audit(folder, "--against", before)
    assert (status, line in out) == (3, True)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x03\x02\x23\x07" + bytes(16), "it is SPIR-V"),
        (b"\x7fELF\x02\x01\x01" + bytes(11) + b"\xbe\0" + bytes(64), "it is a cubin, machine code for NVIDIA GPUs"),
        (b"//\n.version 8.0\n.target sm_90\n.address_size 64\n", "it is PTX, for NVIDIA GPUs"),
        (b"; ModuleID = 'k'\ndefine amdgpu_kernel void @k() {\n", "it is LLVM IR: compile it"),
        (b'module attributes {"ttg.num-warps" = 4 : i32} {\n', "it is MLIR, which is not machine code yet"),
        (bundle({"hip-spirv64-amd-amdhsa--amdgcnspirv": b"\x03\x02\x23\x07" + bytes(16)}), "it is SPIR-V"),
    ],
)
def test_what_is_no_machine_code_is_named(audit, tmp_path, content, said):
    """By what it is, so that it is clear what to give instead."""
    (tmp_path / "k.bin").write_bytes(content)
    (problem,) = audit_files([tmp_path / "k.bin"]).problems
    assert said in problem.line
    assert not problem.noted


def test_code_objects_in_any_section_of_a_library_are_found(tmp_path, built):
    """As Mojo has them in .rodata; those in a bundle count once, and one that is cut short is not taken for one."""
    code = built("gfx1100")[0]
    host = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\3\0\x3e\0" + bytes(44)
    path = tmp_path / "lib.so"
    path.write_bytes(host + b"text" * 7 + code + bytes(3) + built("gfx90a:sramecc+:xnack-")[0] + code[:300])
    found = audit_files([path])
    assert [facts.arch for facts in found.kernels] == ["gfx1100"] * 3 + ["gfx90a"] * 3
    assert found.kernels[0].file == f"{path}[at {len(host) + 28:#x}]"
    assert found.problems == []


def test_registers_beyond_those_declared_are_said(tmp_path):
    """The launch does not allocate them: in assembly by hand, or of a compiler's bug."""
    path = kernel(tmp_path / "k.s", "k")
    for operands, said in (("v[6:7]", []), ("v[7:8]", ["v8"]), ("v108", ["v108"])):
        path.write_text(
            KERNEL.format(name="k", target="gfx942").replace("s_endpgm", f"v_mov {operands}, 0\n\ts_endpgm")
        )
        found = [line for line in audit_files([path]).kernels[0].unknown if "registers" in line]
        assert found == [f"registers: its code uses {each}, but declares only 8 VGPRs" for each in said]


REQUIRED = """\
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .name: k
    .max_flat_workgroup_size: 1024
    .reqd_workgroup_size:
      - 64
      - 2
      - 1
    .vgpr_count: 200
...
\t.end_amdgpu_metadata
"""


def test_a_block_that_is_required_is_the_block(tmp_path):
    """Its waves are not those of the limit's; what the command line says goes first."""
    path = kernel(tmp_path / "k.s", "k")
    path.write_text(path.read_text() + REQUIRED)
    (one,) = audit_files([path]).kernels
    assert (one.block, one.occupancy.waves_per_simd) == (128, 2)
    assert not any("launch's block" in line for line in one.unknown)
    assert audit_files([path], launch=LaunchConfig(256)).kernels[0].block == 256


def test_a_limit_that_does_not_fit_is_not_its_block(tmp_path):
    """Nothing runs with no waves: how it is launched is not known, until somebody says it."""
    path = kernel(tmp_path / "k.s", "k")
    path.write_text(path.read_text() + REQUIRED.replace(".reqd_workgroup_size", ".reqd_cluster_size"))
    (one,) = audit_files([path]).kernels
    assert (one.occupancy, one.lacks[OCCUPANCY].code) == (None, "unknown_numbers")
    assert audit_files([path], launch=LaunchConfig(64)).kernels[0].occupancy.waves_per_simd == 2


@pytest.mark.parametrize(
    ("entry", "block", "agprs"),
    [
        ({".vgpr_count": 512, ".reqd_workgroup_size": [256, 1, 1]}, 256, 256),
        ({".vgpr_count": 250}, 0, 0),
        ({".vgpr_count": 512, ".agpr_count": 7}, 0, 7),
    ],
)
def test_agprs_are_those_behind_the_descriptors_offset(built, entry, block, agprs):
    """AITER's metadata leaves them out; a block that is required is in it."""
    elf = code_object.read_elf(built("gfx90a:sramecc+:xnack-")[0])
    descriptor = code_object.descriptors_of(elf, "gfx90a")["many.kd"]
    descriptor = dataclasses.replace(descriptor, accum_offset=256, vgprs=512)
    info = code_object.kernel_of_metadata({".name": "many"} | entry, descriptor, None)
    assert (info.required_block, info.agprs) == (block, agprs)
