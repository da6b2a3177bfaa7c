"""What bounds a kernel: the nearest of all limits that counters show, and which they do not show."""

import pandas as pd
import pytest
from inline_snapshot import snapshot

from rocattn_profiling.profile.ingest.table import COUNTER_DTYPES, DISPATCH_DTYPES, Profile
from rocattn_profiling.profile.report import report as profile_report
from rocattn_profiling.profile.report.limits import NEAR, bounds, limits

from ..kit import agents, frame, lines_of
from .test_report import MI300X

# A launch of two batched matrix products of BF16 on an MI300X (HGLiu1998/batched_gemm 2f96e49, workloads/bmm1 and
# bmm2; rocprof-compute 3.3.0): the mean of 150. The rows of the second's tile in LDS are not aligned.
BMM1 = {
    "ns": 29054, "GRBM_GUI_ACTIVE": 591245, "SQ_WAVES": 8192, "SQ_INSTS": 5677056, "SQ_WAIT_ANY": 49117471,
    "SQ_WAVE_CYCLES": 82987441, "SQ_ACTIVE_INST_VALU": 2211840, "SQ_VALU_MFMA_BUSY_CYCLES": 4194304,
    "SQ_ACTIVE_INST_SCA": 1081344, "SQ_LDS_IDX_ACTIVE": 4194304, "SQ_LDS_BANK_CONFLICT": 2097152,
    "SQ_LDS_UNALIGNED_STALL": 0, "SQ_INSTS_LDS": 524288, "TCP_TOTAL_CACHE_ACCESSES_sum": 11010048,
    "TA_FLAT_WAVEFRONTS_sum": 786432, "TA_BUFFER_WAVEFRONTS_sum": 0, "TCC_REQ_sum": 2220038,
    "TCC_EA0_RDREQ_sum": 411195, "TCC_EA0_RDREQ_32B_sum": 0, "TCC_BUBBLE_sum": 410802, "TCC_EA0_WRREQ_sum": 262274,
    "TCC_EA0_WRREQ_64B_sum": 262274,
}  # fmt: skip
BMM2 = BMM1 | {
    "ns": 37482, "GRBM_GUI_ACTIVE": 730939, "SQ_WAIT_ANY": 63897609, "SQ_WAVE_CYCLES": 109738272,
    "SQ_ACTIVE_INST_VALU": 2220032, "SQ_ACTIVE_INST_SCA": 1073152, "SQ_LDS_IDX_ACTIVE": 18874368,
    "SQ_LDS_BANK_CONFLICT": 1048576, "SQ_LDS_UNALIGNED_STALL": 15728640, "TCC_REQ_sum": 2125496,
    "TCC_EA0_RDREQ_sum": 408823, "TCC_BUBBLE_sum": 408866,
}  # fmt: skip
UNLIMITED = {"l2_pct": 0.0, "l1_pct": 0.0, "lds_busy_pct": 0.0, "valu_busy_pct": 0.0, "matrix_busy_pct": 0.0}


def report(counted, roofs=None, **agent):
    """Return the report of one launch with these counters."""
    return profile_report.build(made_of(counted, roofs, **agent))


def made_of(counted, roofs=None, **agent):
    """Return the profile of one launch with these counters."""
    row = {
        "process": 7, "dispatch": 1, "pass": "run", "kernel": "bmm", "grid": 524288, "block": 256, "wave_size": 64,
        "vgprs": 48, "agprs": 0, "lds_bytes": 2560, "scratch_bytes": 0, "agent": 0, "start_ns": 0,
        "end_ns": counted["ns"], "queue": 1,
    }  # fmt: skip
    counters = [(0, name, value) for name, value in counted.items() if name != "ns"]
    made = Profile(
        dispatches=frame([row], DISPATCH_DTYPES),
        counters=frame(counters, COUNTER_DTYPES),
        agents=agents(MI300X | agent),
    )
    if roofs is not None:
        made.roofs = roofs
    return made


def test_a_kernel_whose_lds_is_busy_is_bound_by_it():
    """It was told to wait for memory, at 35 %, and that 57 % could be gained by more waves."""
    (kernel,) = report(BMM2).kernels
    nearest = kernel.bounds.nearest
    assert (nearest.key, nearest.is_least, nearest.pct) == ("lds", True, pytest.approx(78.9, abs=0.05))
    of_long_cycles = kernel.values["lds_busy_pct"].value
    assert of_long_cycles == pytest.approx(68.0, abs=0.05), "of cycles that the profiler lengthened"
    first, *others = kernel.findings
    assert first.gain == pytest.approx(0.211, abs=0.001)
    assert lines_of({first.key: first.sentence}) == snapshot("""\
lds-bound: LDS bound at 79 % of the time or more: 36 cycles per instruction, 83 % of them lost to unaligned addresses,
    6 % to bank conflicts; rows padded to a multiple of the access size make it faster; next is L1 at least 46 %\
""")
    assert not any("latency" in each.key or "rounds" in each.key for each in others)


def test_lanes_that_lie_apart_are_bound_by_the_vector_l1():
    """14 accesses per instruction are what 64 lanes side by side need; 28 are not, at the same share of the peak."""
    (kernel,) = report(BMM1).kernels
    assert [(each.key, round(each.pct, 1)) for each in kernel.bounds.known[:4]] == [
        ("l1", 59.4), ("memory", 44.9), ("l2", 28.4), ("lds", 22.6),
    ]  # fmt: skip
    (apart,) = report(BMM1 | {"TA_FLAT_WAVEFRONTS_sum": 393216}).kernels
    assert apart.findings[0].gain == pytest.approx(1 - 16 / 28), "what wastes the limit comes first"
    found = {f"{n} accesses, {each.key}": each.sentence
             for n, of in ((14, kernel.findings[:1]), (28, apart.findings[:2])) for each in of}  # fmt: skip
    assert lines_of(found) == snapshot("""\
14 accesses, l1-bound: L1 bound at 59 % of its accesses or more: fewer loads make it faster: wider ones, or tiles kept
    in LDS or registers; next is memory 45 %
28 accesses, lanes-apart: uncoalesced access: 28 L1 accesses per vector memory instruction, where 16 are enough;
    neighboring lanes access addresses far apart (a row, or a large stride): give them adjacent addresses, or stage
    the tile in LDS
28 accesses, l1-bound: L1 bound at 59 % of its accesses or more: 28 per instruction, where 16 are enough for adjacent
    addresses; loads of adjacent addresses need fewer; next is memory 45 %\
""")


@pytest.mark.parametrize(
    ("numbers", "arch", "uncounted", "uncountable"),
    [
        ({"memory_pct": 30.0}, "gfx1100", ["vector"], ["l2", "l1", "lds", "matrix"]),
        ({"write_gbps": 2.0, "peak_gbps": 8.0}, "gfx1100", ["memory", "vector"], ["l2", "l1", "lds", "matrix"]),
        ({}, "", ["memory", "l2", "l1", "lds", "vector", "matrix"], []),
        (UNLIMITED | {"memory_pct": 140.0}, "gfx942", ["memory"], []),
    ],
    ids=["no counter of matrix units", "reads not counted", "no GPU", "an Infinity Cache answered a part"],
)
def test_uncountable_limits_differ_from_uncounted_ones(numbers, arch, uncounted, uncountable):
    """Without a GPU nothing is taken for either; traffic above the memory's peak is no share of it."""
    found = bounds(numbers, arch)
    assert [limit.key for limit in found.uncounted] == uncounted
    assert [limit.key for limit in found.uncountable] == uncountable
    is_known = "memory" not in uncounted or "write_gbps" in numbers  # what was written is the least
    assert ("memory" in {bound.key for bound in found.known}) == is_known


MI210 = {"memory_pct": 53.0, "read_gbps": 483.0, "write_gbps": 384.0, "peak_gbps": 1638.4}


@pytest.mark.parametrize(
    ("numbers", "arch", "low", "pct", "is_least", "where"),
    [
        ({"lds_busy_pct": 60.0}, "gfx942", set(), 60, False, "at 60 % of the time"),
        ({"lds_busy_pct": 60.0}, "gfx942", {"lds_busy_pct"}, 60, True, "at 60 % of the time or more"),
        ({"lds_busy_pct": 60.0, "lds_time_pct": 70.0}, "gfx942", {"lds_busy_pct"}, 70, True,
         "at 70 % of the time or more"),
        ({"write_gbps": 321.0, "peak_gbps": 640.0}, "gfx1201", set(), 50.16, True, "at 50 % of 0.64 TB/s or more"),
        (MI210, "gfx90a", set(), 53, False, "at 53 % of 1.64 TB/s"),
    ],
    ids=["exact", "the profiler's own work is in its cycles", "more over the time", "writes alone", "both ways"],
)  # fmt: skip
def test_a_share_may_be_a_lower_bound(numbers, arch, low, pct, is_least, where):
    """Over too many cycles, or of a part of the traffic; the larger of two counts."""
    nearest = bounds(numbers, arch, low).nearest
    assert (nearest.pct, nearest.is_least, nearest.where) == (pytest.approx(pct, abs=0.01), is_least, where)


def test_the_measured_bandwidth_stands_beside_the_peak():
    """867 GB/s are 53 % of an MI210's data sheet and 62 % of what a copy reaches."""
    notes = bounds(MI210 | {"measured_gbps": 1389.0}, "gfx90a").nearest.notes
    assert notes == snapshot("62 % of what roofline.csv's benchmark reached")


def test_samples_are_no_next_step_for_a_memory_bound_kernel():
    """They show where waves wait for the bytes, not which bytes are too many; caches come first where not counted."""
    assert bounds(MI210, "gfx90a").nearest.command == "rocattn profile --metrics caches -- COMMAND"
    assert bounds(MI210 | {"l2_hit_pct": 40.0}, "gfx90a").nearest.command == ""


def test_the_l1_stands_beside_its_benchmark():
    """33.0 TB/s, 64 bytes an access: 59 % of the peak are 74 % of that, and no more than the rest can be gained."""
    roof = {"device": 0, "roof": "L1", "unit": "GB/s", "low": 1.0, "high": 1.0, "file": "run/roofline.csv"}
    (kernel,), (beyond,) = (report(BMM1, pd.DataFrame([roof | {"mean": mean}])).kernels for mean in (32965.0, 20000.0))
    assert lines_of({kernel.findings[0].key: kernel.findings[0].sentence}) == snapshot("""\
l1-bound: L1 bound at 59 % of its accesses or more: 74 % of what roofline.csv's benchmark reached; fewer loads make it
    faster: wider ones, or tiles kept in LDS or registers; next is memory 45 %\
""")
    assert kernel.findings[0].gain == pytest.approx(1 - 11010048 * 64 / 29054 / 32965, abs=0.001)
    assert beyond.bounds.nearest.of_measured is None, "a benchmark that is slower says nothing"
    assert beyond.findings[0].gain == pytest.approx(0.406, abs=0.001)


def test_what_lds_moved_is_no_more_than_its_instructions_can():
    """rocprof-compute's theoretical 60,874 GB/s stand beside it under its name; 8 bytes a lane are 7,162."""
    (kernel,) = report(BMM2).kernels
    values = kernel.values
    assert values["lds_gbps"].value == pytest.approx(60_874, rel=0.001)
    assert values["lds_gbps"].title == "LDS bandwidth, theoretical (rocprof-compute's)"
    assert values["lds_moved_gbps"].value == pytest.approx(524288 * 64 * 8 / 37482, rel=0.001)
    whole = {name: value for name, value in BMM2.items() if name != "SQ_LDS_UNALIGNED_STALL"}
    (without,) = report(whole).kernels
    assert without.values["lds_moved_gbps"].value == pytest.approx(524288 * 1024 / 37482, rel=0.001), "at most"


def test_uncounted_limits_are_listed():
    """Without LDS and L1 counters nothing is near, and nothing is said to be far."""
    few = {name: value for name, value in BMM2.items() if "LDS" not in name and "TCP" not in name}
    (kernel,) = report(few).kernels
    assert [limit.key for limit in kernel.bounds.uncounted] == ["l1", "lds"]
    assert kernel.bounds.uncountable == ()
    assert kernel.findings == [], "its occupancy is over cycles that are not all its own"


@pytest.mark.parametrize("limit", limits(), ids=lambda limit: limit.key)
def test_every_limit_can_be_reached(limit):
    """With a share above `NEAR` it bounds the kernel, with advice; each is counted by metrics that there are."""
    names = {name for formula in (*limit.exact, *limit.at_least) for name in formula.names}
    numbers = dict.fromkeys(names, 80.0)
    nearest = bounds(numbers, "gfx942").nearest
    assert nearest.key == limit.key
    assert nearest.pct >= NEAR
    assert nearest.advice
    assert limit.countable("gfx942")
