"""Launches are judged by kernel, shape and GPU: no sentence has a number that no launch has."""

import numpy as np
import pytest

from rocattn_profiling.profile.ingest.table import AGENT_DTYPES, COUNTER_DTYPES, DISPATCH_DTYPES, Profile
from rocattn_profiling.profile.metrics.units import long_launches
from rocattn_profiling.profile.report import pages as profile_pages
from rocattn_profiling.profile.report import report as profile_report

from ..kit import frame
from .test_report import MI300X
from .test_terminal import screen

READS = {"TCC_EA0_RDREQ_sum": 6_250_000, "TCC_EA0_RDREQ_32B_sum": 0, "TCC_BUBBLE_sum": 0, "TCC_EA0_WRREQ_sum": 0}


def launched(*launches, passes=1, agents=(4, 5)):
    """Return a profile of launches: dictionaries with blocks and ns, and with kernel, gpu (0 or 1) and process.

    Each pass has all of them, and ``times`` 400 MB of reads where a launch says that.
    """
    rows, counts, clock = [], [], 0
    for of_pass in range(passes):
        for number, each in enumerate(launches):
            counts += [
                (len(rows), name, value * each.get("times", 1)) for name, value in READS.items() if "times" in each
            ]
            rows.append({
                "process": each.get("process", 7), "dispatch": number, "pass": f"run_{of_pass}",
                "kernel": each.get("kernel", "fmha"), "grid": each["blocks"] * each.get("block", 256),
                "block": each.get("block", 256), "agent": each.get("gpu", 0), "start_ns": clock,
                "end_ns": clock + each["ns"], "vgprs": 64, "lds_bytes": 0, "scratch_bytes": 0,
            })  # fmt: skip
            clock += each["ns"] + 1000
    table = frame(rows, DISPATCH_DTYPES)
    counted = frame(counts, COUNTER_DTYPES)
    gpus = [MI300X | {"number": number} for number in agents]
    described = frame(gpus, AGENT_DTYPES)
    return Profile(dispatches=table, counters=counted, agents=described)


def test_prefill_and_decode_of_one_kernel_are_two_groups():
    """One launch of 4,096 blocks and 20 of 32 were "226 blocks, 78 units idle, at most 26 %" of a kernel."""
    made = profile_report.build(
        launched({"blocks": 4096, "ns": 1_000_000}, *[{"blocks": 32, "ns": 8000}] * 20, agents=(4,))
    )
    prefill, decode = made.kernels
    assert ([each.shape.text for each in made.kernels]) == ["4,096 blocks of 256", "32 blocks of 256"]
    assert (prefill.launches, prefill.findings, decode.launches) == (1, [], 20)
    (few,) = decode.findings
    assert few.sentence.startswith("fewer blocks (32) than compute units (304): 272 of them")
    assert few.gain == pytest.approx(160 / 1160 * (1 - 32 / 304))
    for text in (screen(made), profile_pages.profile_html(made, 0), profile_pages.profile_markdown(made)):
        assert "226" not in text
        assert "4,096 blocks of 256" in text
    first, second = profile_report.to_json(made)["kernels"]
    assert (first["shape"], second["shape"]) == (
        {"block": 256, "blocks": [4096, 4096]}, {"block": 256, "blocks": [32, 32]},
    )  # fmt: skip


def test_many_sizes_are_classes_judged_by_all_their_launches():
    """Seven sizes: those within a factor of two are a class, of which a range is said, never a mean."""
    sizes = (16, 20, 31, 33, 60, 400, 500)
    made = profile_report.build(launched(*[{"blocks": size, "ns": 10_000} for size in sizes], agents=(4,)))
    by_shape = {each.shape.text: each for each in made.kernels}
    assert list(by_shape) == ["16 to 31 blocks of 256", "33 to 60 blocks of 256", "400 to 500 blocks of 256"]
    (few,) = by_shape["16 to 31 blocks of 256"].findings
    assert few.sentence.startswith("fewer blocks (16 to 31) than compute units (304): 273 to 288 of them")
    assert few.gain == pytest.approx(3 / 7 * (1 - 16 / 304)), "what the smallest may gain"
    assert not by_shape["400 to 500 blocks of 256"].findings
    wide = profile_report.build(
        launched(*[{"blocks": size, "ns": 9000} for size in (200, 250, 290, 320, 350, 380, 390)])
    )
    assert not wide.kernels[0].findings, "some of its launches have a block for every unit"
    blocks = [
        *[{"blocks": 64, "block": 64 << n, "ns": 9000} for n in range(4)],
        *[{"blocks": n, "ns": 9} for n in range(1, 9)],
    ]
    assert {each.shape.block for each in profile_report.build(launched(*blocks)).kernels} == {64, 128, 256, 512}


def test_equal_gpus_share_a_row_and_a_straggler_has_its_own():
    """One row said 51 % of 5.32 TB/s of a GPU at 76 % and one at 38 %."""
    equal = [{"blocks": 2432, "ns": 100_000 + 3000 * (n % 2), "gpu": n % 4, "times": 1} for n in range(12)]
    (one,) = profile_report.build(launched(*equal, agents=(4, 5, 6, 7))).kernels
    assert (one.where, one.gpus, one.launches) == ("4 GPUs", (4, 5, 6, 7), 12)
    slow = [each | ({"ns": 200_000} if each["gpu"] == 1 else {}) for each in equal]
    made = profile_report.build(launched(*slow, agents=(4, 5, 6, 7)))
    others, straggler = made.kernels
    assert ([each.where for each in made.kernels], straggler.gpus) == (["3 GPUs", "GPU 5"], (5,))
    assert straggler.values["read_gbps"].value == pytest.approx(2000)
    assert others.values["read_gbps"].value == pytest.approx(400_000_000 / 101_500, rel=0.02)
    found = next(each for each in straggler.findings if each.key == "straggler")
    assert found.sentence.startswith("GPU 5 takes 2.0 times as long as the others for the same work")
    assert found.gain == pytest.approx(straggler.time_share * (1 - 101_500 / 200_000), rel=0.02)
    assert not any(each.key == "straggler" for each in others.findings)
    assert (straggler.verdict.code, straggler.verdict.finding) == ("straggler", "straggler")
    assert "GPU 5" in screen(made)
    assert "GPU 5" in profile_pages.profile_html(made, 0)
    assert "GPU 5" in profile_pages.profile_markdown(made)


def test_gpus_that_differ_less_than_launches_are_one_group():
    """Medians of 10 and 12 us, where launches take 8 to 14, are no straggler; nor are single launches of processes."""
    noisy = [{"blocks": 2432, "ns": 1000 * ns + 2000 * gpu, "gpu": gpu} for gpu in (0, 1) for ns in (8, 9, 10, 12, 14)]
    assert len(profile_report.build(launched(*noisy)).kernels) == 1
    once = [{"blocks": 2432, "ns": 10_000 + 3000 * n, "process": n} for n in range(5)]
    (all_of_them,) = profile_report.build(launched(*once, agents=(4,))).kernels
    assert all_of_them.where == "5 processes"


def test_ranks_on_gpus_of_one_number_are_told_apart():
    """Two hosts describe their GPU in the same words."""
    ranks = [{"blocks": 2432, "ns": 100_000 * (1 + rank), "process": 70 + rank} for rank in (0, 1) for _ in range(4)]
    slow, fast = profile_report.build(launched(*ranks, agents=(4,))).kernels
    assert (slow.where, fast.where) == ("process 2 of 2", "process 1 of 2")
    assert slow.findings[0].sentence.startswith("process 2 of 2 takes 2.0 times as long as process 1 of 2")


def test_passes_are_joined_gpu_by_gpu():
    """A launch that one pass lacks took its place in the other GPU's; GPUs of another number stand for the same."""
    work = [
        {"blocks": 2432, "ns": 100_000 * (1 + gpu), "gpu": gpu, "times": 1 + gpu} for gpu in (0, 1) for _ in range(3)
    ]
    made = launched(*work, passes=2, agents=(4, 5, 2, 3))
    lost = made.dispatches.index[made.dispatches["pass"].eq("run_1") & (made.dispatches["dispatch"] == 0)]
    made.dispatches = made.dispatches.drop(lost).reset_index(drop=True)
    made.counters = made.counters[~made.counters["row"].isin(lost)]
    made.counters.loc[made.counters["row"] > lost[0], "row"] -= 1
    second = made.dispatches["pass"].eq("run_1")
    made.dispatches.loc[second, "agent"] += 2
    slow, fast = profile_report.build(made).kernels
    assert (slow.where, slow.launches, fast.where, fast.launches) == ("GPU 5", 3, "GPU 4", 3)
    assert [each.values["read_bytes"].mean for each in (slow, fast)] == [800_000_000, 400_000_000]
    assert (slow.time_ns[0], fast.time_ns[100]) == (200_000, 100_000)


def test_a_rare_long_launch_is_told_and_hides_no_overhead():
    """20 us in the mean, 2 us in the median: starting them costs as much, and one of them is most of the time."""
    made = profile_report.build(
        launched(*[{"blocks": 608, "ns": 2000}] * 99, {"blocks": 608, "ns": 1_802_000}, agents=(4,))
    )
    (kernel,) = made.kernels
    assert kernel.long.text == "1 of 100 launches is 90 % of its time: 1.80 ms"
    assert {each.key: each.gain for each in kernel.findings} == {
        "long-launches": pytest.approx(0.9), "launch-bound": None,
    }  # fmt: skip
    assert "2.0 µs per launch" in kernel.verdict.text
    assert kernel.long.text in screen(made)
    assert profile_report.to_json(made)["kernels"][0]["long_launches"]["share"] == pytest.approx(0.901, abs=0.001)


def test_few_launches_that_hold_half_of_the_time_are_counted():
    """Three of 100; times that differ by less than three times are no such launches."""
    assert long_launches(np.array([1000.0] * 97 + [40_000.0] * 3)).text == (
        "3 of 100 launches are 55 % of its time, the longest: 40.0 µs"
    )
    assert long_launches(np.array([1000.0] * 50 + [2000.0] * 50)) is None
    assert long_launches(np.array([1.0, 100.0])) is None


def test_copies_of_the_runtime_stay_one_row():
    """Of every size and on every GPU: nobody tunes them."""
    name = "__amd_rocclr_copyBuffer"
    copies = [{"blocks": size, "ns": 1000 * size, "kernel": name, "gpu": size % 2} for size in (1, 2, 3)]
    (row,) = profile_report.build(launched(*copies)).kernels
    assert (row.launches, row.shape.text) == (3, "")
