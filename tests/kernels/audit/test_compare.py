"""Comparing audits: a change is judged by what it does on the GPU, once, and said in a sentence."""

import dataclasses
import re
from pathlib import Path

import msgspec
import pytest
from inline_snapshot import snapshot

from rocattn_profiling.kernels.audit import AuditFileError, read_audit
from rocattn_profiling.kernels.compare import compare
from rocattn_profiling.kernels.facts import Spills
from rocattn_profiling.kernels.metrics import METRICS
from rocattn_profiling.kernels.model.cache_lines import CacheLines
from rocattn_profiling.kernels.model.cost import LineCost
from rocattn_profiling.kernels.model.occupancy import occupancy
from rocattn_profiling.kernels.sentences import ADVICE, advice
from rocattn_profiling.kernels.shipped import Problem
from rocattn_profiling.kernels.source_lines import LINE_KINDS, with_lines
from rocattn_profiling.kernels.verdict import rows_of

from ..made_facts import audit, facts, loop, order

ROOT = Path(__file__).resolve().parents[3]


def findings(before, after):
    """Return (severity, metric) of each difference, and the sentences."""
    found = compare(audit(before, subject="base"), audit(after)).findings
    return [(one.severity, one.metric) for one in found], " / ".join(one.sentence for one in found)


def test_the_documents_have_the_metrics_as_they_are():
    """docs/audit.md has the rule of each finding and the meaning of each column, line by line."""
    page = (ROOT / "docs/audit.md").read_text()
    rules = {}
    for name, metric in METRICS.items():
        if metric.worse:
            rule = metric.worse.format(points=metric.points, percent=metric.percent)
            rules.setdefault(rule, []).append(name)
    rows = [f"| {', '.join(names)} | {rule} |" for rule, names in rules.items()]
    assert "|---|---|\n" + "\n".join(rows) + "\n\n" in page
    for structural in (False, True):
        shown = [metric for metric in METRICS.values() if metric.legend and metric.structural == structural]
        meanings = [f"- {metric.heading}: {metric.legend}" for metric in shown]
        assert "\n\n" + "\n".join(meanings) + "\n\n" in page


def test_entries_of_metrics_name_what_there_is():
    """Other metrics for advice, and kinds of lines."""
    for metric in METRICS.values():
        assert metric.advice_of in METRICS.keys() | {""}
        assert metric.lines in LINE_KINDS.keys() | {""}


def test_equal_audits_have_no_difference():
    """Nothing is found, and all is counted."""
    found = compare(audit(facts()), audit(facts()))
    assert (found.findings, found.compared, found.unchanged) == ([], 1, 1)


def test_new_spill_and_its_scratch_are_one_finding():
    """Spilled VGPRs and the memory they go to are one thing; the sentence has the numbers and the place."""
    after = facts(vgpr_spills=12, scratch=52, cost=loop(scratch=6), vgprs=190)
    kinds, text = findings(facts(), msgspec.structs.replace(after, spills=spilled(after, 6)))
    assert ("worse", "spills") in kinds
    assert "scratch" not in {metric for _, metric in kinds}
    assert text == snapshot(
        "flash_attention f16 D=128 on gfx1100: 12 VGPRs are spilled, 0 -> 52 bytes of scratch per lane; its hot loop "
        "accesses scratch with 6 instructions per iteration; it has 190 VGPRs / flash_attention f16 D=128 on "
        "gfx1100: the hot loop issues 1356 -> 1380 cycles per iteration (+1.8 %): scratch_load_4B 0 -> 6 (+24 cycles)"
    )


def test_what_one_source_makes_is_one_kernel_of_the_card():
    """Packed rows and pages share their causes; of other people's files each kernel stands for itself."""
    for file, kernels in (("hip/flash_attention.hip", 1), ("theirs.hsaco", 2)):
        both = [facts(kernel=name, file=file) for name in ("flash_attention", "flash_attention_paged")]
        worse = [msgspec.structs.replace(each, spills=facts(vgpr_spills=9).spills) for each in both]
        now = audit(*worse)
        rows = rows_of(compare(audit(*both, subject="base"), now), now)
        assert [(row.kernel, row.variants) for row in rows] == [
            ("flash_attention", 3 - kernels), ("flash_attention_paged", 1)
        ][:kernels]  # fmt: skip


def spilled(of, instructions):
    """Return the spills of a kernel with another number of instructions in the loop."""
    return msgspec.structs.replace(of.spills, instructions=instructions)


def test_spills_into_agprs_are_said_as_such():
    """On CDNA a VGPR may be kept in an AGPR: no memory is accessed then, and nothing is said of scratch."""
    _, text = findings(facts(), facts(vgpr_spills=1, agprs=55))
    assert text == snapshot(
        "flash_attention f16 D=128 on gfx1100: 1 VGPR is spilled (into AGPRs); it has 190 VGPRs / flash_attention "
        "f16 D=128 on gfx1100: AGPRs 0 -> 55, with no wave lost or gained"
    )


def test_fewer_spills_are_better():
    """The other way round it is an improvement."""
    kinds, text = findings(facts(vgpr_spills=12, scratch=52), facts())
    assert kinds == [("better", "spills")]
    assert text == snapshot(
        "flash_attention f16 D=128 on gfx1100: VGPRs are no longer spilled (12 before), 52 -> 0 bytes of scratch per "
        "lane"
    )


@pytest.mark.parametrize(
    ("before", "after", "severity"), [(0, 3, "worse"), (3, 9, "note"), (9, 3, "note"), (3, 0, "better")]
)
def test_scalar_spills_count_when_they_begin_and_end(before, after, severity):
    """SGPRs are kept in lanes of a VGPR: more of them are judged by the cycles that it takes."""
    kinds, _ = findings(facts(sgpr_spills=before), facts(sgpr_spills=after))
    assert kinds == [(severity, "spills")]
    (one,) = compare(audit(facts(sgpr_spills=before)), audit(facts(sgpr_spills=after))).findings
    assert (one.before, one.after) == (before, after)


@pytest.mark.parametrize(
    ("before", "after", "severity", "numbers"),
    [
        ((12, 0), (11, 5), "worse", (0, 5)),
        ((12, 0), (12, 5), "worse", (0, 5)),
        ((12, 0), (0, 5), "better", (12, 0)),
        ((12, 0), (13, 5), "worse", (12, 13)),
        ((12, 5), (13, 0), "worse", (12, 13)),
        ((12, 4), (3, 5), "better", (12, 3)),
        ((12, 5), (3, 0), "better", (12, 3)),
    ],
)
def test_of_spills_that_come_and_go_the_worse_counts(before, after, severity, numbers):
    """SGPRs that begin to be spilled are worse if fewer VGPRs end to be: those cost memory, SGPRs lanes of a VGPR."""
    sides = [audit(facts(vgpr_spills=vgprs, sgpr_spills=sgprs, scratch=64)) for vgprs, sgprs in (before, after)]
    (one,) = compare(*sides).findings
    assert (one.severity, one.metric, (one.before, one.after)) == (severity, "spills", numbers)
    assert "VGPR" in one.sentence
    assert "SGPR" in one.sentence


def test_scratch_without_spills_is_worse():
    """An array that the compiler could not keep in registers costs as much as a spill."""
    kinds, text = findings(facts(), facts(scratch=64))
    assert kinds == [("worse", "scratch")]
    assert text == snapshot(
        "flash_attention f16 D=128 on gfx1100: 0 -> 64 bytes of scratch per lane without new spills: an array has an "
        "index unknown at compile time, or a call was not inlined"
    )


def test_an_array_in_scratch_is_worse_though_spills_are_gone():
    """Fewer spills do not explain more memory."""
    kinds, text = findings(facts(vgpr_spills=12, scratch=52), facts(scratch=4096))
    assert kinds == [("worse", "scratch"), ("note", "spills")]
    assert text == snapshot(
        "flash_attention f16 D=128 on gfx1100: 52 -> 4096 bytes of scratch per lane without new spills: an array has "
        "an index unknown at compile time, or a call was not inlined / flash_attention f16 D=128 on gfx1100: VGPRs "
        "are no longer spilled (12 before), 52 -> 4096 bytes of scratch per lane"
    )


def test_one_register_over_a_step_is_worse_and_says_which_step():
    """240 VGPRs leave 6 waves on gfx1100, 241 leave 5."""
    kinds, text = findings(facts(vgprs=240), facts(vgprs=241))
    assert kinds == [("worse", "occupancy")]
    assert text == snapshot(
        "flash_attention f16 D=128 on gfx1100: 6 -> 5 of 16 waves per SIMD: VGPRs 240 -> 241 (VGPRs bind at 5 waves "
        "of 16: 1 VGPR over the step to 6 waves)"
    )


def test_one_register_inside_a_granule_is_a_note():
    """It costs nothing, so it accuses nobody; the sentence says how many more there are."""
    kinds, text = findings(facts(vgprs=230), facts(vgprs=231))
    assert kinds == [("note", "registers")]
    assert text == snapshot(
        "flash_attention f16 D=128 on gfx1100: VGPRs 230 -> 231, with no wave lost or gained (9 more before one is "
        "lost)"
    )


def test_registers_are_free_where_lds_binds():
    """With 40000 bytes of LDS 3 waves fit: a granule of VGPRs more costs none."""
    kinds, _ = findings(facts(lds=40_000, vgprs=190), facts(lds=40_000, vgprs=210))
    assert kinds == [("note", "registers")]


def test_doubled_lds_costs_waves_and_is_named():
    """One finding: the waves; LDS and not the registers is the reason given."""
    kinds, text = findings(facts(), facts(lds=2 * 19216))
    assert kinds == [("worse", "occupancy")]
    assert text == snapshot(
        "flash_attention f16 D=128 on gfx1100: 6 -> 3 of 16 waves per SIMD: LDS 19216 -> 38432 bytes per block (LDS "
        "binds at 3 waves of 16: 5664 bytes of LDS over the step to 4 waves)"
    )


def test_advice_on_occupancy_has_the_numbers_of_the_next_step():
    """Of registers and LDS, and of blocks where the waves stay; where nothing smaller helps, it says that."""
    for changes, expected in (
        ({"lds": 2 * 19216}, "reduce LDS by 5,664 bytes to fit 4 waves per SIMD"),
        ({"vgprs": 241}, "reduce VGPRs by 1 to fit 6 waves per SIMD"),
        ({"vgprs": 241, "lds": 23_000}, "reduce VGPRs by 1 and LDS by 1,496 bytes to fit 6 waves per SIMD"),
    ):
        waves = facts(**changes).occupancy
        assert advice("occupancy", waves, ours=True) == advice("blocks", waves, ours=False) == expected
    alone = occupancy("gfx1100", wave_size=32, vgprs=24, lds_bytes=0, block=1024 - 64)
    assert (
        advice("occupancy", alone, ours=True) == "try another block size: fewer registers or less LDS would add no wave"
    )
    assert advice("barriers", waves, ours=True) == ADVICE["barriers"]
    assert advice("occupancy", None, ours=True) == ADVICE["occupancy"]


def test_advice_names_the_files_of_rocattn_for_its_kernels_only():
    """Others read of their tile and attributes; an attribute that alone limits the waves is to be dropped."""
    assert "rocattn/gpu/tiles.py" in advice("spills", None, ours=True)
    for metric in METRICS:
        assert not re.search(r"rocattn/|rocattn_|QUERY_|MIN_WAVES|\b[QKV]\b", advice(metric, None, ours=False)), metric
    asked = dataclasses.replace(facts(vgprs=250).occupancy, bound_by=("VGPRs asked for",))
    assert "amdgpu_waves_per_eu" in advice("occupancy", asked, ours=False)
    kinds, text = findings(facts(), facts(occupancy=asked))
    assert kinds == [("worse", "occupancy")]
    assert "amdgpu_waves_per_eu" in text


def test_lds_inside_the_granule_is_a_note():
    """LDS that costs no block is said, and no more."""
    kinds, text = findings(facts(lds=19000), facts(lds=19216))
    assert kinds == [("note", "LDS")]
    assert text == snapshot(
        "flash_attention f16 D=128 on gfx1100: LDS 19000 -> 19216 bytes per block, with no block lost or gained "
        "(2288 bytes more before one is lost)"
    )


def test_issue_cycles_count_from_two_percent_on():
    """1.9 % more is a note, 2.1 % more is worse, 2.1 % less is better; the kinds of instructions are named."""
    base = loop(plain=1000)
    total = base.issue_cycles
    for share, severity in ((0.019, "note"), (0.021, "worse"), (-0.021, "better")):
        after = loop(plain=1000 + round(total * share))
        kinds, text = findings(facts(cost=base), facts(cost=after))
        assert kinds == [(severity, "issue cycles")]
        assert f"plain 1000 -> {1000 + round(total * share)}" in text


def test_a_larger_tile_is_compared_for_the_same_work():
    """A kernel that divides its problem in another way does more in an iteration: cycles are per FLOP."""
    before = facts(choices="KEYS_PER_TILE=32", cost=loop())
    after = facts(choices="KEYS_PER_TILE=64", cost=loop(plain=600, matrix=128, loads=((16, 8),), flops=2 * 262144))
    kinds, text = findings(before, after)
    assert ("worse", "issue cycles") not in kinds
    assert text == snapshot(
        "flash_attention f16 D=128 on gfx1100: the hot loop issues 1356 -> 2680 cycles per iteration, which does 2 "
        "times the work (-1.2 % for the same work): global_load_16B 8 -> 8 (-32 cycles)"
    )


def test_an_unrolled_loop_is_compared_for_the_same_work():
    """FLOPs and bytes that double together are an unrolled loop."""
    twice = loop(plain=600, matrix=128, loads=((16, 16),), flops=2 * 262144)
    kinds, text = findings(facts(), facts(cost=twice))
    assert kinds == [("note", "issue cycles")]
    assert text == snapshot(
        "flash_attention f16 D=128 on gfx1100: the hot loop issues 1356 -> 2712 cycles per iteration, which does 2 "
        "times the work (0.0 % for the same work)"
    )


def test_products_computed_twice_are_no_more_work():
    """FLOPs that double alone are waste."""
    kinds, _ = findings(facts(), facts(cost=loop(matrix=128, flops=2 * 262144)))
    assert kinds == [("worse", "issue cycles")]


@pytest.mark.parametrize(
    ("factor", "kinds", "told"),
    [
        (
            2,
            [],
            snapshot(
                "flash_attention on gfx1100: the hot loop issues 1356 -> 2680 cycles per iteration, which does 2 "
                "times the work (-1.2 % for the same work): global_load_16B 8 -> 8 (-32 cycles)"
            ),
        ),
        (
            2.2,
            ["issue cycles"],
            snapshot(
                "flash_attention on gfx1100: the hot loop issues 1356 -> 2948 cycles per iteration, which does 2 "
                "times the work (+8.7 % for the same work): matrix 64 -> 141 (+208 cycles), plain 300 -> 660 (+60 "
                "cycles), global_load_16B 8 -> 8 (-32 cycles)"
            ),
        ),
    ],
)
def test_foreign_kernel_with_another_tile_is_normalised_by_work(factor, kinds, told):
    """Triton's BLOCK_M: twice the products for the same K and V; nothing but the FLOPs says that the tile is larger."""
    changes = {"variant": "", "choices": ""}
    larger = loop(plain=round(300 * factor), matrix=round(64 * factor), flops=524288)
    before = facts(cost=loop(), loop_bytes=5000, **changes)
    found = compare(audit(before), audit(facts(cost=larger, loop_bytes=10_000, **changes))).findings
    assert [one.metric for one in found if one.severity == "worse"] == kinds
    (cycles,) = (one.sentence for one in found if one.metric == "issue cycles")
    assert cycles == told


def test_narrower_loads_are_worse_and_said_as_such():
    """The same bytes by four times the instructions."""
    kinds, text = findings(facts(), facts(cost=loop(loads=((4, 32),))))
    assert ("worse", "global loads") in kinds
    assert text == snapshot(
        "flash_attention f16 D=128 on gfx1100: the hot loop issues 1356 -> 1452 cycles per iteration (+7.1 %): "
        "global_load_4B 0 -> 32 (+128 cycles), global_load_16B 8 -> 0 (-32 cycles) / flash_attention f16 D=128 on "
        "gfx1100: global loads in the hot loop are narrower: 8 of 16 bytes per lane -> 32 of 4 bytes per lane"
    )
    kinds, _ = findings(facts(cost=loop(loads=((4, 32),))), facts())
    assert ("better", "global loads") in kinds


def test_narrower_loads_of_fewer_bytes_are_not_worse():
    """Eight loads of 8 bytes in place of eight of 16 fetch half: nothing is fetched in smaller pieces."""
    kinds, _ = findings(facts(), facts(cost=loop(loads=((8, 8),))))
    assert ("worse", "global loads") not in kinds


def test_fewer_blocks_at_the_same_waves_are_worse():
    """With as many wave slots lost as before, what a CU holds less of is blocks; another size of block is no less."""
    before = facts()
    fewer = dataclasses.replace(before.occupancy, blocks=before.occupancy.blocks - 1)
    assert findings(before, facts(occupancy=fewer))[0] == [("worse", "blocks")]
    assert findings(facts(occupancy=fewer), before)[0] == [("better", "blocks")]


def test_matrix_instructions_that_are_gone_are_worse():
    """Products on the vector unit are no longer comparable by cycles: that they are gone is what counts."""
    kinds, text = findings(facts(), facts(cost=loop(matrix=0)))
    assert kinds == [("worse", "matrix")]
    assert text == snapshot(
        "flash_attention f16 D=128 on gfx1100: the hot loop no longer has matrix instructions: the products run on "
        "the vector unit"
    )


def test_a_loop_that_outgrows_the_instruction_cache_is_worse():
    """gfx1100 has 32 KiB."""
    kinds, text = findings(facts(loop_bytes=30_000), facts(loop_bytes=40_000, code_bytes=50_000))
    assert kinds == [("worse", "instruction cache"), ("note", "code")]
    assert text == snapshot(
        "flash_attention f16 D=128 on gfx1100: the code of the hot loop is about 29.3 KiB -> 39.1 KiB and does not "
        "fit the instruction cache of 32 KiB / flash_attention f16 D=128 on gfx1100: 20000 -> 50000 bytes of code"
    )


def test_a_loop_that_is_too_large_already_may_grow_a_little():
    """Beyond the cache, only a quarter more is worse; a loop that fits again is better."""
    assert findings(facts(loop_bytes=40_000), facts(loop_bytes=42_000))[0] == []
    assert findings(facts(loop_bytes=40_000), facts(loop_bytes=60_000))[0] == [("worse", "instruction cache")]
    assert findings(facts(loop_bytes=40_000), facts(loop_bytes=30_000))[0] == [("better", "instruction cache")]


def test_code_that_is_blown_up_must_save_cycles():
    """Unrolled four times for the same cycles a FLOP it is worse; for 5 % fewer cycles it is what unrolling is for."""
    work = {"matrix": 256, "loads": ((16, 32),), "flops": 4 * 262144}
    kinds, text = findings(facts(loop_bytes=4000), facts(loop_bytes=16_000, cost=loop(plain=1200, **work)))
    assert kinds == [("worse", "loop code"), ("note", "issue cycles")]
    assert text == snapshot(
        "flash_attention f16 D=128 on gfx1100: the code of the hot loop is about 3.91 KiB -> 15.6 KiB, 4 times as "
        "much, but saves no issue cycles / flash_attention f16 D=128 on gfx1100: the hot loop issues 1356 -> 5424 "
        "cycles per iteration, which does 4 times the work (0.0 % for the same work)"
    )
    kinds, _ = findings(facts(loop_bytes=4000), facts(loop_bytes=16_000, cost=loop(plain=900, **work)))
    assert kinds == [("better", "issue cycles")]


@pytest.mark.parametrize(
    ("after", "kinds", "status"),
    [
        ({"vgpr_spills": 29, "scratch": 120}, {"spills", "issue cycles"}, 1),
        ({"vgprs": 256, "cost": loop()}, {"occupancy"}, 1),
        ({"lds": 60_000, "cost": loop()}, {"occupancy"}, 1),
        ({"vgprs": 192}, {"issue cycles"}, 1),
        ({"cost": loop(plain=900, has_loop=False)}, set(), 0),
        ({"cost": loop(loads=((8, 16),))}, {"issue cycles"}, 1),
        ({"cost": loop(plain=301), "loop_bytes": 30_000}, set(), 0),
        ({}, {"issue cycles"}, 1),
    ],
)
def test_another_compiler_is_judged_by_what_its_code_costs(after, kinds, status):
    """Registers, waves and cycles of a loop; its order, its size and code that runs once are notes."""
    after = facts(compiler="clang version 23.0.0", code_bytes=40_000, **({"cost": loop(plain=900)} | after))
    found = compare(audit(facts()), audit(after))
    assert {one.metric for one in found.findings if one.severity == "worse"} == kinds
    assert found.coverage.status(failed=bool(found.of("worse"))) == status
    assert (found.not_compared, found.compilers) == ((), [("clang version 22.1.8", "clang version 23.0.0")])


def test_another_table_of_cycles_makes_only_cycles_incomparable():
    """Registers do not depend on the rates."""
    after = facts(vgprs=256, cost=loop(plain=900))
    found = compare(audit(facts(), rates="r1"), audit(after, rates="r2")).findings
    assert {(one.severity, one.metric) for one in found} == {("worse", "occupancy"), ("incomparable", "issue cycles")}


def test_kernels_of_one_side_only_are_said():
    """A kernel that is gone and one that has come are no regressions, and not overlooked."""
    found = compare(audit(facts(), facts(variant="f16 D=64"), subject="base"), audit(facts(), facts(kernel="mask")))
    assert [(one.severity, one.kernel) for one in found.findings] == [
        ("missing", "flash_attention f16 D=64"), ("new", "mask f16 D=128"),
    ]  # fmt: skip
    assert found.compared == found.unchanged == 1
    assert compare(audit(facts(), facts(variant="f16 D=64")), audit(facts()), partial=True).findings == []


def test_kernel_that_no_longer_compiles_is_worse():
    """It is missing, but not because it was taken away."""
    after = msgspec.structs.replace(audit(), problems=[Problem("too much LDS", "flash_attention f16 D=128", "gfx1100")])
    (one,) = compare(audit(facts()), after).findings
    assert (one.severity, one.metric) == ("worse", "kernel")
    assert one.sentence == "flash_attention f16 D=128 on gfx1100: it no longer compiles: too much LDS"


def test_a_new_kernel_that_did_not_compile_before_says_so():
    """That only head has it would be wrong: base has its source."""
    before = msgspec.structs.replace(
        audit(subject="base"), problems=[Problem("no LDS", "flash_attention f16 D=128", "gfx1100")]
    )
    (one,) = compare(before, audit(facts())).findings
    assert one.severity == "new"
    assert one.sentence.endswith("it does not compile in base: no LDS")
    (one,) = compare(audit(subject="base"), audit(facts())).findings
    assert one.sentence.endswith("only head has it")


def test_findings_come_gravest_first():
    """Worse before better before notes."""
    before = audit(facts(kernel="a"), facts(kernel="b", vgpr_spills=2, scratch=8), facts(kernel="c", vgprs=240))
    after = audit(facts(kernel="a", sgprs=61), facts(kernel="b"), facts(kernel="c", vgprs=241))
    found = compare(before, after).findings
    assert [one.severity for one in found] == ["worse", "better", "note"]


def test_files_with_a_kernel_of_the_same_name_are_told_apart():
    """Two files may hold one symbol: then the files' names decide."""
    before = audit(facts(file="x/a.hsaco"), facts(file="x/b.hsaco", vgprs=240))
    after = audit(facts(file="y/b.hsaco", vgprs=241), facts(file="y/a.hsaco"))
    found = compare(before, after)
    assert [(one.severity, one.metric, one.file) for one in found.findings] == [("worse", "occupancy", "y/b.hsaco")]


def test_files_of_one_name_are_told_apart_by_their_folders():
    """Triton's cache has a folder for each variant of a kernel, and the same file name in each: none is left out."""
    before = audit(facts(file="old/h1/k.hsaco"), facts(file="old/h2/k.hsaco"))
    after = audit(facts(file="new/h1/k.hsaco", vgprs=241), facts(file="new/h2/k.hsaco"))
    found = compare(before, after)
    assert (found.compared, found.unchanged) == (2, 1)
    assert [(one.severity, one.metric, one.file) for one in found.findings] == [
        ("worse", "occupancy", "new/h1/k.hsaco")
    ]
    assert found.findings[0].sentence.startswith("flash_attention f16 D=128 on gfx1100 (new/h1/k.hsaco): 6 -> 5")


def test_kernel_with_a_new_path_is_still_paired():
    """A changed kernel of Triton has another folder; it is the one that is left."""
    before = audit(facts(file="c/h1/k.hsaco"), facts(file="c/h2/k.hsaco"))
    after = audit(facts(file="c/h3/k.hsaco", vgprs=241), facts(file="c/h2/k.hsaco"))
    found = compare(before, after)
    assert [(one.severity, one.metric, one.file) for one in found.findings] == [("worse", "occupancy", "c/h3/k.hsaco")]


def test_kernel_in_a_second_file_is_paired_with_the_first():
    """The file that was there is compared; the one that has come is new."""
    before = audit(facts(file="x/a.hsaco"), subject="base")
    found = compare(before, audit(facts(file="y/b.hsaco"), facts(file="y/a.hsaco", vgprs=241)))
    assert [(one.severity, one.file) for one in found.findings] == [("worse", "y/a.hsaco"), ("new", "y/b.hsaco")]


def test_no_pair_is_guessed():
    """Of two files that could be the one before, neither is; nothing is silently left out."""
    before = audit(facts(file="c/h1/k.hsaco"), facts(file="c/h2/k.hsaco"))
    found = compare(before, audit(facts(file="c/h3/k.hsaco", vgprs=241), facts(file="c/h4/k.hsaco")))
    assert (found.compared, [one.severity for one in found.findings]) == (0, [])
    (gap,) = found.coverage.not_compared
    assert gap.line.startswith(
        "2 kernels flash_attention f16 D=128 on gfx1100: each side has several with the same name"
    )


def test_lines_are_those_of_the_file_that_got_worse():
    """Where several files have the kernel, the source lines are of the one that the finding names."""
    names = ("h1", "h2")
    loops = [dataclasses.replace(loop(), lines=(LineCost(f"{name}.py:7", 4, 9.0),)) for name in names]
    before = audit(*(facts(file=f"{name}/k", cost=cost) for name, cost in zip(names, loops, strict=True)))
    after = audit(*(facts(file=f"{name}/k", cost=cost, vgprs=241) for name, cost in zip(names, loops, strict=True)))
    variants = [(one.arch, one.name, one.file) for one in after.kernels]
    found = with_lines(compare(before, after), after, None, variants)
    assert [one.lines[0].partition(":")[0] for one in found.findings] == ["h1.py", "h2.py"]


def test_an_audit_survives_its_file(tmp_path):
    """What was written is read back equal, also from the output of --json."""
    made = audit(facts(), facts(variant="", kernel="k", loop=None, occupancy=None, loop_bytes=None))
    path = tmp_path / "audit.json"
    path.write_bytes(msgspec.json.encode(made))
    assert read_audit(path) == made
    path.write_bytes(msgspec.json.encode({"audit": made, "comparison": None}))
    assert read_audit(path) == made


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff\xfe", b'{"audit": 3}', b'{"schema": 9, "kernels": []}'])
def test_another_file_is_refused_in_one_line(tmp_path, content):
    """Whatever it holds, the error names the file."""
    path = tmp_path / "audit.json"
    path.write_bytes(content)
    with pytest.raises(AuditFileError, match=r"audit\.json is (?:not )?an audit") as caught:
        read_audit(path)
    assert "\n" not in str(caught.value)


def test_an_integer_loop_is_compared_by_the_bytes_that_it_loads():
    """Without FLOPs an unrolled loop is better, and undone it is worse."""
    rolled = facts(cost=loop(plain=20, matrix=0, loads=((4, 1),), vector_flops=0))
    unrolled = facts(cost=loop(plain=32, matrix=0, loads=((4, 4),), vector_flops=0))
    assert ("better", "issue cycles") in findings(rolled, unrolled)[0]
    assert ("worse", "issue cycles") in findings(unrolled, rolled)[0]


def test_twice_the_flops_for_hardly_more_loads_are_waste():
    """A few bytes more do not make an unrolled loop of wasted products."""
    once = facts(cost=loop(plain=300, matrix=0, loads=((4, 20),)))
    twice = facts(cost=loop(plain=600, matrix=0, loads=((4, 21),)))
    assert ("worse", "issue cycles") in findings(once, twice)[0]


def test_loads_that_store_nothing_more_are_no_work():
    """A copy that reads everything twice is worse, though it loads twice the bytes."""
    once = facts(cost=loop(plain=20, matrix=0, loads=((4, 1),), vector_flops=0, global_bytes=256))
    twice = facts(cost=loop(plain=30, matrix=0, loads=((4, 2),), vector_flops=0, global_bytes=384))
    assert ("worse", "issue cycles") in findings(once, twice)[0]


def test_another_loop_of_the_nest_is_not_compared():
    """The hot loop becomes the inner one, which loads nothing, and runs who knows how often."""
    whole = facts(cost=loop(plain=320, matrix=0, loads=((16, 8),)))
    inner = facts(cost=loop(plain=20, matrix=0, loads=(), scalar_cycles=20.0, issue_cycles=40.0))
    for sides in ((whole, inner), (inner, whole)):
        comparison = compare(*(audit(side) for side in sides))
        assert [each.code for each in comparison.not_compared] == ["another_loop"]
        assert comparison.findings == []


def test_without_flops_or_loads_how_a_loop_counts_is_its_work():
    """An unrolled loop adds four times as much to its counter; one unrolled to its end has run all its iterations."""

    def computing(times, flops=0, **counts):
        cost = loop(plain=20 * times, matrix=0, loads=(), **counts)
        return facts(cost=dataclasses.replace(cost, vector_flops=flops))

    rolled = computing(1, step=-1)
    (one,) = compare(audit(rolled), audit(computing(3.6, step=4))).findings
    assert (one.severity, one.metric) == ("better", "issue cycles")
    (one,) = compare(audit(rolled), audit(computing(2, step=1))).findings
    assert one.severity == "worse"
    (one,) = compare(audit(rolled), audit(computing(1.2, step=64))).findings  # it counts bytes now
    assert one.severity == "worse"
    whole = computing(50, 64 * 64, trips=1)
    (one,) = compare(audit(computing(1, 64, trips=64, step=1)), audit(whole)).findings
    assert one.severity == "better"
    comparison = compare(audit(computing(1, 64, step=1)), audit(whole))
    assert [each.code for each in comparison.not_compared] == ["another_loop"]


def test_waves_gained_are_not_better_where_the_loop_is_unknown():
    """Registers are saved by losing a prefetch, too; waves lost are worse all the same."""
    few, many = (msgspec.structs.replace(facts(vgprs=count, lds=0), loop=None) for count in (241, 96))
    assert ("note", "occupancy") in findings(few, many)[0]
    assert ("worse", "occupancy") in findings(many, few)[0]


def test_spills_that_are_gone_outweigh_a_lost_wave():
    """The verdict has one order: the spill decides, and what contradicts it is a note."""
    before, after = loop(schedule=order()), loop(schedule=order(read_distance=0.0))
    spilling = facts(vgprs=190, vgpr_spills=64, scratch=256, cost=before)
    inside = msgspec.structs.replace(spilling, spills=Spills(vgprs=64, sgprs=0, instructions=64))
    kinds, _ = findings(inside, facts(vgprs=241, cost=after))
    assert {severity for severity, _ in kinds} == {"better", "note"}
    assert ("better", "spills") in kinds
    kinds, _ = findings(spilling, facts(vgprs=241, cost=after))  # the hot loop is what it was, with fewer waves
    assert {severity for severity, _ in kinds} == {"worse", "note"}
    assert ("worse", "occupancy") in kinds


def test_a_prefetch_that_is_gone_outweighs_cycles_saved():
    """Fewer instructions are no gain where each iteration waits for memory at once; prefetched again, it is better."""
    hidden = facts(cost=loop(schedule=order(load_distance=8.0)))
    exposed = facts(cost=loop(plain=240, schedule=order(load_distance=0.0)))
    assert {severity for severity, _ in findings(hidden, exposed)[0]} == {"worse", "note"}
    assert {severity for severity, _ in findings(exposed, hidden)[0]} == {"better", "note"}


def test_named_code_that_comes_into_a_loop_is_worse():
    """A fence, a flat access or a waterfall costs more than it issues; it is named, both ways."""
    before = facts(cost=loop(schedule=order()))
    after = facts(cost=loop(plain=200, schedule=order(idioms=("fence", "flat access"))))
    kinds, text = findings(before, after)
    assert {severity for severity, _ in kinds} == {"worse", "note"}
    assert text == snapshot(
        "flash_attention f16 D=128 on gfx1100: 0 -> 2 kinds of code that cost more than their issue cycles in the "
        "hot loop: fence, flat access / flash_attention f16 D=128 on gfx1100: the hot loop issues 1356 -> 1256 "
        "cycles per iteration (-7.4 %): plain 300 -> 200 (-100 cycles)"
    )
    assert ("better", "idioms") in findings(after, before)[0]


def test_most_waves_lost_outweigh_cycles_saved():
    """A tile that leaves few waves is worse though its loop issues less for the same work; one wave less is not."""
    small, saved = facts(vgprs=64, lds=0, cost=loop()), loop(plain=200)
    assert ("worse", "occupancy") in findings(small, facts(vgprs=256, lds=0, cost=saved))[0]
    assert ("better", "issue cycles") in findings(small, facts(vgprs=104, lds=0, cost=saved))[0]


def lines(factor, unknown=0, worst_lines=64):
    """Return a kernel whose accesses of global memory touch so many times the least cache lines."""
    known = {"accesses": 8, "unknown": unknown, "line_bytes": 128, "worst": factor, "worst_lines": worst_lines}
    made = CacheLines(**known, factor=factor, worst_stride=None, own_lines=worst_lines // 64, uniform=0)
    return {"cache_lines": made, "schedule": order()}


def test_a_line_for_each_lane_outweighs_cycles_and_wider_loads():
    """Twice the cache lines or more decide; fewer than that do not outweigh cycles that are saved."""
    spread = facts(cost=loop(plain=250, **lines(4.0)))
    kinds, text = findings(facts(cost=loop(**lines(1.0, worst_lines=4))), spread)
    assert ("worse", "cache lines") in kinds
    assert not any(severity == "better" for severity, _ in kinds)
    assert text == snapshot(
        "flash_attention f16 D=128 on gfx1100: accesses of global memory in the hot loop touch 1 -> 4 times the "
        "least cache lines: each lane accesses its own 128-byte line (a variable stride) / flash_attention f16 D=128 "
        "on gfx1100: the hot loop issues 1356 -> 1306 cycles per iteration (-3.7 %): plain 300 -> 250 (-50 cycles)"
    )
    kinds, text = findings(spread, facts(cost=loop(**lines(1.0, worst_lines=4))))
    assert ("better", "cache lines") in kinds
    assert text == snapshot(
        "flash_attention f16 D=128 on gfx1100: accesses of global memory in the hot loop touch 4 -> 1 times the "
        "least cache lines: each lane accesses its own 128-byte line (a variable stride) / flash_attention f16 D=128 "
        "on gfx1100: the hot loop issues 1306 -> 1356 cycles per iteration (+3.8 %): plain 250 -> 300 (+50 cycles)"
    )
    kinds, text = findings(facts(cost=loop(**lines(1.0))), facts(cost=loop(plain=250, **lines(1.5, worst_lines=6))))
    assert not any(severity == "worse" for severity, _ in kinds)
    assert text == snapshot(
        "flash_attention f16 D=128 on gfx1100: the hot loop issues 1356 -> 1306 cycles per iteration (-3.7 %): plain "
        "300 -> 250 (-50 cycles) / flash_attention f16 D=128 on gfx1100: accesses of global memory in the hot loop "
        "touch 1 -> 1.5 times the least cache lines: at worst 6 lines of 128 bytes per wave (a variable stride)"
    )


def test_addresses_that_only_one_side_tells_are_not_compared():
    """An index that is loaded hides where the lanes access memory: that is no pass."""
    for told, less in ((1.0, 1.0), (1.0, None), (13.0, 1.0)):
        sides = facts(cost=loop(**lines(told))), facts(cost=loop(**lines(less, unknown=4)))
        for base, head in (sides, sides[::-1]):
            found = compare(audit(base), audit(head))
            (gap,) = found.not_compared
            assert (gap.code, gap.needed, found.findings) == ("addresses", True, [])
    both = facts(cost=loop(**lines(None, unknown=4)))
    assert compare(audit(both), audit(both)).not_compared == ()


def test_more_loads_are_not_earlier_ones():
    """As many in flight more as there are more: nothing is hidden that was not."""

    def loads(number, in_flight):
        schedule = order(loads_in_flight=in_flight, bytes_in_flight=16 * in_flight)
        return facts(cost=loop(loads=((16, number),), schedule=schedule))

    for now, judged in (((2, 2), False), ((1, 2), True), ((2, 4), True)):
        flight = [one for one in findings(loads(1, 1), loads(*now))[0] if one[1] == "loads in flight"]
        assert flight == ([("better", "loads in flight")] if judged else [])
