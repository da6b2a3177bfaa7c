"""What a report says first: the time, where waiting dominates, and never that a collective should split its work."""

import json
import re

import pytest

from rocattn_profiling.cli import main
from rocattn_profiling.pages.time_strips import time_strips
from rocattn_profiling.profile.ingest.table import COUNTER_DTYPES
from rocattn_profiling.profile.report import pages as profile_pages
from rocattn_profiling.profile.report import report as profile_report
from rocattn_profiling.profile.report.groups import COLLECTIVES, group_findings
from rocattn_profiling.profile.report.summary import summarise

from ..ingest.generators import Launch, v3_agents, v3_trace
from ..metrics.test_timeline import FILL, RCCL, job, table, traced
from .test_limits import BMM2
from .test_limits import report as counted
from .test_summary import kernels_of
from .test_terminal import lines


def told(launches, copies=(), **columns):
    """Return the report of launches, with what it says before its table of kernels."""
    made = profile_report.build(traced(launches, copies, **{"vgprs": 64, "scratch_bytes": 64} | columns))
    summary = summarise(made)
    last = [summary.last] if summary.last else []
    head = [*summary.before, summary.headline, *summary.after, summary.others, *last]
    return made, [line[:1].upper() + line[1:] for line in head]


def steps(*parts, count=40):
    """Return a program's launches of (kernel, ns, gap before it), one after another."""
    rows, now = [], 0
    for _ in range(count):
        for name, ns, gap in parts:
            rows.append((name, now + gap, now + gap + ns))
            now += gap + ns
    return rows


def test_a_collective_is_no_kernel_with_too_few_blocks():
    """56 blocks of RCCL on 304 compute units: "split the work over keys" was the headline, spills the second."""
    made, head = told(steps((RCCL, 1_200_000, 0), ("fmha", 300_000, 20_000), count=10))
    assert head[:3] == [
        "The GPU is busy 99 % of 15.20 ms: compute 20 %, exposed communication 79 %, idle 1.3 %",
        "Exposed communication: 12.0 ms, 79 % of the time; compute hides none of the 12.0 ms with collectives",
        "Skew of starts: not known, as these are the launches of one GPU; report the files of all ranks together",
    ]
    assert head[4] == "Collectives: 80 % of GPU time"
    own, collective = made.kernels
    assert (collective.kind, collective.bounds, collective.findings, collective.verdict) == (
        "collective",
        None,
        [],
        None,
    )
    assert {each.key for each in own.findings} >= {"few-blocks", "scratch"}
    (group,) = (each for each in group_findings(made) if each.key == COLLECTIVES)
    assert (group.kernels, group.who) == ((2,), "collectives")
    assert group.gain == pytest.approx(0.8)
    assert group.text == "100 % of their time is exposed; overlap them with compute that does not depend on them"


def test_few_launches_that_wait_for_a_late_rank():
    """As on a public trace of training, of one of eight ranks: 28 % busy, five launches take half of the time."""
    rows = steps(("a", 2000, 50_000), ("b", 2000, 0), ("c", 2000, 0), (RCCL, 10_000, 0))
    rows.append((RCCL, rows[-1][2] + 10**6, rows[-1][2] + 2 * 10**6))
    made, head = told(rows)
    assert head[0].startswith("The GPU is busy 36 % of 4.590 ms: compute 5.2 %, exposed communication 31 %, idle 64 %")
    assert head[2].startswith("Skew of starts: 1 of 41 collective launches takes half of their time (longest 1.00 ms, ")
    assert "most likely as they wait for a late rank; which one is not known" in head[2]
    assert head[3].startswith(f"Longest waits: 1.00 ms between two {RCCL.partition('(')[0]}; 50.0 µs between ")
    (group,) = (each for each in group_findings(made) if each.key == COLLECTIVES)
    assert "balance the ranks' work" in group.text
    assert "send fewer, larger messages" in group.text


def test_the_gpu_that_comes_last_is_named():
    """Each rank wrote its own file."""
    made, head = told(job(late=400_000))
    assert head[0].startswith("4 GPUs are busy 66 % of 79.50 ms each, GPU 4 least (52 %): compute 25 %")
    assert head[2] == (
        "Skew of starts: 400 µs apart (median; 400 µs at most); GPU 4 comes last to 36 of 40 collectives; 33 % of the "
        "collectives' time is this wait"
    )
    assert "GPU 4 comes last" in next(each.text for each in group_findings(made) if each.key == COLLECTIVES)
    _, apart = told(job(late=400_000, clock=10**15))
    assert "by durations, as the clocks differ" in apart[2]
    _, alike = told(job())
    assert alike[2].startswith("Skew of starts: 0 ns apart (median; 0 ns at most) on 4 GPUs, so none makes the others")


def test_little_communication_is_not_called_hidden():
    """Nothing computes beside it: 10 us of 16 ms are little, that is all."""
    _, head = told([*steps(("fmha", 300_000, 100_000)), (RCCL, 16_000_000, 16_010_000)])
    assert "Communication: 10.0 µs, 0.063 % of the time" in head


def test_hidden_communication_is_one_short_line():
    """And the kernels follow."""
    computing = [(f"gemm_{n % 3}", 1_000_000 * n, 1_000_000 * n + 950_000) for n in range(60)]
    _, head = told([*computing, *((RCCL, a + 100_000, b - 100_000) for _, a, b in computing)])
    assert head[:2] == [
        "The GPU is busy 95 % of 59.95 ms, nearly always with compute",
        "Communication is hidden: compute overlaps 100 % of its 45.0 ms",
    ]
    assert head[2].startswith("Kernels 1, 2, 3 ")


def test_copies_that_nothing_overlaps():
    """An application that fetches its data each step."""
    rows = [(f"k{n % 4}", 1_000_000 * n, 1_000_000 * n + 200_000) for n in range(100)]
    _, head = told(rows, [(a + 100_000, a + 900_000) for _, a, _ in rows])
    assert head[0] == "The GPU is busy 90 % of 99.90 ms: compute 20 %, copies 70 %, idle 9.9 %"
    assert head[1].startswith("Copies without compute: 70.0 ms, 70 % of the time; overlap them with kernels")


def test_a_micro_benchmark_waits_on_purpose():
    """Its idle time is said, and the kernel comes first."""
    made, head = told(steps(("fmha", 200_000, 2_800_000), count=1000))
    assert head[0].startswith("Kernel 1 (100 % of GPU time): fewer blocks")
    assert head[1] == (
        "The GPU is busy 6.7 % of 2.997 s: compute 6.7 %, idle 93 %; 1,000 launches of 1 kernel do not show an "
        "application, so its gaps say little"
    )
    assert summarise(made).before == ()


def test_many_short_waits_are_the_cost_of_launches():
    """And many longer ones a host that is late: no single one is worth its name."""
    cures = {
        2000: "2.00 µs: a HIP graph, or fewer and larger kernels, cut them",
        90_000: "90.0 µs: the host launches too late",
    }
    for gap, cure in cures.items():
        _, head = told(steps(*((name, 1000, gap) for name in "abcd"), count=100))
        assert head[1].startswith("Idle: 399 waits of ")
        assert head[1].endswith(f"none longer than {cure}")


def test_a_filtered_trace_is_said_to_be_one():
    """Its gaps are of other kernels."""
    made = traced(steps(("a", 1000, 0), ("b", 1000, 0), ("c", 1000, 9000)))
    made.dispatches["dispatch"] *= 5
    told_last = summarise(profile_report.build(made)).after[0]
    assert told_last.endswith("the files have 120 of 596 launches, and the others' time counts as idle")


def test_without_a_trace_it_is_said_that_the_time_is_not_known():
    """Never that the GPU was busy."""
    why = "how busy the GPU is: not known, as runs with counters or samples change when kernels start; a run without "
    assert summarise(counted(BMM2)).last == f"{why}tells: rocattn profile -- COMMAND"
    assert (
        "do not say when kernels start and end" in summarise(profile_report.build(kernels_of(("a", 1), ("b", 2)))).last
    )
    _, head = told([(RCCL, 0, 1000)])
    assert [head[0], head[-1]] == [
        "No verdict: only collectives ran",
        "How busy the GPU is: not known, as the files have one launch",
    ]


def test_collectives_with_counters_are_not_judged_either():
    """How much of them is exposed is not known there."""
    profile = traced([("a", 0, 1000), (RCCL, 2000, 9000)], vgprs=64)
    profile.counters = table([{"row": 0, "counter": "SQ_WAVES", "value": 4.0}], COUNTER_DTYPES)
    made = profile_report.build(profile)
    (group,) = (each for each in group_findings(made) if each.key == COLLECTIVES)
    assert (made.kernels[1].findings, group.gain, group.share) == ([], None, 0.875)
    assert group.text.startswith("how much of them compute hides, and who comes late, is known from a trace")


def test_every_format_has_the_time(tmp_path):
    """The page a strip for each GPU and no script, the Markdown the lines, the JSON the numbers."""
    made, head = told([*job(late=400_000), (FILL, 0, 50, 0, 100)])
    page = profile_pages.profile_html(made, 0)
    assert page.count('<svg class="times"') == 4
    assert "<script" not in page
    assert re.search(r'<path class="s1" d="M[\d.]+ [\d.]+V', page)
    for text in (page, profile_pages.profile_markdown(made)):
        assert "GPU 4 comes last to 36 of 40 collectives" in text
    assert "".join(lines(made)).startswith(head[0][:60])
    content = json.loads(profile_report.dump(profile_report.to_json(made)))
    assert [gpu["name"] for gpu in content["timeline"]["gpus"]] == ["GPU 2", "GPU 3", "GPU 4", "GPU 5"]
    assert content["timeline"]["skew"]["last"] == "GPU 4"
    assert [kernel["kind"] for kernel in content["kernels"]][-2:] == ["collective", "runtime"]


def test_a_strip_stacks_the_shares_of_its_time():
    """From the bottom; what is equal side by side is one bar."""
    (strip,) = time_strips([("GPU 2", 0.02, [(0.5, 0.5), (0.5, 0.5), (0.0, 0.0), (0.25, 0.0)])])
    first, second = strip.areas
    assert [len(area.split("M")) - 1 for area in strip.areas] == [2, 1]
    assert first.startswith(f"M{strip.left:.1f} 34.0V19.0H")
    assert second.startswith(f"M{strip.left:.1f} 19.0V4.0H")
    assert [tick.label for tick in strip.ticks] == ["5.00 ms", "10.0 ms", "15.0 ms", "20.0 ms"]
    assert (strip.ticks[-1].at, strip.ticks[-1].anchor) == (956.0, "end")


def test_files_of_a_profiler_from_end_to_end(tmp_path, capsys):
    """A trace with a launch of no length, which is left out with a note."""
    made = [
        Launch(n + 1, f"k{n % 4}", start=10**12 + 1_000_000 * n, ns=0 if n % 10 == 5 else 200_000) for n in range(100)
    ]  # fmt: skip
    v3_trace(tmp_path / "run/7_kernel_trace.csv", made)
    v3_agents(tmp_path / "run/7_agent_info.csv")
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    first, *rest = capsys.readouterr().err.splitlines()
    assert first == "The GPU is busy 18 % of 99.20 ms: compute 18 %, idle 82 %"
    assert rest[0].startswith("Longest waits: 1.80 ms between k0 and k2")
    assert "dispatches end before or when they start" in "\n".join(rest)
