"""Waivers: what they accept, when they fail, and what is said about a file that is none."""

import datetime as dt
import re
from pathlib import Path

import msgspec
import pytest
from inline_snapshot import snapshot

from rocattn_profiling.gate import thresholds, waivers
from rocattn_profiling.gate.model import EXACT, METRICS
from rocattn_profiling.gate.waivers import FILE, Waiver, WaiverError, WaiverTable
from rocattn_profiling.revisions import git as revisions

from .conftest import make_entry

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


def applied(entries, *rows, narrowed=False):
    """Apply waivers; return entries and problems."""
    return waivers.apply(entries, WaiverTable(rows=list(rows)), TODAY, narrowed=narrowed)


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


SLOW, OTHER = make_entry(LABEL, "regression", 1.05), make_entry("b", "pass")
AUDIT = {"benchmark": KERNEL, "metric": "audit", "arch": "gfx942"}
OLD = {"expires": dt.date(2026, 1, 1)}
TRAILER = {"expires": None, "source": "commit abc"}
WAIVED = f"waived: known (#41, up to x1.1, until 2026-12-31, {FILE}:2)"
UNUSED = f"{FILE}:2: the waiver of {LABEL} time is not needed: "
NO_WORSE = "is not needed: it did not get worse; remove it"
NAMELESS = "no benchmark in the suite has this name, these parameters and this metric"
BARE = f"{KERNEL} audit"
ARCH = ", with an arch, which only exact metrics have"


def kernel(status, ratio=1.2, label=KERNEL, metric="audit", arch="gfx942", **facts):
    """One entry of a kernel's machine code."""
    return make_entry(label, status, ratio, metric=metric, arch=arch, **facts)


@pytest.mark.parametrize(
    ("entries", "rows", "lines"),
    [
        ([make_entry(LABEL, "regression", 1.099)], [{}], [WAIVED]),
        ([make_entry(LABEL, "regression", 1.10)], [{}], [WAIVED]),
        ([make_entry(LABEL, "regression", 1.101)], [{}],
         [f"regression: x1.101 is above its waiver's ceiling of x1.1 ({FILE}:2)"]),
        ([SLOW], [{"expires": TODAY}], [WAIVED.replace("2026-12-31", "2026-11-20")]),
        ([SLOW], [{"expires": TODAY - dt.timedelta(days=1)}],
         ["regression: its waiver has expired", f"{FILE}:2: the waiver of {LABEL} time expired on 2026-11-19"]),
        ([make_entry(LABEL, "regression", 1.3)], [{}, {**TRAILER, "ceiling": 1.5}],
         ["waived: known (#41, up to x1.5, accepted in commit abc)"]),
        ([make_entry(LABEL, "pass")], [TRAILER], ["pass: "]),
        ([OTHER], [TRAILER], ["pass: "]),
        ([OTHER], [{}], ["pass: ", f"{UNUSED}{NAMELESS}; remove it"]),
        ([make_entry("bench", "failed", reason="ImportError"), OTHER], [{}], ["failed: ImportError", "pass: "]),
        ([make_entry("bench", "broken", reason="ImportError"), OTHER], [{}], ["broken: ImportError", "pass: "]),
        ([OTHER], [{"benchmark": "c", "arch": "gfx942"}],
         ["pass: ", f"{FILE}:2: the waiver of c time gfx942 is not needed: {NAMELESS}{ARCH}; remove it"]),
        ([kernel("regression"), kernel("regression", decision=None, arch="gfx1100")],
         [{**AUDIT, "ceiling": 2.0}, {**AUDIT, "ceiling": 2.0, "arch": "gfx1100"}],
         [WAIVED.replace("1.1", "2"),
          f"regression: a change without a ratio is above its waiver's ceiling of x2 ({FILE}:2)"]),
        ([kernel("regression", decision=None)], [{**AUDIT, "ceiling": float("inf")}],
         [WAIVED.replace("up to x1.1", "of any size")]),
        ([kernel("waived", waiver="its pin was renewed")], [AUDIT], ["waived: its pin was renewed"]),
        ([OTHER], [AUDIT], ["pass: "]),
        ([kernel("pass", label="37 kernels", arch="gfx1100"), OTHER], [AUDIT], ["pass: "] * 2),
        ([kernel("pass", label="37 kernels"), OTHER], [AUDIT],
         ["pass: ", "pass: ", f"{FILE}:2: the waiver of {KERNEL} audit gfx942 {NO_WORSE}"]),
        ([kernel("pass", label="558 plans", metric="plan", arch=""), OTHER],
         [{"benchmark": "select", "metric": "plan", "arch": "gfx942"}],
         ["pass: ", "pass: ", f"{FILE}:2: the waiver of select plan gfx942 {NO_WORSE}"]),
        ([kernel("pass", label="37 kernels"), OTHER], [{**AUDIT, "arch": ""}],
         ["pass: ", "pass: ", f"{FILE}:2: the waiver of {KERNEL} audit {NO_WORSE}"]),
        ([kernel("regression", arch="gfx1100"), kernel("pass", label="37 kernels")], [{**AUDIT, "arch": ""}],
         [f"regression: not waived: {FILE}:2 is for {BARE} without an architecture, but this is {BARE} gfx1100",
          "pass: "]),
    ],
    ids=["below its ceiling", "at its ceiling", "above its ceiling", "on its last day", "a day after its last",
         "two, and the larger counts", "a trailer and a fix in a later commit", "a trailer of no benchmark",
         "of no benchmark: a typo must not wait", "a module that fails hides its benchmarks", "or is broken",
         "of a time, with an arch", "by architecture, and none without a ratio", "of any size",
         "waived by a renewed pin", "no compiler, no exact metrics", "another architecture was read",
         "its architecture was read", "plans have none", "without an architecture", "where one got worse"],
)  # fmt: skip
def test_what_waivers_make_of_a_run(entries, rows, lines):
    """Each is accepted or says why not, and a waiver that this run shows not to be needed is a problem."""
    after, problems = applied(entries, *(waiver(**row) for row in rows))
    assert [f"{each.status}: {each.waiver or each.reason}" for each in after] + problems == lines


@pytest.mark.parametrize(
    "other",
    [{"benchmark": LABEL[:-1]}, {"benchmark": "bench.Class.time_x"}, {"benchmark": "bench.*"}, {"metric": "peakmem"},
     {"arch": "gfx942"}, {"benchmark": LABEL.upper()}],
    ids=["prefix", "name", "glob", "metric", "arch", "case"],
)  # fmt: skip
def test_only_the_named_benchmark_and_metric_is_waived(other):
    """No patterns, no prefixes: a waiver for one thing accepts nothing else."""
    (after,), _ = applied([SLOW], waiver(**other))
    assert (after.status, after.waiver) == ("regression", "")


@pytest.mark.parametrize("narrowed", [False, True])
@pytest.mark.parametrize(
    ("entries", "row", "problems"),
    [
        *(([make_entry(LABEL, status, 1.05)], {}, [f"{UNUSED}it did not get worse; remove it"])
          for status in ("pass", "improvement")),
        # What is undecided, or did not run, may still be slower.
        *(([make_entry(LABEL, status, 1.05)], {}, [])
          for status in ("inconclusive", "failed", "missing", "broken", "skipped", "new", "ungated", "regression")),
        ([OTHER], OLD, [f"{FILE}:2: the waiver of {LABEL} time expired on 2026-01-01"]),  # once, not as unused too
        # Its entry names the benchmark without parameters; another one's name may begin with it.
        ([make_entry("bench.Class.time_x", "removed"), OTHER], {},
         [f"{UNUSED}the suite no longer has it; remove it"]),
    ],
)  # fmt: skip
def test_a_narrowed_run_knows_the_same_of_these(entries, row, problems, narrowed):
    """--bench and --quick leave out benchmarks that may exist, and change nothing about those that are known."""
    assert applied(entries, waiver(**row), narrowed=narrowed)[1] == problems


@pytest.mark.parametrize("entries", [[OTHER], [make_entry("bench.Class.time", "removed"), OTHER]])
def test_a_narrowed_run_knows_nothing_of_what_it_left_out(entries):
    """A benchmark without an entry may exist."""
    assert applied(entries, waiver(), narrowed=True)[1] == []


@pytest.mark.parametrize(
    ("metric", "label", "failed"),
    [("plan", "select cpu-flash", "plans and backend choices"), ("audit", "flash f16", "kernels")],
)
def test_an_entry_of_all_architectures_needs_its_waiver(metric, label, failed):
    """A regression alike on every architecture names none, and one failed entry stands for all that was not read."""
    mine = waiver(benchmark=label, metric=metric, arch="gfx942")
    for found, status, problems in ((failed, "failed", 0), (label, "regression", 0), (label, "improvement", 1)):
        assert len(applied([kernel(status, label=found, metric=metric, arch=""), OTHER], mine)[1]) == problems


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


def test_a_waiver_that_the_change_added_is_named(tmp_path, entry):
    """Allowed, and said; a raised ceiling is a new waiver, a moved line is not."""
    base = write(tmp_path / "base", GOOD.partition('[[waiver]]\nbenchmark = "flash')[0])
    head = write(tmp_path / "head", "\n\n" + GOOD)
    one, two = waivers.load(head, base=base).rows
    assert (one.added, two.added) == (False, True)
    assert two.text() == snapshot(
        "spills until the new layout (https://example.org/7, of any size, until 2026-11-20, added by this change, "
        ".rocattn/waivers.toml:13)"
    )
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
        (GOOD.replace('"costs a compare a tile"', '" "'), f"{FILE}:2: reason must be non-empty text"),
        *((GOOD.replace("2026-12-31", day), f"{FILE}:2: expires must be a date without quotes")
          for day in ('"2026-12-31"', "2026-12-31T00:00:00")),
        *((GOOD.replace("1.10", ceiling), f"{FILE}:2: ceiling must be a ratio above 1")
          for ceiling in ("0.9", "1.0", "nan", "true", '"1.10"', "1" + "0" * 400)),
        *((text, f"{FILE} cannot be read: a value in it is too long or too deep")
          for text in (GOOD.replace("1.10", "1" + "0" * 5000), "x = " + "[" * 100_000)),
        (GOOD.replace('"time"', "3"), f"{FILE}:2: metric must be non-empty text"),
        (GOOD.replace('"time"', '"tme"'), f"{FILE}:2: metric 'tme' is unknown; known are time, mem, .*plan, exact$"),
        (GOOD.replace('"audit"', '"Audit"'), f"{FILE}:11: metric 'Audit' is unknown"),
        (GOOD.replace("gfx942", "gxf942"), f"{FILE}:11: arch: 'gxf942' is no GPU architecture"),
        (GOOD.replace("gfx942", "gfx9999"), f"{FILE}:11: arch: there are no kernels for gfx9999"),
        (GOOD.replace("gfx942", "gfx942:xnack+"), f"{FILE}:11: arch: 'gfx942:xnack.' has features: write gfx942"),
        (GOOD + GOOD, f"{FILE}:20: .* is waived twice, first at {FILE}:2"),
        (b"\xff\xfe", "not UTF-8"),
        (None, "cannot be read"),  # a folder
    ],
)  # fmt: skip
def test_a_malformed_file_is_one_line_with_its_place(tmp_path, text, said):
    """A typo must not accept less, or more, than was meant: unknown keys are errors."""
    (tmp_path / FILE).parent.mkdir()
    if text is None:
        (tmp_path / FILE).mkdir()
    else:
        (tmp_path / FILE).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(WaiverError, match=said) as error:
        waivers.load(tmp_path)
    assert "\n" not in str(error.value)


def test_a_byte_order_mark_is_passed_over(tmp_path):
    """Some editors write one."""
    tree = write(tmp_path, GOOD)
    (tree / FILE).write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert [w.source for w in waivers.load(tree).rows] == [f"{FILE}:2", f"{FILE}:11"]


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


FORM = (
    "write <label> | <metric> [<arch>] | <ceiling ratio above 1> | <reason>, the metric one of "
    f"{', '.join(METRICS)}; or <label> | removed | <reason>"
)
INDENTED = (
    "commit abc1234: an indented Rocattn-Accept accepts nothing: begin a line with it (git merge --squash indents what "
    "it quotes)"
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *((text, FORM) for text in (
            "x", "x | time | 1.3", "x | time | 0.9 | why", "x | time | 1 | why", "x | time | 1.2.3 | why",
            "x | time | | why", "| time | 1.3 | w", "x | tme | 1.3 | why")),
        ("x | audit gfx9999 | 1.3 | why",
         "there are no kernels for gfx9999, only for gfx90a"),
    ],
)  # fmt: skip
def test_a_trailer_that_cannot_be_read_is_told(text, why):
    """It accepts nothing, and a note says so; it does not fail, for a merged message cannot be mended."""
    found = waivers.load(None, [("abc1234", f"S\n\nRocattn-Accept: {text}\n")])
    (note,) = found.notes
    assert (found.rows, note.startswith(f"commit abc1234: Rocattn-Accept: {text!r} accepts nothing: {why}")) == (
        [],
        True,
    )


@pytest.mark.parametrize("indent", ["    ", "\t", "> "])
def test_an_indented_trailer_is_told(indent):
    """What git merge --squash makes of one, or a quotation: nothing is read from it, and a note says so."""
    quoted = f"Squashed commit of the following:\n\n{indent}Rocattn-Accept: {LABEL} | time | 1.3 | why\n"
    assert waivers.load(None, [("abc1234", quoted)]) == WaiverTable(notes=[INDENTED])
    assert waivers.load(None, [("abc1234", "S\n\n    rocattn-accept is documented\n")]) == WaiverTable()


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_of_a_verdict_can_be_waived(tmp_path, metric):
    """In the file and in a trailer; whatever is exact is a metric."""
    (one, _) = waivers.load(write(tmp_path, GOOD.replace('"time"', f'"{metric}"'))).rows
    (other,) = waivers.load(None, [("abc1234", f"S\n\nRocattn-Accept: x | {metric} | 1.3 | why\n")]).rows
    assert one.metric == other.metric == metric
    assert set(METRICS) > EXACT


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
         f"is for {KERNEL} audit gfx942, but this is {KERNEL} audit gfx1100"),
        ((KERNEL, "audit", "gfx1100"), (KERNEL, "audit", ""),
         f"is for {KERNEL} audit without an architecture, but this is {KERNEL} audit gfx1100"),
        (("flash path", "plan", ""), ("flash path", "plan", "gfx942"),
         "is for flash path plan gfx942, but this is flash path plan without an architecture"),
        ((KERNEL, "audit", "gfx1100"), ("Flash_attention  F16 D=128", "audit", "gfx1100"), "is for Flash_a"),
        ((LABEL, "time", ""), (LABEL, "mem", ""), f"is for {LABEL} mem, but this is {LABEL} time"),
        ((LABEL, "time", ""), (LABEL, "time", "gfx942"), f"is for {LABEL} time gfx942, but this is {LABEL} time"),
        ((LABEL, "time", ""), (LABEL.replace("'", '"'), "time", ""), 'is for bench.Class.time_x(1024, "'),
        ((LABEL, "time", ""), ("bench.Class.time_x", "time", ""), "is for bench.Class.time_x time, but this is"),
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
