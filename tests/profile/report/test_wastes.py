"""What a kernel wastes is named first, with the numbers of micro-benchmarks that were written to show just that.

The eight launches are those of AMDResearch/intellikit 1661f698, metrix/resources/ubench, on an MI300X; the strided
product is AMD's fourth training exercise (amd/HPCTrainingExamples, rocprof-compute/4-StridedAccess) on an MI300A.
"""

import pytest
from inline_snapshot import snapshot

from rocattn_profiling.profile.report import report as profile_report
from rocattn_profiling.profile.report.causes import cause_of
from rocattn_profiling.profile.report.groups import group_findings
from rocattn_profiling.profile.report.summary import summarise

from ..kit import lines_of
from .test_limits import made_of

_LAUNCH = {
    "ns": 3325, "SQ_WAVES": 128, "SQ_WAVE_CYCLES": 131_705, "SQ_WAIT_ANY": 114_731, "TA_BUFFER_WAVEFRONTS_sum": 0,
}  # fmt: skip
_NO_ATOMICS = {"TCP_TCC_ATOMIC_WITH_RET_REQ_sum": 0, "TCP_TCC_ATOMIC_WITHOUT_RET_REQ_sum": 0, "TCC_EA0_ATOMIC_sum": 0}
SAME_SLOT = _LAUNCH | {
    "grid": 8192, "TCC_EA0_ATOMIC_sum": 128, "TCC_EA0_ATOMIC_LEVEL_sum": 247_931, "TCC_ATOMIC_sum": 128,
    "TCC_REQ_sum": 736, "TCP_TOTAL_CACHE_ACCESSES_sum": 128, "TA_FLAT_WAVEFRONTS_sum": 128,
    "TCP_TOTAL_ACCESSES_sum": 8192, "TA_TOTAL_WAVEFRONTS_sum": 128,
}  # fmt: skip
OWN_SLOT = SAME_SLOT | {
    "ns": 3245, "TCC_EA0_ATOMIC_sum": 512, "TCC_EA0_ATOMIC_LEVEL_sum": 195_422, "TCC_ATOMIC_sum": 512,
    "TCC_REQ_sum": 1088, "TCP_TOTAL_CACHE_ACCESSES_sum": 2048, "SQ_WAVE_CYCLES": 77_012, "SQ_WAIT_ANY": 73_490,
}  # fmt: skip
_COPY = _LAUNCH | _NO_ATOMICS | {
    "grid": 65536, "SQ_WAVES": 1024, "TA_FLAT_WAVEFRONTS_sum": 2048, "TA_FLAT_READ_WAVEFRONTS_sum": 1024,
    "TA_BUFFER_READ_WAVEFRONTS_sum": 0,
}  # fmt: skip
COALESCED = _COPY | {
    "ns": 3646, "TCP_TOTAL_CACHE_ACCESSES_sum": 8192, "SQ_WAVE_CYCLES": 784_550, "SQ_WAIT_ANY": 720_297,
}  # fmt: skip
UNCOALESCED = _COPY | {
    "ns": 5889, "TCP_TOTAL_CACHE_ACCESSES_sum": 131_072, "SQ_WAVE_CYCLES": 1_062_730, "SQ_WAIT_ANY": 1_048_873,
}  # fmt: skip
_TRANSPOSE = _COPY | {
    "grid": 1_048_576, "block": 1024, "SQ_WAVES": 16_384, "TA_FLAT_WAVEFRONTS_sum": 32_768,
    "TCP_TOTAL_CACHE_ACCESSES_sum": 131_072, "GRBM_GUI_ACTIVE": 157_000, "SQ_BUSY_CU_CYCLES": 2_551_000,
    "SQ_INSTS_LDS": 32_768, "lds_bytes": 4096,
}  # fmt: skip
CONFLICT = _TRANSPOSE | {"ns": 6249, "SQ_LDS_BANK_CONFLICT": 1_015_808, "SQ_LDS_IDX_ACTIVE": 1_081_344}
NO_CONFLICT = _TRANSPOSE | {"ns": 5649, "SQ_LDS_BANK_CONFLICT": 0, "SQ_LDS_IDX_ACTIVE": 65_536}
LOW_HIT = _COPY | {
    "ns": 7531, "grid": 262_144, "SQ_WAVES": 4096, "TA_FLAT_WAVEFRONTS_sum": 4608, "TA_FLAT_READ_WAVEFRONTS_sum": 512,
    "TCP_TOTAL_CACHE_ACCESSES_sum": 49_152, "TCC_HIT_sum": 11_464, "TCC_MISS_sum": 41_138, "TCC_EA0_RDREQ_sum": 33_026,
    "TCC_EA0_RDREQ_32B_sum": 0, "TCC_BUBBLE_sum": 32_768, "SQ_WAVE_CYCLES": 4_459_980, "SQ_WAIT_ANY": 4_100_000,
}  # fmt: skip
HIGH_HIT = LOW_HIT | {
    "ns": 14_621, "grid": 524_288, "SQ_WAVES": 8192, "TA_FLAT_WAVEFRONTS_sum": 827_392,
    "TA_FLAT_READ_WAVEFRONTS_sum": 819_200, "TCP_TOTAL_CACHE_ACCESSES_sum": 3_309_568, "TCC_HIT_sum": 19_496,
    "TCC_MISS_sum": 32_888, "TCC_EA0_RDREQ_sum": 16_568, "TCC_BUBBLE_sum": 16_384, "SQ_WAVE_CYCLES": 40_818_010,
    "SQ_WAIT_ANY": 32_471_544,
}  # fmt: skip
STRIDED = {
    "ns": 9_599_000, "grid": 131_072, "block": 64, "GRBM_GUI_ACTIVE": 116_103_612, "TA_BUSY_avr": 16_622_167,
    "SQ_WAVES": 2048, "SQ_WAVE_CYCLES": 9_907_508_224, "SQ_WAIT_ANY": 9_313_057_730,
    "TA_TOTAL_WAVEFRONTS_sum": 16_777_216, "TCP_TOTAL_CACHE_ACCESSES_sum": 1_073_741_824, "TCC_REQ_sum": 1_074_000_000,
    "TCC_HIT_sum": 1_006_000_000, "TCC_MISS_sum": 68_000_000, "TCC_EA0_ATOMIC_sum": 131_072,
    "TCC_EA0_ATOMIC_LEVEL_sum": 839_778_304, "SQ_ACTIVE_INST_VALU": 100_663_296, "SQ_VALU_MFMA_BUSY_CYCLES": 0,
    "SQ_LDS_IDX_ACTIVE": 0,
}  # fmt: skip
MI300A = {"product": "MI300A", "cus": 228, "simds": 912, "xccs": 6}
HALO = {
    "arch": "gfx1151", "product": "Radeon 8060S", "cus": 40, "simds": 80, "xccs": 1, "max_clock_mhz": 2900,
    "memory_channels": None, "max_memory_clock_mhz": None,
}  # fmt: skip
WASTED = {"contended-atomics", "many-atomics", "lanes-apart", "unused-bytes", "bank-conflicts-at-least"}


def kernel(counted, **agent):
    """Return the report of one launch, and its kernel."""
    places = {name: counted[name] for name in ("grid", "block", "lds_bytes") if name in counted}
    made = made_of({name: value for name, value in counted.items() if name not in places}, **agent)
    made.dispatches = made.dispatches.assign(**({"lds_bytes": 0} | places)).astype(made.dispatches.dtypes)
    report = profile_report.build(made)
    return report, report.kernels[0]


PAIRS = {
    "atomics": (OWN_SLOT, SAME_SLOT), "coalescing": (COALESCED, UNCOALESCED), "banks": (NO_CONFLICT, CONFLICT),
    "L2": (HIGH_HIT, LOW_HIT),
}  # fmt: skip


def test_a_micro_benchmark_s_cause_is_the_first_finding():
    """And the headline; with a gain that is bounded."""
    said = {}
    for _, bad in PAIRS.values():
        report, found = kernel(bad)
        group, *_ = group_findings(report)
        said[group.key] = group.sentence
        assert 0 < group.gain < 1
        assert (found.verdict.code, found.verdict.finding) == ("waste", group.key)
        assert summarise(report).headline.endswith(group.title)
    assert lines_of(said) == snapshot("""\
contended-atomics: contended atomics: each takes 1,937 cycles, where an uncontended one takes about 400; many lanes
    update one address: accumulate in registers, in the wave or in LDS first, and let one lane per block do the atomic
lanes-apart: uncoalesced access: 64 L1 accesses per vector memory instruction, where 16 are enough; neighboring lanes
    access addresses far apart (a row, or a large stride): give them adjacent addresses, or stage the tile in LDS
bank-conflicts-at-least: LDS bank conflicts cost 25 % of the kernel's time or more (94 % of the LDS's cycles); pad or
    swizzle the tile's rows
unused-bytes: reads 8.0 times the bytes that its loads can use (64 lanes of 16 bytes each) or more, with 22 % L2 hits:
    lines are fetched for a few of their bytes, or more than once; lanes and loops that access memory in order use
    whole lines\
""")


# AMD's own vcopy of 8 bytes a lane counts 64 accesses of lanes and 16 of the cache: its "Coalescing" says 25 %.
VCOPY = COALESCED | {
    "TCP_TOTAL_CACHE_ACCESSES_sum": 32_768, "TCP_TOTAL_ACCESSES_sum": 131_072, "TA_TOTAL_WAVEFRONTS_sum": 2048,
}  # fmt: skip


@pytest.mark.parametrize("counted", [*(good for good, _ in PAIRS.values()), VCOPY], ids=[*PAIRS, "8 bytes a lane"])
def test_the_good_one_of_a_pair_has_no_such_finding(counted):
    """Nor any other waste."""
    report, found = kernel(counted)
    assert WASTED.isdisjoint(group.key for group in group_findings(report))
    assert counted is not VCOPY or found.values["coalescing_pct"].value == pytest.approx(25)


def test_the_waste_is_the_cause_of_the_slower_one():
    """Whatever limit is near, in both directions; AMD's text names atomics that wait half as long again."""
    slower = STRIDED | {"ns": 10_900_000, "GRBM_GUI_ACTIVE": 131_800_000, "TCC_EA0_ATOMIC_LEVEL_sum": 1_251_432_000}
    said = {}
    for name, (good, bad) in {**PAIRS, "no limit explains it": (STRIDED, slower)}.items():
        if name != "L2":
            (_, old), (_, new) = (kernel(each, **(MI300A if good is STRIDED else {})) for each in (good, bad))
            ratio = new.time_ns[50] / old.time_ns[50]
            cause, back = cause_of(old, new, ratio), cause_of(new, old, 1 / ratio)
            said[name] = cause.text
            assert (cause.code, back.code) == ("waste", "waste")
    assert lines_of(said) == snapshot("""\
atomics: contended atomics: latency of atomics that leave L2 382 → 1,937 cycles
coalescing: uncoalesced access: vector L1 accesses per instruction 4 → 64 accesses/instruction
banks: LDS bank conflicts: LDS bank conflicts (of the kernel's time at least) 0 → 25.5 %
no limit explains it: contended atomics: latency of atomics that leave L2 6,407 → 9,548 cycles\
""")


def test_the_address_unit_is_nearest_for_lanes_a_row_apart():
    """It was "L2 bound at 55 %: larger tiles"; AMD's tool says 86 % and a coalescing of 25 %."""
    report, found = kernel(STRIDED, **MI300A)
    assert found.bounds.nearest.short == "address units 86 %"
    assert found.values["ta_busy_pct"].value == pytest.approx(85.9, abs=0.05)
    first, *others = group_findings(report)
    assert (first.key, first.gain) == ("lanes-apart", pytest.approx(0.75))
    assert next(each for each in others if each.key == "address-bound").gain == pytest.approx(0.141, abs=0.001)
    assert summarise(report).headline == "kernel 1 (100 % of GPU time): address units bound at 86 % of the time"


def test_a_busy_address_unit_that_only_waits_is_no_limit():
    """Whose lanes lie side by side waits for what is behind it: the memory comes first, and bounds the gain alone."""
    waits = STRIDED | {
        "TCP_TOTAL_CACHE_ACCESSES_sum": 67_108_864, "TCC_EA0_RDREQ_sum": 300_000_000, "TCC_EA0_RDREQ_32B_sum": 0,
        "TCC_BUBBLE_sum": 200_000_000, "TCC_EA0_WRREQ_sum": 0, "TCC_EA0_WRREQ_64B_sum": 0,
    }  # fmt: skip
    _, found = kernel(waits, **MI300A)
    assert [bound.key for bound in found.bounds.known[:1]] == ["memory"]
    _, alone = kernel({name: value for name, value in waits.items() if "EA0" not in name}, **MI300A)
    assert alone.verdict.brief == "vector memory bound"
    assert lines_of({"memory not counted": alone.verdict.text}) == snapshot("""\
memory not counted: vector memory bound at 86 % of the time: waiting for the caches and the memory included; it waits
    for loads and stores: fewer bytes, or fewer and wider accesses, make it faster\
""")
    assert alone.findings[0].gain is None


def test_far_from_every_limit_no_cause_is_made_up():
    """It said that instructions wait for each other, or at barriers; nothing showed that."""
    counted = COALESCED | {
        "ns": 36_460, "GRBM_GUI_ACTIVE": 612_528, "TCC_REQ_sum": 8192, "SQ_LDS_IDX_ACTIVE": 0,
        "SQ_LDS_BANK_CONFLICT": 0, "SQ_ACTIVE_INST_VALU": 6144, "SQ_VALU_MFMA_BUSY_CYCLES": 0,
        "TCC_EA0_RDREQ_sum": 4096, "TCC_BUBBLE_sum": 0, "TCC_EA0_RDREQ_32B_sum": 0, "TCC_EA0_WRREQ_sum": 4096,
        "TCC_EA0_WRREQ_64B_sum": 4096, "grid": 131_072, "SQ_WAVES": 2048,
    }  # fmt: skip
    _, found = kernel({name: value for name, value in counted.items() if name not in {"SQ_WAVE_CYCLES", "SQ_WAIT_ANY"}})
    assert lines_of({found.verdict.code: found.verdict.text, "next": found.verdict.remedy}) == snapshot("""\
far: far from every limit: memory 0 % is nearest; not counted: address translation, stalled writes, masked lanes
next: rocattn profile --metrics addresses writes compute -- COMMAND\
""")


def test_conflicts_at_an_lds_size_of_0_are_of_dynamic_lds():
    """What fits is an upper bound then, and says so."""
    counted = CONFLICT | {
        "ns": 6_249_000, "GRBM_GUI_ACTIVE": 105_000_000, "SQ_LEVEL_WAVES_ACCUM": 2.5e10, "lds_bytes": 0,
    }  # fmt: skip
    report, found = kernel(counted)
    keys = {group.key for group in group_findings(report)}
    assert ("dynamic-lds" in keys, "few-rounds" in keys) == (True, False)
    _, static = kernel(counted | {"lds_bytes": 4096})
    assert lines_of({"dynamic": found.occupancy.sentence, "static": static.occupancy.sentence}) == snapshot("""\
dynamic: registers, LDS and block size allow all 8 wave slots of a SIMD (at most: it uses LDS that is allocated at
    launch, and the files do not say how much)
static: registers, LDS and block size allow all 8 wave slots of a SIMD\
""")


@pytest.mark.parametrize(
    ("kib", "pct", "code", "told"),
    [
        (
            10_593,
            36,
            "not_counted",
            snapshot(
                "limit not known: memory (partly), vector units not counted; the nearest counted limit is memory at "
                "least 36 %"
            ),
        ),
        (
            23_000,
            77,
            "bound",
            snapshot(
                "memory bound at 77 % of 0.26 TB/s or more: reads alone, from a FETCH_SIZE that counts up to half "
                "too little on this GPU (ROCm/rocm-systems issue 2352); fewer bytes make it faster; fewer "
                "instructions do not"
            ),
        ),
    ],
)
def test_reads_of_a_strix_halo_are_a_lower_bound(kib, pct, code, told):
    """Its FETCH_SIZE counts up to a half too little: at least 36 % of 256 GB/s is known, not "memory not counted"."""
    _, found = kernel({"ns": 118_800, "FETCH_SIZE": kib}, **HALO)
    nearest = found.bounds.nearest
    assert (nearest.short, nearest.is_least) == (f"memory at least {pct} %", True)
    assert "issue 2352" in nearest.notes
    assert found.verdict.code == code
    assert found.verdict.text == told
    assert [limit.key for limit in found.bounds.uncounted] == ["memory", "vector"]


def test_counters_left_out_are_in_the_json():
    """With the metrics; the verdict does not say of what was left out that nobody counted it."""
    report, found = kernel(STRIDED | {"TCC_EA0_RDREQ_sum": 2.0**63, "TCC_EA0_RDREQ_32B_sum": 0, "TCC_BUBBLE_sum": 0})
    assert profile_report.to_json(report)["left_out"]["TCC_EA0_RDREQ_sum"] == ["left out in 1 launch"]
    assert "TCC_EA0_RDREQ_sum" not in found.counters
    twice = {"ns": 100_000, "SQ_WAVES": 4 * 8192, "SQ_ACTIVE_INST_VALU": 1000}
    _, wrong = kernel(twice)
    assert wrong.verdict.text == "limit not known: its counters were left out as impossible"
