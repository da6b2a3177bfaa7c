"""Waivers: what they accept, when they fail, and what is said about a file that is none."""

import datetime as dt
import re
from pathlib import Path

import msgspec
import pytest

from rocattn_profiling.gate import thresholds, waivers
from rocattn_profiling.gate.model import EXACT, METRICS
from rocattn_profiling.gate.waivers import FILE, Waiver, WaiverError, WaiverTable
from rocattn_profiling.revisions import git as revisions

TODAY = dt.date(2026, 11, 20)
LABEL = "bench.Class.time_x(1024, 'cpu | two')"
KERNEL = "flash_attention f16 D=128"
GOOD = """\
# why we live with these
[[waiver]]
benchmark = "bench.Class.time_x(1024, 'cpu | two')"
metric = "time"
ceiling = 1.10
expires = 2026-12-31
issue = "#41"
reason = "costs a compare a tile"
author = "ada"

[[waiver]]
benchmark = "flash_attention f16 D=128"
metric = "audit"
arch = "gfx942"
ceiling = inf
expires = 2026-11-20
issue = "https://example.org/7"
reason = "spills until the new layout"
"""


def write(tree, text):
    """Put a file of waivers into a tree."""
    (tree / ".rocattn").mkdir(parents=True, exist_ok=True)
    (tree / FILE).write_text(text)
    return tree


def waiver(**facts):
    """One waiver that accepts ten percent of LABEL's time for a while."""
    usual = {
        "benchmark": LABEL, "metric": "time", "ceiling": 1.10, "expires": dt.date(2026, 12, 31), "issue": "#41",
        "reason": "known", "source": f"{FILE}:2",
    }  # fmt: skip
    return Waiver(**{**usual, **facts})


def applied(entries, *found, narrowed=False):
    """Apply waivers; return labels' statuses and problems."""
    after, problems = waivers.apply(entries, WaiverTable(rows=list(found)), TODAY, narrowed=narrowed)
    return after, problems


def test_a_file_is_read_with_its_places(tmp_path):
    """Every key, the line of each table, and the text that outputs show."""
    one, two = waivers.load(write(tmp_path, GOOD)).rows
    assert (one.benchmark, one.metric, one.arch, one.ceiling, one.author) == (LABEL, "time", "", 1.10, "ada")
    assert (one.expires, one.source, two.source) == (dt.date(2026, 12, 31), f"{FILE}:2", f"{FILE}:11")
    assert two.ceiling == float("inf")
    assert one.text() == f"costs a compare a tile (#41, up to x1.1, until 2026-12-31, by ada, {FILE}:2)"
    assert "of any size" in two.text()


def test_without_a_file_or_a_tree_nothing_is_waived(tmp_path):
    """Most projects have none; an existing environment has no tree."""
    assert waivers.load(tmp_path) == waivers.load(None) == WaiverTable()


@pytest.mark.parametrize(
    ("ratio", "status"), [(1.099, "waived"), (1.10, "waived"), (1.101, "regression")], ids=["below", "at", "above"]
)
def test_the_ceiling_holds(entry, ratio, status):
    """A regression is accepted up to the ceiling; above it fails and says so."""
    (after,), problems = applied([entry(LABEL, "regression", ratio)], waiver())
    assert (after.status, problems) == (status, [])
    if status == "waived":
        assert after.waiver.startswith("known (#41")
    else:
        assert f"x1.101 is above its waiver's ceiling of x1.1 ({FILE}:2)" in after.reason


@pytest.mark.parametrize(
    "other",
    [{"benchmark": LABEL[:-1]}, {"benchmark": "bench.Class.time_x"}, {"benchmark": "bench.*"}, {"metric": "peakmem"},
     {"arch": "gfx942"}, {"benchmark": LABEL.upper()}],
    ids=["prefix", "name", "glob", "metric", "arch", "case"],
)  # fmt: skip
def test_only_the_named_benchmark_and_metric_is_waived(entry, other):
    """No patterns, no prefixes: a waiver for one thing accepts nothing else."""
    (after,), _ = applied([entry(LABEL, "regression", 1.05)], waiver(**other))
    assert (after.status, after.waiver) == ("regression", "")


def test_the_last_day_counts_and_the_next_does_not(entry):
    """Expired: one line, and the regression fails again and says why."""
    regression = entry(LABEL, "regression", 1.05)
    (after,), problems = applied([regression], waiver(expires=TODAY))
    assert (after.status, problems) == ("waived", [])
    (after,), problems = applied([regression], waiver(expires=TODAY - dt.timedelta(days=1)))
    assert after.status == "regression"
    assert "its waiver has expired" in after.reason
    assert problems == [f"{FILE}:2: the waiver of {LABEL} time expired on 2026-11-19"]


def test_an_expired_waiver_fails_though_nothing_needs_it(entry):
    """It is told once, not also as unused; and also in a narrowed run."""
    old = waiver(expires=dt.date(2026, 1, 1))
    for narrowed in (False, True):
        _, problems = applied([entry("other", "pass")], old, narrowed=narrowed)
        assert len(problems) == 1
        assert "expired on 2026-01-01" in problems[0]


@pytest.mark.parametrize(
    ("status", "unused"),
    [("pass", True), ("improvement", True), ("inconclusive", False), ("failed", False), ("missing", False),
     ("broken", False), ("skipped", False), ("new", False), ("ungated", False), ("regression", False)],
)  # fmt: skip
def test_unused_is_only_what_was_shown_not_to_be_needed(entry, status, unused):
    """What is undecided, or did not run, may still be slower."""
    for narrowed in (False, True):
        _, problems = applied([entry(LABEL, status, 1.05)], waiver(), narrowed=narrowed)
        assert bool(problems) is unused
    if unused:
        assert "is not needed: it did not get worse; take it out" in problems[0]


def test_a_waiver_without_a_benchmark_fails_unless_narrowed(entry):
    """A typo must not wait for the day it was meant for; --bench and --quick leave out what may exist."""
    _, problems = applied([entry("other", "pass")], waiver())
    assert "no benchmark of the suite has this name" in problems[0]
    assert applied([entry("other", "pass")], waiver(), narrowed=True)[1] == []


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (["bench.Class.time_x"], "bench.Class.time_x"),
        (["bench.Class.time_x", "bench.Class.time_y"], "bench.Class"),
        (["tests/test_a.py::test_x", "tests/test_a.py::test_y"], "tests/test_a.py"),
        (["b/bench --size 1, 2"], "b/bench --size 1, 2"),
    ],
)
def test_a_removal_is_accepted_by_its_printed_line(entry, names, line):
    """One for all that are gone of a module, class or file, and for nothing that got slower or fails."""
    gone = [entry(name, "removed") for name in names]
    printed = waivers.trailer(gone)
    assert printed == f"Rocattn-Accept: {line} | removed | REASON"
    table = waivers.load(None, [("abc", printed)])
    slow = [entry(names[0], status, 1.2) for status in ("regression", "failed")]
    after, problems = waivers.apply([*gone, *slow], table, waivers.utc_today())
    assert [each.status for each in after] == ["waived"] * len(gone) + ["regression", "failed"]
    assert (after[0].waiver, problems, table.notes) == ("REASON (accepted in commit abc)", [], [])


def test_a_waiver_of_a_removed_benchmark_fails(entry):
    """Its entry names the benchmark without parameters, and is known even in a narrowed run."""
    removed = entry("bench.Class.time_x", "removed")
    _, problems = applied([removed, entry("other", "pass")], waiver(), narrowed=True)
    assert "the suite no longer has it" in problems[0]
    # Another one's name may begin with it.
    _, problems = applied([entry("bench.Class.time", "removed"), entry("other", "pass")], waiver(), narrowed=True)
    assert problems == []


def test_a_module_that_cannot_be_imported_hides_its_benchmarks(entry):
    """Its waivers are not unused: nobody knows."""
    for status in ("failed", "broken"):
        assert applied([entry("bench", status, reason="ImportError"), entry("o", "pass")], waiver())[1] == []


def test_exact_metrics_are_waived_by_architecture(entry):
    """The same kernel may be worse on two architectures; a change without a ratio needs a ceiling of inf."""
    label = "flash_attention f16 D=128"
    both = [
        entry(label, "regression", 1.2, metric="audit", arch="gfx942"),
        entry(label, "regression", decision=None, metric="audit", arch="gfx1100"),
    ]
    mine = {"benchmark": label, "metric": "audit"}
    after, problems = applied(
        both, waiver(arch="gfx942", ceiling=2.0, **mine), waiver(arch="gfx1100", ceiling=2.0, **mine)
    )
    assert ([e.status for e in after], problems) == (["waived", "regression"], [])
    assert "a change without a ratio is above its waiver's ceiling of x2" in after[1].reason
    after, _ = applied(both[1:], waiver(arch="gfx1100", ceiling=float("inf"), **mine))
    assert after[0].status == "waived"


def test_exact_metrics_that_were_not_read_are_not_unused(entry):
    """Without a compiler there are none; where the architecture was read, what is not named did not change."""
    mine = waiver(benchmark="flash f16", metric="audit", arch="gfx942")
    assert applied([entry("b", "pass")], mine)[1] == []
    assert applied([entry("37 kernels", "pass", metric="audit", arch="gfx1100"), entry("b", "pass")], mine)[1] == []
    _, problems = applied([entry("37 kernels", "pass", metric="audit", arch="gfx942"), entry("b", "pass")], mine)
    assert "it did not get worse" in problems[0]
    plan = waiver(benchmark="select cpu-flash", metric="plan", arch="gfx942")
    _, problems = applied([entry("558 plans", "pass", metric="plan"), entry("b", "pass")], plan)
    assert "it did not get worse" in problems[0]


def test_waivers_of_failed_exact_metrics_are_not_unused(entry):
    """One failed entry stands for all that was not read; a regression alike on every architecture names none."""
    beside = entry("b", "pass")
    for metric, label, failed in (
        ("plan", "select cpu-flash", "plans and backend choices"),
        ("audit", "flash f16", "kernels"),
    ):
        mine = waiver(benchmark=label, metric=metric, arch="gfx942")
        assert applied([entry(failed, "failed", metric=metric), beside], mine)[1] == []
        assert applied([entry(label, "regression", 1.2, metric=metric), beside], mine)[1] == []
        _, problems = applied([entry(label, "improvement", 0.8, metric=metric), beside], mine)
        assert "it did not get worse" in problems[0]


def test_what_another_rule_waived_stays_waived(entry):
    """An exact metric whose pin the change renewed arrives waived: neither touched nor called unused."""
    pinned = entry("flash f16", "waived", 1.3, metric="audit", arch="gfx942", waiver="its pin was renewed")
    (after,), problems = applied([pinned], waiver(benchmark="flash f16", metric="audit", arch="gfx942"))
    assert (after.waiver, problems) == ("its pin was renewed", [])


def test_a_waiver_that_the_change_added_is_named(tmp_path, entry):
    """Allowed, and said; a raised ceiling is a new waiver, a moved line is not."""
    base = write(tmp_path / "base", GOOD.partition('[[waiver]]\nbenchmark = "flash')[0])
    head = write(tmp_path / "head", "\n\n" + GOOD)
    one, two = waivers.load(head, base=base).rows
    assert (one.added, two.added) == (False, True)
    assert "added by this change" in two.text()
    raised = write(tmp_path / "raised", GOOD.replace("1.10", "1.20"))
    assert waivers.load(raised, base=base).rows[0].added
    # Base's file does not have to be good for head's to be read.
    assert waivers.load(head, base=write(tmp_path / "bad", "nonsense")).rows[0].added


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[waiver]\n", f"{FILE}: .*line 1"),
        ("waiver = 3\n", "begin every table with"),
        ("[waiver]\nbenchmark = 'x'\n", "begin every table with"),
        ("[[waivers]]\n", "'waivers' is unknown"),
        (GOOD.replace("reason", "raison", 1), f"{FILE}:2: 'raison' is unknown; known are"),
        (GOOD.replace('issue = "https://example.org/7"\n', ""), f"{FILE}:11: issue is missing"),
        (GOOD.replace('"costs a compare a tile"', '" "'), f"{FILE}:2: reason must be text that is not empty"),
        (GOOD.replace("2026-12-31", '"2026-12-31"'), f"{FILE}:2: expires must be a date without quotes"),
        (GOOD.replace("2026-12-31", "2026-12-31T00:00:00"), f"{FILE}:2: expires must be a date"),
        (GOOD.replace("1.10", "0.9"), f"{FILE}:2: ceiling must be a ratio above 1"),
        (GOOD.replace("1.10", "1.0"), f"{FILE}:2: ceiling must be a ratio above 1"),
        (GOOD.replace("1.10", "nan"), f"{FILE}:2: ceiling must be a ratio above 1"),
        (GOOD.replace("1.10", "true"), f"{FILE}:2: ceiling must be"),
        (GOOD.replace("1.10", '"1.10"'), f"{FILE}:2: ceiling must be"),
        (GOOD.replace("1.10", "1" + "0" * 400), f"{FILE}:2: ceiling must be"),
        (GOOD.replace("1.10", "1" + "0" * 5000), f"{FILE} cannot be read: a value in it is too long or too deep"),
        ("x = " + "[" * 100_000, f"{FILE} cannot be read: a value in it is too long or too deep"),
        (GOOD.replace('"time"', "3"), f"{FILE}:2: metric must be text"),
        (GOOD.replace('"time"', '"tme"'), f"{FILE}:2: metric 'tme' is unknown; known are time, mem, .*plan, exact$"),
        (GOOD.replace('"audit"', '"Audit"'), f"{FILE}:11: metric 'Audit' is unknown"),
        (GOOD.replace("gfx942", "gxf942"), f"{FILE}:11: arch: 'gxf942' is no GPU architecture"),
        (GOOD.replace("gfx942", "gfx9999"), f"{FILE}:11: arch: there are no kernels for gfx9999"),
        (GOOD.replace("gfx942", "gfx942:xnack+"), f"{FILE}:11: arch: 'gfx942:xnack.' has features: write gfx942"),
        (GOOD + GOOD, f"{FILE}:20: .* is waived twice, first at {FILE}:2"),
    ],
)
def test_a_malformed_file_is_one_line_with_its_place(tmp_path, text, said):
    """A typo must not accept less, or more, than was meant: unknown keys are errors."""
    with pytest.raises(WaiverError, match=said) as error:
        waivers.load(write(tmp_path, text))
    assert "\n" not in str(error.value)


def test_a_byte_order_mark_is_passed_over(tmp_path):
    """Some editors write one."""
    tree = write(tmp_path, GOOD)
    (tree / FILE).write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert [w.source for w in waivers.load(tree).rows] == [f"{FILE}:2", f"{FILE}:11"]


def test_a_file_that_is_no_text_is_one_line(tmp_path):
    """A folder, or bytes."""
    (tmp_path / FILE).mkdir(parents=True)
    with pytest.raises(WaiverError, match="cannot be read"):
        waivers.load(tmp_path)
    other = tmp_path / "other"
    (other / ".rocattn").mkdir(parents=True)
    (other / FILE).write_bytes(b"\xff\xfe")
    with pytest.raises(WaiverError, match="not UTF-8"):
        waivers.load(other)


@pytest.mark.parametrize(
    ("message", "accepted"),
    [
        (f"Subject\n\nRocattn-Accept: {LABEL} | time | 1.3 | the mask costs a compare\n", (LABEL, "time", "", 1.3)),
        (f"S\n\n* squashed\n\nrocattn-accept: {LABEL} | time | 1.3 | why | really\n\nmore", (LABEL, "time", "", 1.3)),
        ("S\r\n\r\nRocattn-Accept: flash | audit gfx942 | inf | why\r\n", ("flash", "audit", "gfx942", float("inf"))),
        (f"S\n\nRocattn-Accept: {LABEL} | time\n  | 1.3 | a folded\n  reason\n", (LABEL, "time", "", 1.3)),
        (f"S\r\n\r\nRocattn-Accept: {LABEL} | time\r\n  | 1.3 | why\r\n", (LABEL, "time", "", 1.3)),
        (f"S\n\nRocattn-Accept: {LABEL} | time | 1.3 | as was x | mem | 9 | so\n", (LABEL, "time", "", 1.3)),
    ],
    ids=["trailer", "squashed", "exact", "folded", "folded by CRLF", "a reason like a trailer"],
)
def test_a_trailer_accepts_for_its_change(entry, message, accepted):
    """Label (bars and all), metric, architecture, ceiling and reason; in squashed messages, too."""
    found = waivers.load(None, [("abc1234", message)])
    (one,) = found.rows
    assert (one.benchmark, one.metric, one.arch, one.ceiling) == accepted
    assert (one.expires, one.added, one.source, found.notes) == (None, True, "commit abc1234", [])
    (after,), problems = applied([entry(one.benchmark, "regression", 1.2, metric=one.metric, arch=one.arch)], one)
    assert (after.status, problems) == ("waived", [])
    assert after.waiver.endswith(", accepted in commit abc1234)")


@pytest.mark.parametrize(
    "text",
    ["x", "x | time | 1.3", "x | time | 0.9 | why", "x | time | 1 | why", "x | time | 1.2.3 | why", "x | time | | why",
     "| time | 1.3 | w"],
)  # fmt: skip
def test_a_trailer_that_cannot_be_read_is_told(text):
    """It accepts nothing, and a note says so; it does not fail, for a merged message cannot be mended."""
    found = waivers.load(None, [("abc1234", f"S\n\nRocattn-Accept: {text}\n")])
    assert found.rows == []
    assert "commit abc1234: Rocattn-Accept" in found.notes[0]
    assert "accepts nothing: write <label> | <metric>" in found.notes[0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x | tme | 1.3 | why", "the metric one of time, mem, peakmem"),
        ("x | audit gfx9999 | 1.3 | why", "no kernels for gfx9999"),
    ],
)
def test_a_trailer_for_what_no_verdict_has_is_told(text, why):
    """A typo in metric or architecture accepts nothing, and the note says which are known."""
    found = waivers.load(None, [("abc1234", f"S\n\nRocattn-Accept: {text}\n")])
    assert found.rows == []
    assert "accepts nothing" in found.notes[0]
    assert why in found.notes[0]


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_of_a_verdict_can_be_waived(tmp_path, metric):
    """In the file and in a trailer; whatever is exact is a metric."""
    (one, _) = waivers.load(write(tmp_path, GOOD.replace('"time"', f'"{metric}"'))).rows
    (other,) = waivers.load(None, [("abc1234", f"S\n\nRocattn-Accept: x | {metric} | 1.3 | why\n")]).rows
    assert one.metric == other.metric == metric
    assert set(METRICS) > EXACT


def test_a_trailer_that_nothing_needs_does_not_fail(entry):
    """A later commit of the change may have mended it; with the next change it is gone."""
    trailer = waiver(expires=None, source="commit abc1234")
    assert applied([entry(LABEL, "pass")], trailer)[1] == []
    assert applied([entry("other", "pass")], trailer)[1] == []


def test_the_larger_of_two_ceilings_counts(entry):
    """A trailer may accept more than the file does, for once; both are used."""
    found = [waiver(), waiver(expires=None, ceiling=1.5, source="commit abc", reason="once")]
    (after,), problems = applied([entry(LABEL, "regression", 1.3)], *found)
    assert (after.status, problems) == ("waived", [])
    assert after.waiver.startswith("once (")


def test_of_two_trailers_the_later_counts(repo):
    """In another commit or further down in one message, larger or smaller; each metric has its own."""
    repo.commit("first", a="1")
    base = revisions.resolve(repo.root, "HEAD")

    def ceilings(*messages):
        repo.git("reset", "--quiet", "--hard", base.sha)
        for number, message in enumerate(messages):
            lines = "\n".join(f"Rocattn-Accept: x | {text} | why" for text in message)
            repo.commit(f"s\n\n{lines}", b=f"{number}")
        head = revisions.resolve(repo.root, "HEAD")
        found = waivers.load(None, waivers.commit_messages(repo.root, base, head)).rows
        return {(one.metric, one.ceiling) for one in found}

    assert ceilings(["time | 1.5"], ["time | 1.2"]) == {("time", 1.2)}
    assert ceilings(["time | 1.2"], ["time | 1.5"]) == {("time", 1.5)}
    assert ceilings(["time | 1.5", "mem | 2", "time | 1.2"]) == {("time", 1.2), ("mem", 2.0)}


def test_trailers_come_from_the_commits_of_the_change_alone(repo):
    """Not from base's history, and not for changes that nobody committed."""
    repo.commit("old\n\nRocattn-Accept: old | time | 2 | past", a="1")
    base = revisions.resolve(repo.root, "HEAD")
    repo.commit(f"one\n\nRocattn-Accept: {LABEL} | time | 1.3 | now", a="2")
    repo.commit("two, with a | in its\n\nbody", a="3")
    head = revisions.resolve(repo.root, "HEAD")
    messages = waivers.commit_messages(repo.root, base, head)
    assert len(messages) == 2
    (one,) = waivers.load(None, messages).rows
    assert (one.benchmark, one.reason) == (LABEL, "now")
    assert head.sha.startswith(messages[0][0])
    repo.git("checkout", "--quiet", "-b", "other", base.sha)
    repo.commit("three\n\nRocattn-Accept: other | time | 2 | on base's side", b="1")
    assert waivers.commit_messages(repo.root, revisions.resolve(repo.root, "other"), head) == messages
    repo.put("a", "4")
    assert waivers.commit_messages(repo.root, base, revisions.resolve(repo.root, "WORKTREE")) == []


def test_the_site_can_ask_for_one_series():
    """Reason and issue of a waiver that still holds; nothing for others."""
    found = WaiverTable(rows=[waiver(expires=dt.date(2026, 11, 1)), msgspec.structs.replace(waiver(), benchmark="b")])
    assert found.waived("b", "time", today=TODAY).startswith("known (#41")
    assert found.waived(LABEL, "time", today=TODAY) == found.waived("b", "mem", today=TODAY) == ""


def test_the_documented_examples_are_read(tmp_path):
    """What the page shows works as it stands: both files, and the trailers."""
    page = (Path(__file__).parents[2] / "docs" / "gate-outputs.md").read_text()
    ours, limits = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert [w.issue for w in waivers.load(write(tmp_path, ours)).rows] == ["#42"]
    (tmp_path / thresholds.FILE).write_text(limits)
    assert [row.rounds for row in thresholds.load(tmp_path).rows] == [10]
    trailers = re.search(r"^```text\n(Rocattn-Accept.*?)^```", page, re.MULTILINE | re.DOTALL)[1]
    found = waivers.load(None, [("abc1234", f"Subject\n\n{trailers}")])
    assert ([w.arch for w in found.rows], found.notes) == (["", "gfx942", ""], [])


@pytest.mark.parametrize(
    ("regressed", "written", "said"),
    [
        ((KERNEL, "audit", "gfx1100"), (KERNEL, "audit", "gfx942"),
         f"is of {KERNEL} audit gfx942, this is {KERNEL} audit gfx1100"),
        ((KERNEL, "audit", "gfx1100"), (KERNEL, "audit", ""),
         f"is of {KERNEL} audit without an architecture, this is {KERNEL} audit gfx1100"),
        (("flash path", "plan", ""), ("flash path", "plan", "gfx942"),
         "is of flash path plan gfx942, this is flash path plan without an architecture"),
        ((KERNEL, "audit", "gfx1100"), ("Flash_attention  F16 D=128", "audit", "gfx1100"), "is of Flash_a"),
        ((LABEL, "time", ""), (LABEL, "mem", ""), f"is of {LABEL} mem, this is {LABEL} time"),
        ((LABEL, "time", ""), (LABEL, "time", "gfx942"), f"is of {LABEL} time gfx942, this is {LABEL} time"),
        ((LABEL, "time", ""), (LABEL.replace("'", '"'), "time", ""), 'is of bench.Class.time_x(1024, "'),
        ((LABEL, "time", ""), ("bench.Class.time_x", "time", ""), "is of bench.Class.time_x time, this is"),
    ],
    ids=["architecture", "without one", "on all of them", "case", "metric", "of a time", "quotes", "parameters"],
)  # fmt: skip
def test_a_waiver_that_was_probably_meant_is_named(entry, regressed, written, said):
    """It accepts nothing, but the regression says what it is of and what it would have to be of."""
    label, metric, arch = regressed
    made = entry(label, "regression", 1.05, metric=metric, arch=arch)
    made = msgspec.structs.replace(made, name=label.partition("(")[0])
    other = waiver(benchmark="other")
    for expires in (dt.date(2026, 12, 31), None):
        mine = waiver(**dict(zip(("benchmark", "metric", "arch"), written, strict=True)), expires=expires)
        (after,), _ = applied([made], other, mine)
        assert after.status == "regression"
        assert f"not waived: {mine.source} {said}" in after.reason
    (after,), _ = applied([made], other)
    assert after == made
    passed = entry(label, "pass", 1.0, metric=metric, arch=arch)
    assert applied([passed], mine)[0] == [passed]


def test_a_waiver_without_an_architecture_is_not_unused(entry):
    """Where its kernel did, the regression says what is missing; where nothing did, it is not needed like any other."""
    mine = waiver(benchmark=KERNEL, metric="audit")
    beside = [entry("b", "pass"), entry("37 kernels", "pass", metric="audit", arch="gfx942")]
    assert applied([entry(KERNEL, "regression", 1.2, metric="audit", arch="gfx1100"), *beside], mine)[1] == []
    _, problems = applied(beside, mine)
    assert "it did not get worse" in problems[0]
    _, problems = applied(beside, waiver(benchmark="c", arch="gfx942"))
    assert problems[0].endswith("metric, with an arch, which only exact metrics have; take it out")


@pytest.mark.parametrize("indent", ["    ", "\t", "> "])
def test_an_indented_trailer_is_told(indent):
    """What git merge --squash makes of one, or a quotation: nothing is read from it, and a note says so."""
    quoted = f"Squashed commit of the following:\n\n{indent}Rocattn-Accept: {LABEL} | time | 1.3 | why\n"
    found = waivers.load(None, [("abc1234", quoted)])
    assert found.rows == []
    (note,) = found.notes
    assert note.startswith("commit abc1234: an indented Rocattn-Accept accepts nothing: begin a line with it")
    assert waivers.load(None, [("abc1234", "S\n\n    rocattn-accept is documented\n")]) == WaiverTable()


def test_a_trailer_is_read_in_any_encoding_of_git(repo):
    """Its letters must be those of the label; a merge brings the trailers of what it merges."""
    repo.commit("one", a="1")
    base = revisions.resolve(repo.root, "HEAD")
    repo.git("checkout", "--quiet", "-b", "side")
    repo.commit("two\n\nRocattn-Accept: bench.time_x('café') | time | 1.3 | why", a="2")
    repo.git("checkout", "--quiet", "main")
    repo.git("merge", "--quiet", "--no-ff", "-m", "Merge\n\nRocattn-Accept: b | mem | 2 | both", "side")
    repo.git("config", "i18n.logOutputEncoding", "ISO-8859-1")
    messages = waivers.commit_messages(repo.root, base, revisions.resolve(repo.root, "HEAD"))
    assert {one.benchmark for one in waivers.load(None, messages).rows} == {"b", "bench.time_x('café')"}
