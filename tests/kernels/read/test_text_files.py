"""What assembly text says of its kernels: equal to the code object's metadata, and unknown where it says nothing."""

import msgspec
import pytest
from inline_snapshot import snapshot

from rocattn.errors import ToolchainError
from rocattn.toolchain import choose_compiler, compile_hip
from rocattn.toolchain.code_object import kernels_of
from rocattn_profiling.kernels.audit import Audit, audit_files
from rocattn_profiling.kernels.compare import compare
from rocattn_profiling.kernels.foreign import LaunchConfig
from rocattn_profiling.kernels.read.assembly import parse_assembly
from rocattn_profiling.kernels.read.text_files import compiler_of, kernels_of_text
from rocattn_profiling.kernels.view import resources

HEAD = '\t.amdgcn_target "amdgcn-amd-amdhsa--gfx942"\n\t.type k,@function\nk:\n\ts_endpgm\n.Lend:\n\t.size k, .Lend-k\n'
DESCRIPTOR = "\t.amdhsa_kernel k\n\t\t.amdhsa_next_free_vgpr {}\n\t.end_amdhsa_kernel\n"
METADATA = "\t.amdgpu_metadata\n---\namdhsa.kernels:\n  - .name: {}\n    .vgpr_count: {}\n...\n\t.end_amdgpu_metadata\n"
KERNEL = """\
#include <rocattn/device.h>
using namespace rocattn;
ROCATTN_KERNEL(first, 64, (float* x, u32 n)) {
    ROCATTN_LDS(float, shared, 64);
    lds_store(shared + thread_id(), x[thread_id()]);
    block_barrier();
    x[n] = shared[63 - thread_id()];
}
ROCATTN_KERNEL(second, 128, (float* x, u32 n)) { for (u32 i = 0; i < n; ++i) x[i] += 1.0f; }
"""


def read(text):
    """Return what a text says of its kernels."""
    return kernels_of_text(text, parse_assembly(text))


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201"])
def test_text_and_code_object_say_the_same(arch, tmp_path, monkeypatch):
    """Of two kernels in one file, every number that both have."""
    monkeypatch.setenv("ROCATTN_CACHE_DIR", str(tmp_path))
    source = tmp_path / "two.hip"
    source.write_text(KERNEL)
    try:
        compiler = choose_compiler().version
    except ToolchainError as error:
        pytest.skip(str(error))
    made = compile_hip(source, arch)
    said = read(made.assembly)
    assert list(said) == ["first", "second"]
    for kernel in kernels_of(made.data):
        for name in (
            "wave_size", "block", "vgprs", "agprs", "sgprs", "vgpr_spills", "sgpr_spills", "lds_bytes", "scratch_bytes",
            "kernarg_bytes", "code_bytes",
        ):  # fmt: skip
            assert getattr(said[kernel.symbol], name) == getattr(kernel, name), name
        assert said[kernel.symbol].unknown == ()
    assert compiler_of(made.assembly).split()[:3] == compiler.split()[:3]


def test_without_metadata_the_descriptor_says_what_it_can():
    """Registers are known then; spills and the block are not."""
    (kernel,) = read(HEAD + DESCRIPTOR.format(24)).values()
    assert kernel.vgprs == 24
    assert {"vgpr_spills", "sgpr_spills", "block"} <= set(kernel.unknown)
    assert "vgprs" not in kernel.unknown


def test_metadata_of_another_kernel_says_nothing_of_this_one():
    """Entries belong to the kernels that they name."""
    (kernel,) = read(HEAD + DESCRIPTOR.format(24) + METADATA.format("other", 99)).values()
    assert kernel.vgprs == 24


@pytest.mark.parametrize("value", ["9" * 5000, "-1", "max(3, k.num_vgpr)", "0x18", "'", "1e3", str(1 << 32)])
def test_what_is_no_number_is_unknown(value):
    """Expressions of newer compilers, and nonsense, are neither guessed nor a crash."""
    (kernel,) = read(HEAD + DESCRIPTOR.format(value) + METADATA.format("k", value)).values()
    assert kernel.vgprs == 0
    assert "vgprs" in kernel.unknown


@pytest.mark.parametrize(
    "text",
    [
        "\n" * 1_000_000,
        ".amdgpu_metadata\n" * 100_000,
        ".amdhsa_kernel k\n" * 100_000,
        ".amdgpu_metadata\n  - .name: " + "x" * 1_000_000,
        '.ident "' * 100_000,
        "; Kernel info:\n" * 100_000,
        ".amdgpu_metadata\n  - .symbol: " + "x " * 60_000 + " " * 60_000 + "x",
    ],
    ids=["blank lines", "metadata without end", "descriptors", "a long name", "quotes", "comments", "blanks"],
)
def test_hostile_text_takes_no_longer_than_any(text):
    """Patterns that start at every line must not look at all the rest each time: these would take minutes."""
    assert read(text) == {}
    assert compiler_of(text) in {"", ".ident "}


FIELDS = "  - .name: k\n    .vgpr_count: {}\n    .max_flat_workgroup_size: 256\n    .wavefront_size: 64\n"
WHOLE = HEAD + DESCRIPTOR + f"\t.amdgpu_metadata\n---\namdhsa.kernels:\n{FIELDS}...\n\t.end_amdgpu_metadata\n"


def facts(folder, content, **launch):
    """Return the facts of a file with this text."""
    path = folder / "k.s"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    audit = audit_files([path], launch=LaunchConfig(**launch))
    assert audit.problems == []
    return audit.kernels


@pytest.mark.parametrize(
    ("said", "arch"),
    [
        ("gfx11-generic", "gfx11-generic"),
        ("gfx9-4-generic:xnack-", "gfx9-4-generic"),
        ("gfx90a:sramecc+:xnack-", "gfx90a"),
    ],
)
def test_the_target_is_read_as_a_whole(said, arch, tmp_path):
    """A generic processor has hyphens in its name, and features follow it, as in a code object."""
    (one,) = facts(tmp_path, WHOLE.format(8, 8).replace("gfx942", said))
    assert (one.target, one.arch) == (said, arch)


@pytest.mark.parametrize(("line_end", "encoding"), [("\r\n", "utf-8"), ("\n", "utf-8-sig")])
def test_line_ends_and_byte_order_marks_hide_nothing(line_end, encoding, tmp_path):
    """What git and editors on Windows make of a text says the same."""
    text = WHOLE.format(8, 8)
    assert facts(tmp_path, text.replace("\n", line_end).encode(encoding)) == facts(tmp_path, text)


def test_several_targets_in_one_text_are_told_apart(tmp_path):
    """A driver that compiles for several targets with -S bundles their texts: equal names are different kernels."""
    parts = [
        WHOLE.format(8, 8),
        WHOLE.format(96, 96).replace("gfx942", "gfx90a").replace("s_endpgm", "s_nop 0\n\ts_endpgm"),
    ]
    start = "# __CLANG_OFFLOAD_BUNDLE____START__ hip-amdgcn-amd-amdhsa--x\n"
    text = "".join(start + part for part in parts)
    found = facts(tmp_path, text)
    assert [(one.arch, one.vgprs, one.instructions, one.file.rpartition("/")[2]) for one in found] == [
        ("gfx942", 8, 1, "k.s[gfx942]"), ("gfx90a", 96, 2, "k.s[gfx90a]"),
    ]  # fmt: skip
    assert found[1].loop.line == text.splitlines().index("\ts_nop 0") + 1
    twice = facts(tmp_path, 2 * parts[0])
    assert [one.file.rpartition("/")[2] for one in twice] == ["k.s[gfx942]", "k.s[gfx942]#2"]


def test_registers_asked_for_to_limit_the_waves_count(tmp_path):
    """With amdgpu_waves_per_eu a launch takes more VGPRs than the code uses: fewer in the code would win no wave."""
    (one,) = facts(tmp_path, WHOLE.format(169, 8))
    assert (one.vgprs, one.occupancy.waves_per_simd, one.occupancy.bound_by) == (8, 2, ("VGPRs asked for",))
    assert one.occupancy.sentence.endswith("of 169 requested by amdgpu_waves_per_eu; the code uses 8")
    assert resources(one)[6:8] == ["2/8", "VGPRs asked for"]
    (one,) = facts(tmp_path, WHOLE.format(169, 169))
    assert (one.occupancy.waves_per_simd, one.occupancy.bound_by) == (2, ("VGPRs",))


def test_registers_padded_to_what_lds_allows_bind_nothing(tmp_path):
    """LLVM takes 129 VGPRs for a kernel of 58 where 20000 bytes of LDS leave 3 waves: it is the LDS that binds."""
    (one,) = facts(tmp_path, WHOLE.format(129, 58), dynamic_lds_bytes=20000)
    assert (one.occupancy.waves_per_simd, one.occupancy.bound_by) == (3, ("LDS",))
    assert one.occupancy.slack["VGPRs"] == 168 - 58


def test_no_occupancy_is_made_of_what_is_not_known(tmp_path):
    """A kernel whose registers nothing says is not one without registers."""
    (one,) = facts(tmp_path, HEAD + DESCRIPTOR.format("max(3, k.num_vgpr)"))
    assert one.occupancy is None
    assert one.unknown == snapshot(
        (
            "the launch's dynamic LDS (Triton's `shared`): give it with --dynamic-lds",
            "the launch's block: its limit is unknown, too",
            "no occupancy: its number of VGPRs is unknown",
        )
    )


@pytest.mark.parametrize(("said", "of"), [("gfx1310", "gfx1310"), ("gfx13-generic", "gfx13-generic"), ("x", "code wi")])
def test_an_architecture_that_is_not_known_is_said_shortly(said, of, tmp_path):
    """Once for the waves and once for the cycles, without all those that are known."""
    (one,) = facts(tmp_path, WHOLE.format(8, 8).replace("gfx942", said), dynamic_lds_bytes=0, block=64)
    occupancy, cycles = (line for line in one.unknown if "not say" not in line)
    assert occupancy.startswith(f"no occupancy: nothing is known about {of}")
    assert cycles.startswith(f"no cost of the hot loop: no instruction rates are known for {of}")
    assert max(len(occupancy), len(cycles)) < 90


def test_block_beyond_the_kernels_limit_has_no_occupancy(tmp_path):
    """The launch would fail."""
    (one,) = facts(tmp_path, WHOLE.format(8, 8), block=512)
    assert one.occupancy is None
    assert one.unknown == snapshot(
        (
            "the launch's dynamic LDS (Triton's `shared`): give it with --dynamic-lds",
            "no occupancy: blocks of 512 threads are impossible: it is compiled for at most 256",
        )
    )


SPILLS = "    .vgpr_spill_count: 3\n    .sgpr_spill_count: 2\n    .private_segment_fixed_size: 64\n"
SIZES = "    .sgpr_count: 12\n    .group_segment_fixed_size: 512\n"


def changes(before, after):
    """Return (severity, metric) of what differs between the only kernels of two files, and the sentences."""
    sides = [Audit(subject="", rates="", kernels=found) for found in (before, after)]
    found = compare(*sides).findings
    return [(one.severity, one.metric) for one in found], " / ".join(one.sentence for one in found)


def test_what_a_text_does_not_say_is_neither_gone_nor_new(tmp_path):
    """Without metadata there are no spills to read: the table says so, and neither comparison makes a finding of it."""
    text = WHOLE.format("max(3, k.num_vgpr)", 8).replace("    .wave", f"{SPILLS}{SIZES}    .wave")
    whole, bare = facts(tmp_path, text), facts(tmp_path, text.split("\t.amdgpu_metadata")[0])
    assert resources(whole[0])[:6] == ["8", "0", "12", "3 + 2 SGPR", "64", "512"]
    assert resources(bare[0])[:6] == ["?", "0", "?", "?", "?", "?"]
    assert resources(bare[0])[-1] == "?"
    sized = [msgspec.structs.replace(whole[0], code_bytes=800)]
    assert (changes(sized, bare), changes(bare, sized)) == (([], ""), ([], ""))
    none = facts(tmp_path, text.replace("count: 3", "count: 0").replace("count: 2", "count: 0"))
    assert changes(none, whole)[0] == [("worse", "spills")]


def test_scratch_without_metadata_may_be_for_spills(tmp_path):
    """A descriptor says how much private memory there is, not what it is for."""
    private = "\t\t.amdhsa_private_segment_fixed_size {}\n"
    texts = [(HEAD + DESCRIPTOR.format(24)).replace("\t.end_", f"{private.format(size)}\t.end_") for size in (16, 64)]
    kinds, text = changes(*(facts(tmp_path, one) for one in texts))
    assert kinds == [("worse", "scratch")]
    assert text.endswith("16 -> 64 bytes of scratch per lane; whether spills use it is unknown")
    whole = facts(tmp_path, WHOLE.format(24, 24).replace("    .wave", f"{SPILLS.replace('64', '96')}    .wave"))
    kinds, text = changes(facts(tmp_path, texts[0]), whole)
    assert text.startswith("k on gfx942: 16 -> 96 bytes of scratch per lane; whether spills use it is unknown")
    (one,) = facts(tmp_path, WHOLE.format(24, 24).replace("    .wave", "    .sgpr_spill_count: 0\n    .wave"))
    assert resources(one)[3] == "?"
    rounded = msgspec.structs.replace(one, unknown=(*one.unknown, "the file does not state its vgprs"))
    assert resources(rounded)[0] == "24"


def test_register_changes_without_occupancy_are_notes(tmp_path):
    """Without a block there is no occupancy, so nobody knows whether a wave is lost."""
    lds = "\t\t.amdhsa_group_segment_fixed_size {}\n"
    texts = [
        (HEAD + DESCRIPTOR.format(vgprs)).replace("\t.end_", f"{lds.format(size)}\t.end_")
        for vgprs, size in ((24, 512), (96, 40000))
    ]
    kinds, text = changes(*(facts(tmp_path, one) for one in texts))
    assert kinds == [("note", "registers"), ("note", "LDS")]
    assert text == snapshot(
        "k on gfx942: VGPRs 24 -> 96; whether this costs a wave is unknown / k on gfx942: LDS 512 -> 40000 bytes per "
        "block; whether this costs a block is unknown"
    )
    assert text.endswith("LDS 512 -> 40000 bytes per block; whether this costs a block is unknown")
