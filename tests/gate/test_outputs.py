"""The forms of one verdict: comment, summary, JUnit, SARIF, workflow commands, and the commands that print them."""

import html
import json
import re
from xml.etree import ElementTree as ET

import msgspec
import pytest
from markdown_it import MarkdownIt

from rocattn_profiling.cli import main
from rocattn_profiling.gate import junit, markdown, outputs, sarif, verdict
from rocattn_profiling.gate.outputs import FILES as FORMS
from rocattn_profiling.gate.verdict import Cause, Location

BAD = (
    "]]>|`</code></details><img src=x onerror=alert(1)>@org/team #12 https://evil.example\n\n# x\n::error::"
    "\x1b\u202e\x00"
)
OWN = {
    "h3", "p", "ul", "li", "strong", "code", "table", "thead", "tbody", "tr", "th", "td", "details", "summary"
}  # fmt: skip
CAUSE = Cause(
    kind="machine code", text="12 VGPRs spilled", location=Location(path="kernels/hip/flash attention.hip", line=118)
)


@pytest.fixture
def rich(entry, result_of):
    """A verdict with an entry of every kind, two of them of machine code."""
    return result_of(
        [
            entry("bench_a.Class.time_slow(1, 'cpu')", "regression", 1.31, causes=[CAUSE], explanation="It spills."),
            entry("flash f16", "regression", decision=None, metric="audit", arch="gfx942", base=0.0, head=43.0,
                  unit="registers", reason="43 registers are spilled", causes=[CAUSE]),
            entry("bench_a.Class.time_lost", "failed", reason="ValueError: x", traceback="Traceback\n  line"),
            entry("bench_a.Class.time_gone", "missing", reason="not there"),
            entry("bench_a.Class.time_open", "inconclusive", 1.04),
            entry("bench_a.Class.time_known", "waived", 1.08, waiver="costs a compare (#41, up to x1.1)"),
            entry("bench_a.Class.time_both", "broken", reason="no"),
            entry("bench_a.Class.time_fast", "improvement", 0.7),
            entry("flash f32", "improvement", 0.9, metric="audit", arch="gfx942"),
            entry("bench_a.Class.time_rate", "ungated", reason="shown"),
            entry("bench_a.Class.time_new", "new", reason="base: x"),
            entry("bench_a.Class.time_old", "removed", reason="gone"),
            entry("bench_a.Class.time_skip", "skipped", reason="no GPU"),
            entry("bench_a.Class.time_fine", "pass"),
        ],
        problems=[".rocattn/waivers.toml:12: the waiver of x time expired on 2026-01-01"], notes=["a note"],
        environment_differences={"numpy": ("2.4.5", "2.4.6")},
    )  # fmt: skip


def hostile(entry, result_of, text=BAD, entries=12):
    """A verdict in which every text is foreign."""
    cause = Cause(kind="source", text=text, location=Location(path=text, line=1))
    facts = {
        "reason": text,
        "explanation": text,
        "waiver": text,
        "causes": [cause] * 3,
        "unit": text,
        "traceback": text,
    }
    statuses = [s for s in verdict.ORDER if s in {"regression", "failed", "inconclusive", "waived", "new", "pass"}]
    made = result_of(
        [entry(f"{text}{n}", statuses[n % len(statuses)], 1.2, name=text, metric="audit" if n % 5 == 4 else "time",
               arch=text if n % 5 == 4 else "", **facts) for n in range(entries)],
        notes=[text] * 3, problems=[text] * 3, environment_differences={text: (text, text)}, suite=text,
        patterns=[text],
    )  # fmt: skip
    revision = msgspec.structs.replace(made.base.revision, subject=text, name=text)
    side = msgspec.structs.replace(made.base, revision=revision, python=text)
    machine = msgspec.structs.replace(made.machine, name=text, cpu=text, os=text, gpu=text, gfx=text, driver=text)
    return msgspec.structs.replace(made, base=side, head=side, machine=machine)


def tags(source):
    """Return the tags of Markdown as GitHub renders it."""
    page = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(source)
    return page, re.findall(r"<([a-zA-Z!][^>]*)>", page)


def test_the_comment_is_worst_first_and_says_why(rich):
    """Regressions, what was lost, what is open, what is waived; then folded reasons, then how it was measured."""
    text = markdown.comment(rich)
    assert text.startswith("<!-- rocattn-gate -->\n### rocattn gate: regression\n")
    words = re.findall(r"^\| <code>[^|]*\| \**([a-z]+)\** \|", text, re.MULTILINE)
    assert words == ["regression", "regression", "failed", "missing", "inconclusive", "waived", "broken", "improvement",
                     "improvement", "new", "removed"]  # fmt: skip
    assert "| 2 ms | 2.62 ms | x1.310 | &#91;1.271, 1.349&#93; |" in text
    assert "| 0 registers | 43 registers |  |  |" in text
    assert "It spills." in text
    assert "- **machine code:** 12 VGPRs spilled (<code>kernels/hip/flash attention.hip&#58;118</code>)" in text
    assert "waived: costs a compare (&#35;&#8203;41, up to x1.1)" in text
    assert "**problem:** .rocattn/waivers.toml" in text
    assert "<code>numpy</code> <code>2.4.5</code> on base, <code>2.4.6</code> on head" in text
    assert "1 ungated, 1 new, 1 removed, 1 skipped, 1 pass" in text
    assert "Cut to size" not in text


def test_what_is_likely_slower_is_marked_and_rules_of_its_own_are_shown(entry, result_of):
    """Undecided is not unsuspicious; and whoever reads why must see what was asked."""
    likely = entry("a", "inconclusive", 1.05, suspect=True)
    result = result_of(
        [likely, entry("b", "inconclusive"), entry("c", "regression", 1.2, rule="a change counts from 9 % (t.toml:3)")],
        suite_shift=1.01, suite_low=0.99, suite_high=1.03,
    )  # fmt: skip
    text = markdown.comment(result)
    assert text.count("| inconclusive, likely slower |") == text.count("| inconclusive |") == 1
    assert "rule: a change counts from 9 % (t.toml&#58;3)" in text
    assert "all benchmarks together: x1.010 &#91;0.990, 1.030&#93;; fixed work: x1.000" in text
    shown = FORMS["verdict.txt"](result)
    assert shown.count("likely slower") == 1
    assert "\nall benchmarks together: x1.010 [0.990, 1.030]; fixed work: x1.000\n" in shown
    assert "    rule: a change counts from 9 % (t.toml:3)\n" in shown


def test_the_comment_links_to_its_run_only_when_told(rich):
    """The address is the workflow's own; a verdict names none."""
    assert "http" not in markdown.comment(rich)
    assert "([run](https://h/a/b/actions/runs/1))" in markdown.comment(rich, run_url="https://h/a/b/actions/runs/1")


def test_hostile_text_is_text_everywhere_in_the_comment(entry, result_of):
    """Names, reasons, waivers, notes, packages, machines, revisions: only the comment's own tags are left."""
    result = hostile(entry, result_of)
    for text in (markdown.comment(result), markdown.summary(result)):
        page, found = tags(text)
        kinds = {tag.split()[0] for tag in found if not tag.startswith("!")}
        assert kinds <= OWN
        assert not re.search(r"@org|#12|://|\x1b|\u202e|\x00", html.unescape(page))
        rows = sum(entry_.status != "pass" for entry_ in result.entries)
        assert page.count("<tr>") == rows + 1
        assert page.count("<td") == 6 * rows
        assert text.count("<details>") == text.count("</details>") == page.count("<details>")
        assert text.count("\n## ") == text.count("\n# ") == 0


def test_a_name_cannot_forge_the_mark(entry, result_of):
    """The next run replaces the comment that begins with the mark: there is one, and it is the first line."""
    text = markdown.comment(hostile(entry, result_of, text="\n<!-- rocattn-gate -->\n"))
    assert text.count(markdown.MARKER) == 1


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("x" * 1_000_000, 6),
        ("@" * 1_000_000, 6),
        ("\U0001f600" * 1000, 60),
        ("#1 " * 300, 1),
        (BAD * 9, 60),
        ("n", 3000),
    ],
    ids=["long", "mentions", "emoji", "references", "hostile", "many"],
)
def test_the_comment_stays_below_its_limit_and_counts_what_is_left_out(entry, result_of, text, entries):
    """In bytes, whatever the names are; never cut in the middle of an element."""
    result = hostile(entry, result_of, text=text, entries=entries)
    made = markdown.comment(result)
    assert len(made.encode()) <= markdown.COMMENT_BYTES < 64_000
    page, _ = tags(made)
    assert page.count("<details>") == page.count("</details>") == made.count("</details>")
    rows = page.count("<tr>") - 1
    assert rows >= 1
    all_rows = sum(e.status != "pass" for e in result.entries)
    if rows < all_rows:
        assert f"{all_rows - rows} more rows" in made
    assert "How it was measured" in made


def test_an_ordinary_verdict_of_500_benchmarks_is_shown_as_far_as_it_fits(entry, result_of):
    """Every regression's row comes before anything else; passes take no room."""
    names = [f"bench_suite.QuickDecode.time_decode({n}, 'cpu-flash')" for n in range(500)]
    result = result_of([entry(name, "regression" if n < 30 else "pass", 1.1 + n / 100) for n, name in enumerate(names)])
    made = markdown.comment(result)
    assert made.count("| **regression** |") == 30
    assert made.count("</details>") == 31
    assert "Cut to size" not in made


def test_the_summary_is_appended_once_a_step(rich, tmp_path):
    """After what is there already, without the comment's mark; without the variable nothing happens."""
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    assert outputs.step_summary(rich, {"GITHUB_STEP_SUMMARY": str(path)}) == ""
    text = path.read_text()
    assert text.startswith("before\n\n### rocattn gate: regression\n")
    assert markdown.MARKER not in text
    assert outputs.step_summary(rich, {}) == ""


def test_the_summary_never_makes_the_file_too_large(entry, result_of, tmp_path):
    """GitHub drops a summary above 1 MiB, all of it: what is there keeps its place, and the gate goes on."""
    path = tmp_path / "summary.md"
    big = hostile(entry, result_of, text="y" * 300, entries=9000)
    for before in (0, 600_000, 1_040_000):
        path.write_text("x" * before)
        said = outputs.step_summary(big, {"GITHUB_STEP_SUMMARY": str(path)})
        assert path.stat().st_size <= 1 << 20
        assert bool(said) is (before > 1_000_000)
    assert outputs.step_summary(big, {"GITHUB_STEP_SUMMARY": str(tmp_path / "no" / "folder")}).startswith(
        "cannot write"
    )


def junit_of(result):
    """Parse the JUnit form; return the suites and the cases by name."""
    root = ET.fromstring(junit.to_xml(result))  # noqa: S314 - our own
    suites = list(root)
    return suites, {case.get("name"): case for suite in suites for case in suite}


def test_junit_has_a_case_for_each_benchmark(rich):
    """Failure: regression; error: lost on head; skipped: undecided, waived, not judged; the rest passes."""
    suites, cases = junit_of(rich)
    assert len(cases) == len(rich.entries) + 2  # the verdict, and one problem
    kinds = {}
    for entry in rich.entries:
        case = cases[next(name for name in cases if name.startswith(entry.label))]
        kinds[entry.status] = next((child.tag for child in case if child.tag != "system-out"), "passed")
    assert kinds == {
        "regression": "failure", "failed": "error", "missing": "error", "inconclusive": "skipped", "waived": "skipped",
        "broken": "skipped", "improvement": "passed", "ungated": "skipped", "new": "skipped", "removed": "skipped",
        "skipped": "skipped", "pass": "passed",
    }  # fmt: skip
    for suite in suites:
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(attribute)) == len(suite.findall(f"testcase/{tag}"))
        assert int(suite.get("tests")) == len(suite.findall("testcase"))
    failed = cases["flash f16 [audit, gfx942]"]
    assert failed.get("classname") == "audit.gfx942"
    assert "12 VGPRs spilled (kernels/hip/flash attention.hip:118)" in failed[0].text
    assert "Traceback" in cases["bench_a.Class.time_lost"][0].text
    assert cases["bench_a.Class.time_lost"].get("classname") == "bench_a.Class"


@pytest.mark.parametrize("status", [*verdict.ORDER, "nothing", "problem", "invalid"])
@pytest.mark.parametrize("beside", ["pass", None])
def test_junit_is_red_exactly_when_the_gate_is(entry, result_of, status, beside):
    """A CI server that reads JUnit and one that reads the exit status say the same, of an empty run, too."""
    entries = [entry(name, s, 1.2) for name, s in (("a", status), ("b", beside)) if s in verdict.ORDER]
    problems, invalid = (["x: expired"] if status == "problem" else []), ("it moved" if status == "invalid" else "")
    result = result_of(entries, problems=problems, invalid=invalid)
    suites, _ = junit_of(result)
    red = sum(int(suite.get("failures")) + int(suite.get("errors")) for suite in suites)
    assert bool(red) is (result.status != 0)


def test_a_traceback_in_junit_is_text_with_its_indentation(entry, result_of):
    """Marks that reorder text, and screens full of it, are not passed on; how far a line is indented is."""
    long = "\n".join(f"  line {number}" for number in range(5000))
    traceback = f"{long}\n    raise X\nX: \u202eeno\x1b[2J"
    root = ET.fromstring(junit.to_xml(result_of([entry("a", "failed", traceback=traceback)])))  # noqa: S314 - our own
    (told,) = (element.text for element in root.iter("error") if element.text)
    assert told.endswith("\n  line 4999\n    raise X\nX: \ufffdeno\ufffd[2J\n")
    assert "line 100\n" not in told


def test_junit_holds_any_name(entry, result_of):
    """Control characters, ends of CDATA, surrogates: still XML, one line a name."""
    _, cases = junit_of(hostile(entry, result_of, text=BAD + "\ud800\ufffe\r"))
    assert len(cases) > 10
    assert not [name for name in cases if set(name) & set("\n\r\t\x00\x1b\u202e")]


def sarif_of(result):
    """Return the SARIF run, held to what the standard's schema demands of the parts we write."""
    log = json.loads(sarif.to_sarif(result))
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(set(ids)) == len(ids)
    for rule in driver["rules"]:
        assert rule["defaultConfiguration"]["level"] in {"none", "note", "warning", "error"}
        assert all(rule[key]["text"] for key in ("shortDescription", "fullDescription", "help"))
    for notification in run["invocations"][0]["toolExecutionNotifications"]:
        assert notification["message"]["text"]
    for result_ in run["results"]:
        assert ids[result_["ruleIndex"]] == result_["ruleId"]
        assert result_["level"] in {"note", "warning", "error"}
        text = result_["message"]["text"]
        assert text
        # 3.11.5: a single brace would be a placeholder; 3.11.6: a bracket before a parenthesis a link.
        assert not re.search(r"(?<!\{)(\{\{)*\{(?!\{)", text)
        assert "](" not in text
        assert all(isinstance(v, str) for v in result_["partialFingerprints"].values())
        places = result_["locations"] + result_.get("relatedLocations", [])
        assert result_["locations"]
        for place in places:
            artifact = place["physicalLocation"]["artifactLocation"]
            assert re.fullmatch(r"[A-Za-z0-9._~%/+-]+", artifact["uri"])
            assert not artifact["uri"].startswith("/")
            assert ".." not in artifact["uri"].split("/")
            assert place["physicalLocation"]["region"]["startLine"] >= 1
    return run


def test_sarif_points_at_the_line_that_did_it(rich):
    """A cause's line for what has one, else the benchmark's file; waived ones are suppressed with their reason."""
    run = sarif_of(rich)
    found = {r["message"]["text"].split(":")[0]: r for r in run["results"]}
    slow = found["bench_a.Class.time_slow(1, 'cpu')"]
    place = slow["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == (
        "kernels/hip/flash%20attention.hip",
        118,
    )
    assert (slow["ruleId"], slow["level"]) == ("rocattn-gate/time", "error")
    assert slow["properties"]["ratio"] == pytest.approx(1.31)
    assert found["flash f16 [audit, gfx942]"]["ruleId"] == "rocattn-gate/audit"
    lost = found["bench_a.Class.time_lost"]
    assert lost["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "benchmarks/bench_a.py"
    assert lost["ruleId"] == "rocattn-gate/not-measured"
    assert found["bench_a.Class.time_open"]["level"] == "note"
    assert found["flash f32 [audit, gfx942]"]["ruleId"] == "rocattn-gate/improved"
    (suppression,) = found["bench_a.Class.time_known"]["suppressions"]
    assert (suppression["kind"], suppression["status"]) == ("external", "accepted")
    assert "costs a compare" in suppression["justification"]
    problem = next(r for r in run["results"] if r["ruleId"] == "rocattn-gate/waivers")
    place = problem["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == (".rocattn/waivers.toml", 12)
    assert not [name for name in found if "time_fine" in name or "time_fast" in name]


def test_sarif_names_stay_from_run_to_run(entry, result_of):
    """The same benchmark has the same fingerprint whatever it measured; metric and architecture tell others apart."""

    def prints(*entries):
        return [r["partialFingerprints"] for r in sarif_of(result_of(list(entries)))["results"]]

    assert prints(entry("a", "regression", 1.2)) == prints(entry("a", "regression", 1.7))
    kernels = [entry("a", "regression", 1.2, metric="audit", arch=arch) for arch in ("gfx942", "gfx1100")]
    assert len({json.dumps(p) for p in prints(entry("a", "regression", 1.2), *kernels)}) == 3


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "a\\b", "", "a\nb", "%2e%2e/x", "http://evil/x"])
def test_sarif_paths_stay_in_the_repository(entry, result_of, path):
    """A hostile path is either left out or harmless as a relative address."""
    cause = Cause(kind="source", text="t", location=Location(path=path, line=-3))
    run = sarif_of(result_of([entry("bench_a.C.time_x", "regression", 1.2, causes=[cause])]))
    uri = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "benchmarks/bench_a.py" or not re.match(r"[a-z]+:|/|.*\.\./", uri)


@pytest.mark.parametrize(
    ("name", "suite", "file"),
    [
        ("bench_a.Class.time_x", "benchmarks", "benchmarks/bench_a.py"),
        ("sub.bench_a.Class.time_x", "perf/suite", "perf/suite/sub/bench_a.py"),
        ("bench_a.time_x", ".", "bench_a.py"),
        ("bench_a", "benchmarks", "benchmarks/bench_a.py"),
        ("bench_a.Class.time_x", "/somewhere/suite", "suite/bench_a.py"),
        ("what? no name", "benchmarks", "benchmarks"),
    ],
)
def test_a_benchmarks_file_follows_from_its_name(entry, result_of, name, suite, file):
    """asv names a benchmark by module, class and function below the suite's folder."""
    run = sarif_of(result_of([entry(name, "failed", reason="x")], suite=suite))
    assert run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == file


def test_sarif_holds_any_text(entry, result_of):
    """Hostile text, and more results than a page takes."""
    sarif_of(hostile(entry, result_of, text=BAD + "{0} {x} [a](1) \ud800"))
    run = sarif_of(result_of([entry(f"b{n}", "regression", 1.2) for n in range(5003)]))
    assert len(run["results"]) == 5000
    assert "3 results are left out" in json.dumps(run["invocations"])


def test_workflow_commands_cannot_be_forged(entry, result_of, rich):
    """Each line is one of ours, with its properties whole; ten of a kind, for GitHub shows no more."""
    text = outputs.workflow_commands(rich)
    place = "file=kernels/hip/flash attention.hip,line=118"
    assert f"::error {place},title=regression%3A bench_a.Class.time_slow(1%2C 'cpu')::" in text
    assert text.splitlines()[-1].startswith("regression: ")
    forged = outputs.workflow_commands(
        hostile(entry, result_of, text="x,title=y::\n::error file=z::forged", entries=90)
    )
    for line in forged.splitlines()[:-1]:
        assert re.fullmatch(r"::(error|warning)( (file|line|title)=[^:,]*(,(file|line|title)=[^:,]*)*)?::.*", line)
    assert sum(line.startswith("::warning") for line in forged.splitlines()) == 10


def test_everything_is_written_from_one_verdict(rich, tmp_path):
    """Five files; the JSON gives back what the others were made from."""
    written = outputs.write_all(rich, tmp_path / "out")
    assert [path.name for path in written] == ["verdict.json", "verdict.txt", "comment.md", "junit.xml", "gate.sarif"]
    again = verdict.read(written[0])
    assert again == rich
    assert [make(again) for make in outputs.FILES.values()] == [path.read_text() for path in written[1:]]


@pytest.mark.parametrize(
    ("form", "begins"),
    [("text", "REGRESSION:"), ("markdown", "<!-- rocattn-gate -->"), ("junit", "<?xml"), ("sarif", "{"),
     ("summary", "### rocattn gate"), ("annotations", "::error "), ("json", "{")],
)  # fmt: skip
def test_show_prints_each_form_alone_on_stdout(rich, tmp_path, capsys, form, begins):
    """From the file or its folder; into a file when asked."""
    path = verdict.write(rich, tmp_path / "verdict.json")
    assert main(["gate", "show", str(path), "--format", form]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(begins)
    assert main(["gate", "show", str(tmp_path), "--format", form, "--out", str(tmp_path / "x")]) == 0
    assert (tmp_path / "x").read_text() == printed
    assert capsys.readouterr().out == ""


def test_show_ends_with_the_verdicts_status_when_asked(entry, result_of, tmp_path, capsys):
    """So that a later step of a workflow can be as red as the gate was."""
    path = verdict.write(result_of([entry("a", "inconclusive")]), tmp_path / "verdict.json")
    assert main(["gate", "show", str(path), "--exit-status"]) == 0
    assert main(["gate", "show", str(path), "--exit-status", "--strict"]) == 2
    path = verdict.write(result_of([]), tmp_path / "verdict.json")
    assert main(["gate", "show", str(path), "--exit-status"]) == 3
    assert main(["gate", "show", str(path), "--json"]) == 0
    assert main(["gate", "show", str(tmp_path / "none.json")]) == 4
    assert "cannot read the gate's verdict" in capsys.readouterr().err
    assert main(["gate", "show", "/dev/zero"]) == 4
    assert "/dev/zero: not a regular file" in capsys.readouterr().err
