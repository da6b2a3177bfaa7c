"""Regressions planted in copies of the project's own kernels, compiled for real: found, named, and rightly attributed.

Each is planted for gfx1100 alone, some for one head dimension: what it is not planted in must stay as it is.
"""

import re
import shutil

import pytest

from rocattn.sources import kernel_root
from rocattn_profiling.kernels.audit import audit_shipped
from rocattn_profiling.kernels.compare import Comparison, Finding, SourceChange, compare
from rocattn_profiling.kernels.shipped import shipped_kernels
from rocattn_profiling.kernels.source_lines import with_lines

CAUSAL, LARGE, SCALE = "flash_attention_causal f16 D=64", "flash_attention_causal f16 D=128", "scale"
SOURCE = "hip/flash_attention_causal.hip"
BODY = "    flash_prefill<Shape>(arguments"
INCLUDE = "#include <rocattn/flash_prefill.h>"
LOOKED_AT = {("gfx1100", CAUSAL), ("gfx1100", LARGE), ("gfx1100", SCALE), ("gfx942", CAUSAL)}
pytestmark = pytest.mark.usefixtures("kernel_cache")


@pytest.fixture(scope="module")
def kernels():
    """The compilations that are looked at."""
    return [one for one in shipped_kernels(["gfx1100", "gfx942"]) if (one.arch, one.name) in LOOKED_AT]


@pytest.fixture
def tree(tmp_path):
    """A copy of the kernels' sources."""
    return shutil.copytree(kernel_root(), tmp_path / "kernels")


def audited(kernels, root):
    """Audit kernels from a folder of sources."""
    made = audit_shipped((), jobs=1, root=root, kernels=kernels)
    assert not made.problems
    return made


def plant(tree, file, old, new, condition="1"):
    """Put a change for gfx1100 alone in the place of some text; the condition is the preprocessor's."""
    path = tree / file
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, f"\n#if defined(__gfx1100__) && {condition}\n{new}\n#else\n{old}\n#endif\n"))


def found(kernels, tree):
    """Return (severity, metric, kernel) of each difference from the shipped sources, and the sentences."""
    comparison = compare(audited(kernels, kernel_root()), audited(kernels, tree))
    assert comparison.compared == len(kernels) == len(LOOKED_AT)
    assert {one.arch for one in comparison.findings} <= {"gfx1100"}
    worse = {(one.metric, one.kernel) for one in comparison.of("worse")}
    return worse, {(one.metric, one.kernel): one.sentence for one in comparison.findings}


def test_the_same_source_built_twice_has_no_difference(kernels, tree, monkeypatch):
    """From two folders, with two caches, by two runs of the compiler: nothing differs, not even a note."""
    first = audited(kernels, kernel_root())
    monkeypatch.setenv("ROCATTN_CACHE_DIR", str(tree.parent / "cache"))
    again = audited(kernels, tree)
    comparison = compare(first, again)
    assert (comparison.findings, comparison.unchanged) == ([], len(LOOKED_AT))
    assert again.kernels == first.kernels


def test_a_forced_spill_is_found(kernels, tree):
    """Half the registers: spilled VGPRs, with what the hot loop pays for them."""
    name = "ROCATTN_KERNEL_ATTRIBUTES"
    limit = f"{INCLUDE}\n#undef {name}\n#define {name} __attribute__((amdgpu_num_vgpr(128)))"
    plant(tree, SOURCE, INCLUDE, limit)
    worse, text = found(kernels, tree)
    assert {("spills", CAUSAL), ("spills", LARGE), ("issue cycles", CAUSAL)} <= worse
    assert f"{CAUSAL} on gfx1100: " in text["spills", CAUSAL]
    assert "VGPRs are spilled, 0 -> " in text["spills", CAUSAL]
    assert int(re.search("scratch with ([0-9]+) instructions", text["spills", CAUSAL])[1]) > 0


def test_one_register_over_a_granule_is_found(kernels, tree):
    """At D = 64 the kernel has about the 240 VGPRs that 6 waves may have; one more than these costs a wave."""
    plant(tree, SOURCE, BODY, f'    asm volatile("" ::: "v240");\n{BODY}', "HEAD_DIM == 64")
    worse, text = found(kernels, tree)
    assert worse == {("occupancy", CAUSAL)}
    assert re.search("6 -> 5 of 16 waves per SIMD: VGPRs 2[34][0-9] -> 241", text["occupancy", CAUSAL])


def test_one_register_inside_a_granule_is_a_note(kernels, tree):
    """To 238 VGPRs of the 240 that the granules give: said, and no failure."""
    plant(tree, SOURCE, BODY, f'    asm volatile("" ::: "v237");\n{BODY}', "HEAD_DIM == 128")
    worse, text = found(kernels, tree)
    assert worse == set()
    assert text["registers", LARGE].endswith(" -> 238, with no wave lost or gained (2 more before one is lost)")


def test_more_lds_is_found(kernels, tree):
    """At D = 128 it takes a third of the waves; at D = 64 registers bind, so that it costs nothing and is a note."""
    more = "lds, Shape::FIRST_ELEMENTS + (HEAD_DIM == 128 ? 12000 : 5000)"
    plant(tree, SOURCE, "lds, Shape::FIRST_ELEMENTS", more)
    worse, text = found(kernels, tree)
    assert ("occupancy", LARGE) in worse
    assert CAUSAL not in {kernel for _, kernel in worse}
    assert text["occupancy", LARGE].startswith(f"{LARGE} on gfx1100: 6 -> 4 of 16 waves per SIMD: LDS ")
    before, after = map(int, re.search("LDS ([0-9]+) -> ([0-9]+) bytes per block", text["occupancy", LARGE]).groups())
    assert after - before == 2 * 12000
    assert text["LDS", CAUSAL].split(", ")[1].startswith("with no block lost or gained (")


def test_an_unrolled_loop_is_found(kernels, tree):
    """Unrolled 64 times, a loop of 2 KiB no longer fits the instruction cache."""
    loop = "    for (i64 v = first; v < vectors; v += static_cast<i64>(blocks) * BLOCK) {"
    plant(tree, "hip/scale.hip", loop, f"#pragma unroll 64\n{loop}")
    worse, text = found(kernels, tree)
    assert worse == {("instruction cache", SCALE)}
    assert text["instruction cache", SCALE].endswith(" and does not fit the instruction cache of 32 KiB")
    assert re.search("([0-9]+) times the work", text["issue cycles", SCALE])[1] == "64"


def test_a_narrowed_load_is_found(kernels, tree):
    """Tiles fetched by 8 bytes a lane instead of 16: more instructions for the same bytes."""
    width = "    static constexpr u32 WIDTH = VECTOR_BYTES / sizeof(T);\n    static constexpr u32 BYTES"
    narrow = "    static constexpr u32 WIDTH = VECTOR_BYTES / sizeof(T) / 2;\n    static constexpr u32 BYTES"
    plant(tree, "include/rocattn/tile.h", width, narrow)
    worse, text = found(kernels, tree)
    assert {("global loads", CAUSAL), ("global loads", LARGE)} <= worse
    before, _, after = text["global loads", CAUSAL].rpartition(" -> ")
    assert (re.search("of ([0-9]+) bytes", before)[1], after) == ("16", "8 of 8 bytes per lane")


def test_findings_name_the_source_lines_of_the_hot_loop(kernels):
    """The line tables come from a second compilation with the same machine code."""
    some = [one for one in kernels if one.name == CAUSAL and one.arch == "gfx1100"]
    head = audited(some, kernel_root())
    planted = Finding(severity="worse", metric="m", arch="gfx1100", kernel=CAUSAL, file=SOURCE, text="s")
    comparison = Comparison(base="b", head="h", compared=1, unchanged=0, findings=[planted])
    (one,) = with_lines(comparison, head, kernel_root(), [("gfx1100", CAUSAL, SOURCE)]).findings
    assert one.lines
    assert all(line.partition(":")[0].endswith((".h", ".hip")) for line in one.lines)
    assert "cycles" in one.lines[0]


def test_lines_belong_to_the_finding_changed_ones_first(kernels):
    """Barriers, loads and LDS reads are shown where they are; the costliest lines are of a finding about cycles."""
    some = [one for one in kernels if one.name == CAUSAL and one.arch == "gfx1100"]
    head = audited(some, kernel_root())

    def lines(*metrics, sources=()):
        about = {"severity": "worse", "arch": "gfx1100", "kernel": CAUSAL, "file": SOURCE, "text": "s"}
        planted = [Finding(metric=metric, **about) for metric in metrics]
        comparison = Comparison(base="b", head="h", compared=1, unchanged=0, findings=planted, sources=list(sources))
        found = with_lines(comparison, head, kernel_root(), [("gfx1100", CAUSAL, SOURCE)]).findings
        return [one.lines for one in found]

    cycles, barriers, loads, reads, again = lines(
        "issue cycles", "barriers", "global loads", "read conflicts", "barriers"
    )
    assert all(" cycles, " in line for line in cycles)
    assert [re.search(r"(?<=\d: )1 barrier: block_barrier\(\);", line)[0] for line in barriers] == [
        "1 barrier: block_barrier();"
    ] * 2
    assert all(re.search(r":\d+: (?:1 global load|\d+ global loads)", line) for line in loads)
    assert all(re.search(r":\d+: (?:1 LDS read|\d+ LDS reads)", line) for line in reads)
    assert all((cycles, loads, reads))
    assert again == cycles[:0]  # once for each kernel
    path, number = barriers[1].split(":")[:2]
    changed = SourceChange(path=f"kernels/{path}", line=int(number), text="block_barrier();", kernels=[SOURCE])
    assert lines("barriers", sources=[changed]) == [barriers[::-1]]
