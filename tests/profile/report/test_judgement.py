"""The judgement on cases whose answer experts know: the bound, the first finding and the next command agree."""

import pandas as pd
import pytest
from inline_snapshot import snapshot

from rocattn_profiling.profile.report import report as profile_report
from rocattn_profiling.profile.report.groups import group_findings
from rocattn_profiling.profile.report.summary import summarise

from .test_causes import COPY
from .test_limits import BMM1, BMM2, made_of

GEMM = COPY | {
    "ns": 100_000, "GRBM_GUI_ACTIVE": 1_600_000, "SQ_INSTS": 20_000_000, "SQ_ACTIVE_INST_VALU": 24_000_000,
    "SQ_VALU_MFMA_BUSY_CYCLES": 199_000_000, "SQ_LDS_IDX_ACTIVE": 25_000_000, "SQ_INSTS_LDS": 6_000_000,
    "TCP_TOTAL_CACHE_ACCESSES_sum": 12_000_000, "TA_FLAT_WAVEFRONTS_sum": 3_000_000,
}  # fmt: skip
"""A large product: the matrix units of 304 compute units are busy in 82 % of the cycles."""
WAITS = COPY | {"ns": 200_000, "GRBM_GUI_ACTIVE": 3_200_000, "SQ_WAIT_ANY": 80_000_000, "SQ_LEVEL_WAVES_ACCUM": 9.7e8}
"""The copy's bytes in five times its time, most of which a quarter of the waves that fit spend waiting."""
FEW = WAITS | {"SQ_WAVES": 400, "SQ_WAVE_CYCLES": 170_000, "SQ_LEVEL_WAVES_ACCUM": 2.95e7}
"""400 blocks of one wave for 1,216 SIMDs, as of a product on an MI100 (composable_kernel 44f1cc1, my_profile_data)."""


@pytest.mark.parametrize(
    ("counted", "code", "first", "brief"),
    [
        (BMM1, "bound", "l1-bound", "L1 bound"),
        (BMM2, "bound", "lds-bound", "LDS bound"),
        (COPY, "bound", "memory-bound", "memory bound"),
        (GEMM, "bound", "matrix-bound", "matrix units bound"),
        (WAITS, "far", "latency-bound-waiting", "waiting"),
        (FEW, "idle_units", "few-waves", "idle units"),
    ],
    ids=["partial lines", "unaligned LDS", "copy", "product", "waits", "few waves"],
)
def test_the_bound_and_the_first_finding_agree(counted, code, first, brief):
    """Of one kernel: whatever else its numbers say comes behind what bounds it."""
    made = made_of(counted)
    if counted is FEW:
        made.dispatches = made.dispatches.assign(grid=400 * 64, block=64)
    report = profile_report.build(made)
    (kernel,) = report.kernels
    assert (kernel.verdict.code, kernel.verdict.finding, kernel.verdict.brief) == (code, first, brief)
    group, *others = group_findings(report)
    assert group.key == first
    assert not {"latency-bound", "latency-bound-waiting"} & {each.key for each in others}
    assert group.counters
    summary = summarise(report)
    assert (summary.unknown, summary.folded) == ([], [])


def test_a_memory_bound_copy_is_not_told_to_compute_less():
    """No finding about vector units, lanes or occupancy: bytes are all there is, and copies are not faster."""
    (group,) = group_findings(profile_report.build(made_of(COPY)))
    assert group.gain == pytest.approx(0.004, abs=0.001), "of 4.18 TB/s, not 22 % of 5.32 TB/s"
    assert group.sentence == snapshot(
        "memory bound at 78 % of 5.32 TB/s: 100 % of the 4.2 TB/s that copies reach on it; fewer bytes make it "
        "faster; fewer instructions do not"
    )
    assert group.gain_text == "at most 0.41 % of GPU time, more with fewer bytes"
    assert not group.is_small
    assert {"TCC_EA0_RDREQ_sum", "TCC_EA0_WRREQ_sum"} <= group.counters.keys()


def test_a_swarm_of_tiny_kernels_is_bound_by_its_launches():
    """Forty kernels of 2 us and one block each: to split them further, as was advised, makes none of them faster."""
    made = made_of({"ns": 2000})
    row = made.dispatches
    rows = [row.assign(kernel=f"pointwise_{n}", grid=256, start_ns=3000 * n, end_ns=3000 * n + 2000) for n in range(40)]
    made.dispatches = pd.concat(rows, ignore_index=True).astype(row.dtypes.to_dict() | {"kernel": "category"})
    report = profile_report.build(made)
    assert {kernel.verdict.code for kernel in report.kernels} == {"short"}
    (group,) = group_findings(report)
    assert (group.key, len(group.kernels)) == ("launch-bound", 40)
    assert not group.is_small
    assert summarise(report).headline.startswith("40 kernels (100 % of GPU time)")


def test_a_short_kernel_near_a_limit_is_bound_by_that():
    """2 us of a copy at the memory's peak: fewer launches would not move its bytes."""
    short = {name: value if name == "SQ_WAVES" else value // 20 for name, value in COPY.items()}
    report = profile_report.build(made_of(short))
    assert report.kernels[0].verdict.finding == "memory-bound"
    assert [group.key for group in group_findings(report)] == ["memory-bound"]
