"""What a report says first: the time, where waiting dominates, and never that a collective should split its work."""

import json
import re

import pytest
from inline_snapshot import snapshot

from rocattn_profiling.cli import main
from rocattn_profiling.pages.time_strips import time_strips
from rocattn_profiling.profile.ingest.table import COUNTER_DTYPES
from rocattn_profiling.profile.report import pages as profile_pages
from rocattn_profiling.profile.report import report as profile_report
from rocattn_profiling.profile.report.groups import COLLECTIVES, group_findings
from rocattn_profiling.profile.report.summary import summarise

from ...screens import line, screen
from ..ingest.generators import Launch, v3_agents, v3_trace
from ..kit import frame, lines_of
from ..metrics.test_timeline import FILL, RCCL, job, traced
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
    return made, [line[:1].upper() + line[1:] for line in head if line]


def steps(*parts, count=40):
    """Return a program's launches of (kernel, ns, gap before it), one after another."""
    rows, now = [], 0
    for _ in range(count):
        for name, ns, gap in parts:
            rows.append((name, now + gap, now + gap + ns))
            now += gap + ns
    return rows


COMPUTING = [(f"gemm_{n % 3}", 1_000_000 * n, 1_000_000 * n + 950_000) for n in range(60)]
COPYING = [(f"k{n % 4}", 1_000_000 * n, 1_000_000 * n + 200_000) for n in range(100)]
LATE = steps(("a", 2000, 50_000), ("b", 2000, 0), ("c", 2000, 0), (RCCL, 10_000, 0))
LATE.append((RCCL, LATE[-1][2] + 10**6, LATE[-1][2] + 2 * 10**6))
HEADS = {
    # 56 blocks of RCCL on 304 compute units: "split the work over keys" was the headline, spills the second.
    "a collective": (steps((RCCL, 1_200_000, 0), ("fmha", 300_000, 20_000), count=10),),
    # As on a public trace of training, of one of eight ranks: 28 % busy, five launches take half of the time.
    "a late rank": (LATE,),
    "a GPU that comes last": (job(late=400_000),),
    "clocks that differ": (job(late=400_000, clock=10**15),),
    "GPUs alike": (job(),),
    # Nothing computes beside it: 10 us of 16 ms are little, that is all.
    "little communication": ([*steps(("fmha", 300_000, 100_000)), (RCCL, 16_000_000, 16_010_000)],),
    "hidden communication": ([*COMPUTING, *((RCCL, a + 100_000, b - 100_000) for _, a, b in COMPUTING)],),
    # An application that fetches its data each step.
    "copies that nothing overlaps": (COPYING, [(a + 100_000, a + 900_000) for _, a, _ in COPYING]),
    "a micro-benchmark": (steps(("fmha", 200_000, 2_800_000), count=1000),),
    # Many short waits are the cost of launches, many longer ones a host that is late: none is worth its name.
    "short waits": (steps(*((name, 1000, 2000) for name in "abcd"), count=100),),
    "longer waits": (steps(*((name, 1000, 90_000) for name in "abcd"), count=100),),
    "one launch": ([(RCCL, 0, 1000)],),
}


def test_what_is_said_before_the_kernels():
    """How busy the GPU was, what it waits for, and the kernels' verdict in its place; of a change, what it changes."""
    heads = {name: told(*launches)[1] for name, launches in HEADS.items()}
    for name in ("clocks that differ", "GPUs alike"):
        heads[name] = heads[name][2:3]
    heads["longer waits"] = heads["longer waits"][1:2]
    assert "\n".join(f"{name}:\n{lines_of(dict(enumerate(head, 1)))}" for name, head in heads.items()) == snapshot("""\
a collective:
1: The GPU is busy 99 % of 15.20 ms: compute 20 %, exposed communication 79 %, idle 1.3 %
2: Exposed communication: 12.0 ms, 79 % of the time; compute hides none of the 12.0 ms with collectives
3: Skew of starts: unknown, because these are the launches of one GPU; report the files of all ranks together
4: Kernel 1 (20 % of GPU time): fewer blocks than compute units
5: Collectives: 80 % of GPU time
a late rank:
1: The GPU is busy 36 % of 4.590 ms: compute 5.2 %, exposed communication 31 %, idle 64 %
2: Exposed communication: 1.40 ms, 31 % of the time; compute hides none of the 1.40 ms with collectives
3: Skew of starts: 1 of 41 collective launches takes half of their time (longest 1.00 ms, median 10.0 µs), most likely
    waiting for a late rank; which one is unknown, because these are the launches of one GPU; report the files of all
    ranks together
4: Longest waits: 1.00 ms between two ncclDevKernel_Generic_1; 50.0 µs between ncclDevKernel_Generic_1 and a
5: Kernels 1, 2, 3 (15 % of GPU time): so short that starting them costs about as much; fuse them, or launch them in a
    graph
6: Collectives: 85 % of GPU time
a GPU that comes last:
1: 4 GPUs are busy 66 % of 79.50 ms each, GPU 4 least (52 %): compute 25 %, exposed communication 41 %, idle 34 %
2: Exposed communication: 130 ms on all GPUs, 41 % of the time; compute hides none of the 130 ms with collectives
3: Skew of starts: 400 µs apart (median; 400 µs at most); GPU 4 is last in 36 of 40 collectives; 33 % of the
    collectives' time is this wait
4: Idle: 316 waits of 343 µs on average, none longer than 900 µs: the host launches too late
5: Kernels 1, 2, 3, 4 (38 % of GPU time): fewer blocks or waves than the GPU has units for them; split the work
    further, or launch fewer kernels
6: Collectives: 62 % of GPU time
clocks that differ:
1: Skew of starts: 400 µs apart (median; 400 µs at most, by durations, because the clocks differ); GPU 4 is last in 36
    of 40 collectives; 33 % of the collectives' time is this wait
GPUs alike:
1: Skew of starts: 0 ns apart (median; 0 ns at most) on 4 GPUs, so none delays the others much
little communication:
1: Kernel 1 (100 % of GPU time): fewer blocks than compute units
2: The GPU is busy 75 % of 15.91 ms: compute 75 %, exposed communication 0.063 %, idle 25 %; 41 launches of 1 kernel
    are not an application, so the gaps mean little
3: Communication: 10.0 µs, 0.063 % of the time
hidden communication:
1: The GPU is busy 95 % of 59.95 ms, nearly always with compute
2: Communication is hidden: compute overlaps 100 % of its 45.0 ms
3: Kernels 1, 2, 3 (56 % of GPU time): fewer blocks or waves than the GPU has units for them; split the work further,
    or launch fewer kernels
4: Collectives: 44 % of GPU time
copies that nothing overlaps:
1: The GPU is busy 90 % of 99.90 ms: compute 20 %, copies 70 %, idle 9.9 %
2: Copies without compute: 70.0 ms, 70 % of the time; overlap them with kernels (pinned memory, a separate stream), or
    keep the data on the GPU
3: Kernel 1 (25 % of GPU time): fewer blocks than compute units
a micro-benchmark:
1: Kernel 1 (100 % of GPU time): fewer blocks than compute units
2: The GPU is busy 6.7 % of 2.997 s: compute 6.7 %, idle 93 %; 1,000 launches of 1 kernel are not an application, so
    the gaps mean little
short waits:
1: The GPU is busy 33 % of 1.198 ms: compute 33 %, idle 67 %
2: Idle: 399 waits of 2.00 µs on average, none longer than 2.00 µs: a HIP graph, or fewer and larger kernels, cut them
3: Kernel 1 (25 % of GPU time): launch overhead
longer waits:
1: Idle: 399 waits of 90.0 µs on average, none longer than 90.0 µs: the host launches too late
one launch:
1: No verdict: only collectives ran
2: Collectives: 100 % of GPU time
3: GPU busy time is unknown: the files have only one launch\
""")


def test_a_collective_is_no_kernel_with_too_few_blocks():
    """It has no limits and no findings of its own; how much of it is exposed is its group's."""
    made, _ = told(*HEADS["a collective"])
    own, collective = made.kernels
    assert collective.kind == "collective"
    assert (collective.bounds, collective.findings, collective.verdict) == (None, [], None)
    assert {each.key for each in own.findings} >= {"few-blocks", "scratch"}
    group = group_of(made)
    assert (group.kernels, group.who, group.gain) == ((2,), "collectives", pytest.approx(0.8))


def group_of(made):
    """Return the findings about collectives."""
    (group,) = (each for each in group_findings(made) if each.key == COLLECTIVES)
    return group


def test_what_helps_collectives():
    """By why they take long; with counters, how much of them is exposed is not known."""
    profile = traced([("a", 0, 1000), (RCCL, 2000, 9000)], vgprs=64)
    profile.counters = frame([{"row": 0, "counter": "SQ_WAVES", "value": 4.0}], COUNTER_DTYPES)
    counted_too = profile_report.build(profile)
    reports = {name: told(*HEADS[name])[0] for name in ("a collective", "a late rank", "a GPU that comes last")}
    reports["counters"] = counted_too
    assert lines_of({name: group_of(made).text for name, made in reports.items()}) == snapshot("""\
a collective: 100 % of their time is exposed; overlap them with compute that does not depend on them
a late rank: 100 % of their time is exposed; 1 of 41 collective launches takes half of their time (longest 1.00 ms,
    median 10.0 µs); balance the ranks' work, and what their hosts do before it; send fewer, larger messages; overlap
    them with compute that does not depend on them
a GPU that comes last: 100 % of their time is exposed; GPU 4 is last in 36 of 40 collectives; balance the ranks' work,
    and what their hosts do before it; overlap them with compute that does not depend on them
counters: a trace of all ranks shows how much of them compute hides, and which rank is late; overlap them with compute
    that does not depend on them\
""")
    assert counted_too.kernels[1].findings == []
    assert (group_of(counted_too).gain, group_of(counted_too).share) == (None, 0.875)


def test_when_the_time_is_not_known_it_is_said():
    """Never that the GPU was busy; and a filtered trace, whose gaps are of other kernels, is said to be one."""
    filtered = traced(steps(("a", 1000, 0), ("b", 1000, 0), ("c", 1000, 9000)))
    filtered.dispatches["dispatch"] *= 5
    assert lines_of({
        "counters": summarise(counted(BMM2)).last,
        "no starts": summarise(profile_report.build(kernels_of(("a", 1), ("b", 2)))).last,
        "filtered": summarise(profile_report.build(filtered)).after[0],
    }) == snapshot("""\
counters: GPU busy time is unknown: counters and samples change when kernels start; for a run without them: rocattn
    profile -- COMMAND
no starts: GPU busy time is unknown: the files do not say when kernels start and end; for a trace: rocattn profile --
    COMMAND
filtered: the GPU is busy 25 % of 480.0 µs: compute 25 %, idle 75 %; the files have 120 of 596 launches, and the
    others' time counts as idle\
""")  # fmt: skip


def test_every_format_has_the_time(tmp_path):
    """The page a strip for each GPU and no script, the Markdown the lines, the JSON the numbers."""
    made, head = told([*job(late=400_000), (FILL, 0, 50, 0, 100)])
    page = profile_pages.profile_html(made, 0)
    assert page.count('<svg class="times"') == 4
    assert "<script" not in page
    assert re.search(r'<path class="s1" d="M[\d.]+ [\d.]+V', page)
    for text in (page, profile_pages.profile_markdown(made)):
        assert re.findall("GPU [0-9] is last in [^<;.,]*", text) == snapshot(
            ["GPU 4 is last in 36 of 40 collectives", "GPU 4 is last in 36 of 40 collectives"]
        )
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
    assert line(screen("\n".join(rest), tmp=tmp_path), "dispatches") == snapshot(
        "note: tmp/run/7_kernel_trace.csv: 10 dispatches end before or when they start; their times are not used"
    )
