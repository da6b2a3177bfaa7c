"""Reading a code object's metadata, and one clear line for what is damaged."""

import struct

import msgspec
import pytest

from rocattn.errors import ToolchainError
from rocattn.toolchain.code_object import is_code_object, kernels_of, read_metadata


def elf(note, *, machine=224, kind=32, owner=b"AMDGPU\0"):
    """Return the least that reads as a code object: a header, one note section, and the table of sections."""
    text = struct.pack("<III", len(owner), len(note), kind) + owner.ljust((len(owner) + 3) // 4 * 4, b"\0") + note
    header = bytearray(64)
    header[:7] = b"\x7fELF\x02\x01\x01"
    struct.pack_into("<H", header, 18, machine)
    struct.pack_into("<Q", header, 0x28, 64)
    struct.pack_into("<HH", header, 0x3A, 64, 2)
    sections = bytearray(128)
    struct.pack_into("<I", sections, 64 + 4, 7)
    struct.pack_into("<QQ", sections, 64 + 24, 192, len(text))
    return bytes(header + sections) + text


def test_what_a_kernel_says_is_read():
    """Arguments with and without names, and counters that a target may leave out."""
    entry = {
        ".name": "k", ".wavefront_size": 64, ".max_flat_workgroup_size": 256, ".vgpr_count": 100, ".sgpr_count": 40,
        ".group_segment_fixed_size": 1024, ".private_segment_fixed_size": 0, ".kernarg_segment_size": 12,
        ".args": [
            {".name": "q.coerce", ".offset": 0, ".size": 8, ".value_kind": "global_buffer"},
            {".offset": 8, ".size": 4, ".value_kind": "by_value"},
        ],
    }  # fmt: skip
    (kernel,) = kernels_of(elf(msgspec.msgpack.encode({"amdhsa.kernels": [entry]})))
    assert (kernel.symbol, kernel.wave_size, kernel.block, kernel.lds_bytes) == ("k", 64, 256, 1024)
    assert (kernel.vgprs, kernel.agprs, kernel.vgpr_spills) == (100, 0, 0)
    assert [(arg.name, arg.offset, arg.size, arg.kind) for arg in kernel.args] == [
        ("q", 0, 8, "global_buffer"), ("", 8, 4, "by_value")
    ]  # fmt: skip


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("code", "wants"),
    [("out[thread_id()] = 1;", ()), ("out[thread_id()] = __builtin_amdgcn_grid_size_x();", ("dispatch pointer",))],
)
def test_what_a_launch_would_have_to_bring_is_seen(tmp_path, monkeypatch, code, wants):
    """The dispatch packet and its like are asked for in the kernel's descriptor, not among its arguments."""
    from rocattn.toolchain import compile_hip

    monkeypatch.setenv("ROCATTN_CACHE_DIR", str(tmp_path / "cache"))
    source = tmp_path / "k.hip"
    source.write_text(
        f"#include <rocattn/device.h>\nusing namespace rocattn;\nROCATTN_KERNEL(k, 64, (u32* out)) {{ {code} }}\n"
    )
    for arch in ("gfx1100", "gfx90a"):
        (kernel,) = kernels_of(compile_hip(source, arch).data)
        assert [arg.kind for arg in kernel.args] == ["global_buffer"]
        assert kernel.wants == wants


def test_notes_of_others_are_passed_over():
    """A section may hold several notes; only AMDGPU's of type 32 is the metadata."""
    first = struct.pack("<III", 4, 5, 3) + b"GNU\0" + b"build" + b"\0" * 3
    whole = bytearray(elf(msgspec.msgpack.encode({"a": 1})))
    note = bytes(whole[192:])
    struct.pack_into("<Q", whole, 128 + 32, len(first) + len(note))
    assert read_metadata(bytes(whole[:192]) + first + note) == {"a": 1}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no AMD GPU code object"),
        (elf(b"\x80", machine=62), "no AMD GPU code object"),
        (elf(b"\x80", kind=1), "has no metadata note"),
        (elf(b"\x80", owner=b"LLVM\0"), "has no metadata note"),
        (elf(b"\x81\xa1a"), "is damaged"),
        (elf(b"\x81\xa1a\xc1"), "is damaged: MessagePack data is malformed: invalid opcode"),
        (elf(b"\x05"), "is damaged"),
        (elf(b"\x80")[:100], "is damaged"),
    ],
)
def test_what_is_no_code_object_is_one_line(data, words):
    """Another CPU's ELF, no note, a cut file: never an IndexError."""
    with pytest.raises(ToolchainError, match=words):
        read_metadata(data)


def test_a_library_of_this_cpu_is_told_apart():
    """The stand-in's kernels are such libraries."""
    assert is_code_object(elf(b"\x80"))
    assert not is_code_object(elf(b"\x80", machine=62))
    assert not is_code_object(b"\x7fELF")
