"""Why a metric is not known: which counters were not collected, by what to collect them, which facts the files lack."""

from rocattn_profiling.profile.report.verdict import Gap, gap_of

GPU = {"cus", "xcds", "clock_mhz", "duration_ns", "peak_gbps", "l2_channels"}


def test_missing_counters_are_named_with_their_group():
    """Those of the first formula; every pass has the anchors, so no group needs them."""
    gap = gap_of("lds_busy_pct", "gfx942", {"SQ_WAVES": 1}, GPU)
    assert gap == Gap(("GRBM_GUI_ACTIVE", "SQ_LDS_IDX_ACTIVE"), (), "lds")
    assert gap_of("memory_pct", "gfx1153", {}, GPU).ask == "memory"


def test_a_metric_of_no_group_is_asked_for_by_itself():
    """Six groups have parts of it."""
    assert gap_of("arithmetic_intensity", "gfx942", {}, GPU).ask == "arithmetic_intensity"


def test_facts_are_named_where_the_counters_are_there():
    """With or without "_sum": a clock of 0 in the file is not known."""
    counted = {"TCC_REQ": 1}
    assert gap_of("l2_pct", "gfx942", counted, GPU - {"clock_mhz"}) == Gap((), ("clock_mhz",), "")
    assert gap_of("l2_pct", "gfx942", counted, GPU) == Gap((), (), ""), "its value was left out"
