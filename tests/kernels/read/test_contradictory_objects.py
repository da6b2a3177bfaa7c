"""Code objects that contradict themselves or lack their metadata: said in a line, and described all the same."""

import re
import struct

import msgspec
import pytest
from inline_snapshot import snapshot

from rocattn.toolchain.code_object import read_elf, target_of_flags
from rocattn_profiling.kernels.read.code_objects import CodeObjectError, read_objects

from ..code_files import assemble, bundle, elf_of, pinned

HAND_WRITTEN = """
\t.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
\t.text
\t.globl hand
\t.p2align 8
\t.type hand,@function
hand:
\ts_mov_b32 s0, 0
.Lloop:
\tv_add_f32 v0, v0, v1
\ts_add_u32 s0, s0, 1
\ts_cmp_lt_u32 s0, 10
\ts_cbranch_scc1 .Lloop
\ts_cbranch_scc0 hand
\ts_endpgm
\t.section .rodata
\t.p2align 6
\t.amdhsa_kernel hand
\t.amdhsa_next_free_vgpr 37
\t.amdhsa_next_free_sgpr 75
\t.amdhsa_accum_offset 20
\t.amdhsa_user_sgpr_dispatch_ptr 1
\t.amdhsa_group_segment_fixed_size 512
\t.end_amdhsa_kernel
"""


def metadata_changed(data, key, old, new):
    """Return a code object with one number of its metadata changed, in place."""
    found = re.search(re.escape(msgspec.msgpack.encode(key) + msgspec.msgpack.encode(old)), data)
    assert found, f"no {key} of {old}"
    changed = msgspec.msgpack.encode(key) + msgspec.msgpack.encode(new)
    assert len(changed) == found.end() - found.start()
    return data[: found.start()] + changed + data[found.end() :]


def descriptor_changed(data, symbol, offset, form, value):
    """Return a code object with one field of a kernel descriptor changed."""
    elf = read_elf(data)
    content = elf.at_symbol(elf.symbols[symbol], 64)
    at = data.index(content)
    assert data.count(content) == 1
    whole = bytearray(data)
    struct.pack_into(form, whole, at + offset, value)
    return bytes(whole)


class TestContradictions:
    """What does not agree with itself is said, and described all the same."""

    @pytest.mark.parametrize(
        ("key", "old", "new", "words"),
        [
            (".group_segment_fixed_size", 1036, 1040, "says 1040 bytes of LDS, the descriptor 1036"),
            (".wavefront_size", 32, 64, "says 64 lanes per wave, the descriptor 32"),
            (".kernarg_segment_size", 28, 29, "says 29 bytes of arguments, the descriptor 28"),
            (".workgroup_processor_mode", 1, 0, "disagree on WGP mode"),
            (".vgpr_count", 0, 127, "it uses 127 VGPRs, and its descriptor allocates 8"),
        ],
    )
    def test_between_metadata_and_descriptor(self, built, key, old, new, words):
        """Sizes must be equal; registers may be fewer than allocated, not more."""
        (device,) = read_objects(metadata_changed(built("gfx1100")[0], key, old, new), "k")
        assert len(device.kernels) == 3
        assert [words in problem for problem in device.problems] == [True]

    @pytest.mark.parametrize(
        ("target", "offset", "form", "value", "words"),
        [
            ("gfx1100", 16, "<q", 64, "its descriptor starts it at"),
            ("gfx1100", 4, "<I", 1 << 31, f"the descriptor {1 << 31}"),
            ("gfx90a:sramecc+:xnack-", 48, "<I", 0, "its descriptor allocates 8"),
            ("gfx906", 48, "<I", 0x3F, "SGPRs, and its descriptor allocates"),
        ],
    )
    def test_of_a_patched_descriptor(self, built, target, offset, form, value, words):
        """Its code elsewhere, scratch, registers: what the hardware goes by."""
        data = descriptor_changed(built(target)[0], "many.kd", offset, form, value)
        (device,) = read_objects(data, "k")
        assert any("many: " in problem and words in problem for problem in device.problems), device.problems

    def test_of_header_and_container(self, built):
        """The processor stands in the header, the metadata and the bundle; the version in two."""
        data = bytearray(built("gfx1100")[0])
        data[48] = 0x46
        (device,) = read_objects(bytes(data), "k")
        assert device.target == "gfx1101"
        assert device.problems == ("its ELF header says gfx1101, its metadata amdgcn-amd-amdhsa--gfx1100",)
        data[48], data[8] = 0x41, 2
        (device,) = read_objects(bytes(data), "k")
        assert device.problems == ("its ELF header says code object version 4, its metadata [1, 2]",)
        (device,) = read_objects(bundle({"hip-amdgcn-amd-amdhsa--gfx1030": built("gfx1100")[0]}), "k")
        assert device.problems == ("its bundle says gfx1030, its ELF header says gfx1100",)
        (device,) = read_objects(
            bundle({"hip-amdgcn-amd-amdhsa--gfx90a:xnack+": built("gfx90a:sramecc+:xnack-")[0]}), "k"
        )
        assert device.problems[0] == snapshot(
            "its bundle says gfx90a:xnack+, its ELF header says gfx90a:sramecc+:xnack-"
        )

    def test_an_unknown_processor_is_not_guessed(self, built):
        """Registers in a descriptor cannot be decoded then; the metadata's target is believed, if there is one."""
        data = bytearray(built("gfx1100")[0])
        data[48] = 0xEE
        (device,) = read_objects(bytes(data), "k")
        assert device.target == "gfx1100"
        assert device.problems == ("its ELF header has an unknown processor number 0xee",)
        unnoted = bytes(data).replace(b"AMDGPU\0", b"AMDGPX\0")
        (device,) = read_objects(unnoted, "k")
        assert device.target == ""
        assert {kernel.vgprs for kernel in device.kernels} == {0}
        assert {"vgprs", "wave_size", "args"} <= set(device.kernels[0].unknown)


@pytest.mark.parametrize(
    ("flags", "abi", "target"),
    [
        (0x2C, 0, "gfx900"),
        (0x2F, 1, "gfx906"),
        (0x32F, 1, "gfx906:sramecc+:xnack+"),
        (0x13F, 1, "gfx90a:xnack+"),
        (0x53F, 2, "gfx90a"),
        (0xB3F, 2, "gfx90a:sramecc-:xnack+"),
        (0xE4C, 3, "gfx942:sramecc+:xnack-"),
        (0x40, 2, "gfx940"),
        (0x01000054, 4, "gfx11-generic"),
        (0x0100055F, 4, "gfx9-4-generic"),
        (0xFF, 3, ""),
    ],
)
def test_the_target_of_the_header(flags, abi, target):
    """Features are one bit each in version 3 and one of four settings from version 4 on; "any" is not written."""
    assert target_of_flags(read_elf(elf_of([(0, 0, b"")], flags=flags, abi=abi))) == target


class TestWithoutMetadata:
    """What can still be known."""

    def test_the_descriptor_alone(self, built):
        """Sizes are exact, registers those that are allocated; the rest is named as unknown."""
        data = built("gfx90a:sramecc+:xnack-")[0]
        (whole,) = read_objects(data, "k")
        (device,) = read_objects(data.replace(b"AMDGPU\0", b"AMDGPX\0"), "k")
        assert device.target == whole.target
        assert len(device.problems) == 1
        assert device.problems[0].startswith("it has no metadata")
        known = {kernel.symbol: kernel for kernel in whole.kernels}
        assert {kernel.symbol for kernel in device.kernels} == set(known)
        for kernel in device.kernels:
            true = known[kernel.symbol]
            for name in ("wave_size", "lds_bytes", "scratch_bytes", "kernarg_bytes", "code_bytes", "descriptor"):
                assert getattr(kernel, name) == getattr(true, name)
            assert true.vgprs <= kernel.vgprs < true.vgprs + 9
            assert true.sgprs <= kernel.sgprs < true.sgprs + 9
            assert set(kernel.unknown) == {"block", "agprs", "vgpr_spills", "sgpr_spills", "args", "vgprs", "sgprs"}

    def test_a_kernel_that_one_of_both_does_not_name(self, built):
        """It is described from what there is, with a line."""
        data = built("gfx1100")[0]
        assert data.count(b"\xa8empty.kd") == 1  # as MessagePack has it
        (device,) = read_objects(data.replace(b"\xa8empty.kd", b"\xa8empty.kx"), "k")
        assert sorted(kernel.symbol for kernel in device.kernels) == ["empty", "empty", "many", "scale"]
        assert device.problems == (
            "empty: it is in the metadata, but has no descriptor empty.kx",
            "empty: it has a descriptor, but is not in the metadata",
        )

    def test_hand_written_kernels(self, tmp_path):
        """Assembly with directives and no metadata."""
        compiler = pinned()
        (tmp_path / "h.s").write_text(HAND_WRITTEN)
        (device,) = read_objects(assemble(compiler.argv, compiler.linker, tmp_path, "gfx942", "h"), "h")
        (kernel,) = device.kernels
        assert (kernel.symbol, kernel.vgprs, kernel.sgprs, kernel.lds_bytes, kernel.block) == ("hand", 40, 88, 512, 0)
        assert kernel.descriptor.accum_offset == 20
        assert kernel.wants == ("dispatch pointer",)

    def test_code_objects_of_version_2(self):
        """An amd_kernel_code_t stands before the code, with exact counts (these are of llc 14)."""
        code = bytearray(256 + 96)
        struct.pack_into("<q", code, 16, 256)
        struct.pack_into("<III", code, 56, 1 << 4 | 1 << 3, 84, 1200)
        struct.pack_into("<Q", code, 72, 16)
        struct.pack_into("<HH", code, 84, 10, 3)
        code[103] = 6
        symbol = struct.pack("<IBBHQQ", 1, 10, 0, 3, 0, len(code))
        data = elf_of([(0, 0, b""), (3, 0, b"\0k\0"), (2, 1, symbol), (1, 0, bytes(code))], flags=0x2C, abi=0)
        (device,) = read_objects(data, "k")
        (kernel,) = device.kernels
        assert (device.target, device.version, kernel.symbol) == ("gfx900", 2, "k")
        assert (kernel.wave_size, kernel.vgprs, kernel.sgprs, kernel.code_bytes) == (64, 3, 10, 96)
        assert (kernel.lds_bytes, kernel.scratch_bytes, kernel.kernarg_bytes) == (1200, 84, 16)
        assert kernel.wants == ("dispatch id",)
        assert set(kernel.unknown) == {"block", "agprs", "vgpr_spills", "sgpr_spills", "args"}
        assert device.problems[0].startswith("code object version 2")

    def test_a_damaged_note_leaves_the_descriptors(self, built):
        """The line says what is wrong with the note."""
        data = built("gfx1100")[0]
        at = data.index(b"amdhsa.kernels")
        (device,) = read_objects(data[:at] + b"\xff" + data[at + 1 :], "k")
        assert len(device.kernels) == 3
        assert device.problems[0] == snapshot(
            "the metadata note is damaged: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"
        )

    def test_other_runtimes_are_named(self, built):
        """Mesa's and PAL's code objects have neither descriptors nor this metadata."""
        data = bytearray(built("gfx1100")[0])
        data[7] = 65
        with pytest.raises(CodeObjectError, match="targets PAL"):
            read_objects(bytes(data), "k")
