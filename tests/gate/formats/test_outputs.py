"""The forms of one verdict for programs: JUnit, SARIF, workflow commands, and the commands that print them."""

import json
import re
from xml.etree import ElementTree as ET

import pytest
from inline_snapshot import snapshot

from rocattn_profiling.cli import main
from rocattn_profiling.gate import verdict
from rocattn_profiling.gate.formats import junit, outputs, sarif
from rocattn_profiling.gate.model import ORDER, Cause, Location

from ...screens import screen


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
        "broken": "skipped", "improvement": "passed", "ungated": "skipped", "new": "skipped", "removed": "error",
        "skipped": "skipped", "pass": "passed",
    }  # fmt: skip
    for suite in suites:
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(attribute)) == len(suite.findall(f"testcase/{tag}"))
        assert int(suite.get("tests")) == len(suite.findall("testcase"))
    failed = cases["flash f16 [audit, gfx942]"]
    assert failed.get("classname") == "audit.gfx942"
    assert screen(failed[0].text) == snapshot("""\
  flash f16 [audit, gfx942]
    0 registers -> 43 registers
    43 registers are spilled
    - machine code: 12 VGPRs spilled (kernels/hip/flash attention.hip:118)\
""")
    assert "Traceback" in cases["bench_a.Class.time_lost"][0].text
    assert cases["bench_a.Class.time_lost"].get("classname") == "bench_a.Class"


def test_junit_has_a_time_for_everything(rich, entry, result_of):
    """One call on head, in seconds without an exponent; 0 for what is no time: readers show a missing one as NaN."""
    suites, cases = junit_of(rich)
    for suite in suites:
        assert float(suite.get("time")) == pytest.approx(sum(float(case.get("time")) for case in suite))
    assert cases["verdict"].get("time") == "0"
    assert cases["flash f16 [audit, gfx942]"].get("time") == "0"
    small, large = entry("a.time_x", "pass", unit="ns", head=20.0), entry("a.time_y", "pass", unit="s", head=2e6)
    peak, lost = entry("a.peakmem_x", "pass", unit="bytes", metric="peakmem"), entry("a.time_z", "failed", head=None)
    _, cases = junit_of(result_of([small, large, peak, lost]))
    times = {name: case.get("time") for name, case in cases.items() if name.startswith("a.")}
    assert times == {"a.time_x": "0.00000002", "a.time_y": "2000000", "a.peakmem_x": "0", "a.time_z": "0"}


@pytest.mark.parametrize("status", [*ORDER, "nothing", "problem", "invalid"])
@pytest.mark.parametrize("beside", ["pass", None])
def test_junit_is_red_exactly_when_the_gate_is(entry, result_of, status, beside):
    """A CI server that reads JUnit and one that reads the exit status say the same, of an empty run, too."""
    entries = [entry(name, s, 1.2) for name, s in (("a", status), ("b", beside)) if s in ORDER]
    problems, invalid = (["x: expired"] if status == "problem" else []), ("it moved" if status == "invalid" else "")
    result = result_of(entries, problems=problems, invalid=invalid)
    suites, _ = junit_of(result)
    red = sum(int(suite.get("failures")) + int(suite.get("errors")) for suite in suites)
    assert bool(red) is (result.status != 0)


def test_a_traceback_in_junit_is_text_with_its_indentation(entry, result_of):
    """Marks that reorder text, and screens full of it, are not passed on; how far a line is indented is."""
    long = "\n".join(f"  line {number}" for number in range(5000))
    traceback = f"{long}\n  ::error::x\n    raise X\nX: \u202eeno\x1b[2J"
    root = ET.fromstring(junit.to_xml(result_of([entry("a", "failed", traceback=traceback)])))  # noqa: S314 - our own
    (told,) = (element.text for element in root.iter("error") if element.text)
    assert told.endswith("\n  line 4999\n  : :error::x\n    raise X\nX: \ufffdeno\ufffd[2J\n")
    assert "line 100\n" not in told


def test_junit_holds_any_name(hostile):
    """Control characters, ends of CDATA, surrogates: still XML, one line a name."""
    _, cases = junit_of(hostile(after="\ud800\ufffe\r"))
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
    slow = found["flash f16 [audit, gfx942]"]  # and the benchmark that the same line slowed down
    assert slow["message"]["text"] == snapshot(
        "flash f16 [audit, gfx942]: regression, 0 registers -> 43 registers. 43 registers are spilled. machine code: "
        "12 VGPRs spilled. The same applies to bench_a.Class.time_slow(1, 'cpu') 2 ms -> 2.62 ms, x1.310 [1.271, "
        "1.349] after 5 rounds."
    )
    place = slow["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == (
        "kernels/hip/flash%20attention.hip",
        118,
    )
    assert (slow["ruleId"], slow["level"]) == ("rocattn-gate/audit", "error")
    lost = found["bench_a.Class.time_lost"]
    assert lost["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "benchmarks/bench_a.py"
    assert lost["ruleId"] == "rocattn-gate/not-measured"
    assert found["bench_a.Class.time_open"]["level"] == "note"
    assert found["flash f32 [audit, gfx942]"]["ruleId"] == "rocattn-gate/improved"
    (suppression,) = found["bench_a.Class.time_known"]["suppressions"]
    assert (suppression["kind"], suppression["status"]) == ("external", "accepted")
    assert "costs a compare" in suppression["justification"]
    # 3.27.23: on all results of a run or on none; an empty list is not suppressed.
    assert sorted(len(r["suppressions"]) for r in run["results"])[-2:] == [0, 1]
    problem = next(r for r in run["results"] if r["ruleId"] == "rocattn-gate/waivers")
    place = problem["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == (".rocattn/waivers.toml", 12)
    assert not [name for name in found if "time_fine" in name or "time_fast" in name]


def test_sarif_without_waivers_says_nothing_of_suppressions(entry, result_of):
    """Nobody looked for any."""
    results = sarif_of(result_of([entry("a", "regression", 1.3)]))["results"]
    assert not [r for r in results if "suppressions" in r]


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


def test_sarif_holds_any_text(hostile, entry, result_of):
    """Hostile text, and more results than a page takes."""
    sarif_of(hostile(after="{0} {x} [a](1) \ud800"))
    run = sarif_of(result_of([entry(f"b{n}", "regression", 1.2) for n in range(5003)]))
    assert len(run["results"]) == 5000
    assert json.dumps(run["invocations"]) == snapshot(
        '[{"executionSuccessful": true, "exitCode": 1, "toolExecutionNotifications": [{"level": "error", "message": '
        '{"text": "5003 of 5003 benchmarks are slower by up to 20 % (cause not found)"}}, {"level": "warning", '
        '"message": {"text": "3 results are left out"}}]}]'
    )


def test_workflow_commands_cannot_be_forged(hostile, rich):
    """Each line is one of ours, with its properties whole: one for each cause or reason, at most ten of a kind."""
    text = outputs.workflow_commands(rich)
    place = "file=kernels/hip/flash attention.hip,line=118"
    assert text.count(f"::error {place},title=regression%3A flash f16 [audit%2C gfx942] and 1 more::") == 1
    assert text.splitlines()[-1].startswith("regression: ")
    forged = outputs.workflow_commands(hostile(text="x,title=y::\n::error file=z::forged", entries=90))
    for line in forged.splitlines()[:-1]:
        assert re.fullmatch(r"::(error|warning)( (file|line|title)=[^:,]*(,(file|line|title)=[^:,]*)*)?::.*", line)
    assert sum(line.startswith("::warning") for line in forged.splitlines()) == 1  # all have one reason
    # The last line is no command of ours: GitHub would read one in the middle of it.
    assert "##[" not in outputs.workflow_commands(hostile(text="##[stop-commands]x")).splitlines()[-1]


def test_everything_is_written_from_one_verdict(rich, tmp_path):
    """Six files; the JSON gives back what the others were made from."""
    written = outputs.write_all(rich, tmp_path / "out")
    assert [path.name for path in written] == ["verdict.json", "verdict.txt", "comment.md", "junit.xml", "gate.sarif",
                                             "index.html"]  # fmt: skip
    again = verdict.read(written[0])
    assert again == rich
    assert [make(again) for make in outputs.FILES.values()] == [path.read_text() for path in written[1:]]


@pytest.mark.parametrize(
    ("form", "begins"),
    [("text", "REGRESSION:"), ("markdown", "<!-- rocattn-gate -->"), ("junit", "<?xml"), ("sarif", "{"),
     ("summary", "### rocattn gate"), ("annotations", "::error "), ("json", "{"),
     ("html", "<!doctype html>")],
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
    assert main(["gate", "show", "/dev/zero"]) == 4
    assert screen(capsys.readouterr().err, tmp=tmp_path) == snapshot("""\
rocattn gate: cannot read the gate's verdict tmp/none.json: No such file or directory
rocattn gate: cannot read the gate's verdict /dev/zero: not a regular file\
""")
