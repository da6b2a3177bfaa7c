"""Findings of one rule are one group: what it gains together, what proves it, what to run next."""

import re
from dataclasses import replace

import pandas as pd
import pytest
from inline_snapshot import snapshot

from rocattn_profiling.profile.report import report as profile_report
from rocattn_profiling.profile.report.groups import COPIES, group_findings, to_json

from ..kit import lines_of
from .test_limits import BMM1, BMM2, made_of, report
from .test_summary import kernels_of


def groups(*kernels):
    """Return the groups of kernels: (name, ns), each one block on 304 compute units."""
    return {group.key: group for group in group_findings(profile_report.build(kernels_of(*kernels)))}


FILL = "__amd_rocclr_fillBufferAligned"


def test_copies_that_take_long_are_a_finding():
    """97 % of a real run's time, and the report spoke of the kernels; each launch by itself has no such group."""
    launches = (("__amd_rocclr_copyBuffer", 90_000), ("mine", 10_000))
    assert groups(*launches)[COPIES].gain == pytest.approx(0.9)
    assert groups(*launches)[COPIES].who == "copies and fills of the HIP runtime"  # the terminal lists no such kernel
    assert COPIES not in groups(("__amd_rocclr_copyBuffer", 5_000), ("mine", 95_000))
    each = profile_report.build(kernels_of(*launches), per="dispatch")
    assert COPIES not in {group.key for group in group_findings(each)}


def test_copies_of_every_launch_are_not_of_the_set_up():
    """151 fills for 150 launches; two of the set-up may be ignored."""
    often, once = (
        groups(*[(FILL, ns)] * fills, *[("mine", 20_000)] * 11)[COPIES].text for fills, ns in ((12, 9_000), (2, 90_000))
    )
    assert lines_of({"12 fills": often, "2 fills": once}) == snapshot("""\
12 fills: 12 for 11 launches: keep data on the GPU between launches, and do not clear memory that is overwritten
    (hipMemcpy, hipMemset)
2 fills: 2 for 11 launches: keep data on the GPU between launches, and do not clear memory that is overwritten
    (hipMemcpy, hipMemset); ignore this if only the setup copies\
""")


@pytest.mark.parametrize("first", [BMM1, BMM2])
def test_a_finding_and_its_counters_are_of_one_pass(first):
    """Two passes of one run counted the same and differ: one's finding stood above the other's counters."""
    made = made_of(first)
    made.dispatches = pd.concat([made.dispatches, made.dispatches.assign(**{"pass": "again"})], ignore_index=True)
    made.dispatches["pass"] = pd.Categorical(made.dispatches["pass"], categories=["run", "again"])
    other = made_of(BMM2 if first is BMM1 else BMM1).counters.assign(row=1).astype({"row": "int32"})
    counters = pd.concat([made.counters, other], ignore_index=True)
    made.counters = counters.astype({"counter": "category"})
    found = {group.key: group for group in group_findings(profile_report.build(made))}
    for group in found.values():
        assert group.counters == {name: first[name] for name in group.counters}
    conflicts = found["bank-conflicts-at-least"]
    share = 100 * conflicts.counters["SQ_LDS_BANK_CONFLICT"] / conflicts.counters["SQ_LDS_IDX_ACTIVE"]
    assert re.search(r"\((\d+) % of the LDS", conflicts.sentence)[1] == f"{share:.0f}"
    assert sum("pass again repeats" in line for line in profile_report.build(made).problems) == 1


def test_findings_of_one_rule_are_one_group():
    """22 list items, each worth a third of a percent, were one piece of news."""
    made = groups(*((f"small_{n}", 6000 + n) for n in range(22)), ("long", 2_000_000))
    few = made["few-blocks"]
    assert len(few.kernels) == 23
    assert few.gain == pytest.approx(303 / 304)
    assert few.text.startswith(few.title)
    assert "together" in few.gain_text
    assert few.kernels[0] == 1, "most to gain comes first"


def test_what_is_worth_less_than_a_percent_is_folded():
    """By its gain; without one, by the time of its kernels."""
    made = groups(("tiny", 2000), ("small", 6000), ("long", 1_000_000))
    assert made["launch-bound"].gain is None
    assert made["launch-bound"].is_small
    assert not made["few-blocks"].is_small
    folded = {group["key"]: group["folded"] for group in to_json(list(made.values()))}
    assert folded == {"launch-bound": True, "few-blocks": False}


def test_a_gain_that_one_kernel_lacks_is_not_known_for_all():
    """Without times neither has a share of them, and nothing is folded."""
    made = report(BMM2)
    (kernel,) = made.kernels
    made.kernels = [replace(kernel, time_ns={}, findings=[replace(each, gain=None) for each in kernel.findings])]
    first, *_ = group_findings(made)
    assert (first.share, first.gain, first.is_small) == (None, None, False)
