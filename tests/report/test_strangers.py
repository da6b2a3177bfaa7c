"""Strangers' text is text in audits, on doctor's terminal, on the site and in its feed; forms keep to their schemas."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest

from rocattn_profiling.doctor import command as doctor
from rocattn_profiling.doctor.checks import DoctorCheck
from rocattn_profiling.gate.formats import sarif
from rocattn_profiling.kernels import card, view
from rocattn_profiling.kernels.audit import Audit, audit_files
from rocattn_profiling.kernels.compare import Comparison, compare
from rocattn_profiling.site.changes import find_changes
from rocattn_profiling.site.commits import CommitInfo, History
from rocattn_profiling.site.site import Site, pages_of

from ..kernels import code_files
from ..site.conftest import make_series
from .test_payloads import HARMLESS, PAYLOADS, gate_forms, infected, structure, verify_forms  # noqa: F401 - fixtures

ATOM = "{http://www.w3.org/2005/Atom}"


@pytest.fixture(scope="module")
def audits(tmp_path_factory):
    """An audit of a text of assembly, and how it compares with one whose kernels have fewer registers."""
    folder = tmp_path_factory.mktemp("audit")
    compiler = code_files.pinned()
    (folder / "k.s").write_text(code_files.compile_text(compiler.argv, compiler.linker, folder, "gfx90a")[1])
    now = audit_files([folder / "k.s"])
    assert now.kernels
    assert all(facts.loop for facts in now.kernels)
    before = [msgspec.structs.replace(facts, vgprs=facts.vgprs // 2, lds_bytes=1) for facts in now.kernels[1:]]
    return now, compare(msgspec.structs.replace(now, kernels=before), now)


def audit_forms(audit, comparison, folder, capsys):
    """Return every form of an audit: terminal, Markdown and JSON."""
    view.write(folder, audit, comparison, (audit, comparison), pinned=False, files=True)
    view.show_table(audit, Path("x.md"), lines=True, files=True, everything=True)
    view.show_remarks(audit, lines=True, files=True)
    card.show(comparison, audit, [], Path("x.md"), notes=True)
    printed = capsys.readouterr()
    found = {"terminal": printed.err + printed.out, "markdown": (folder / view.MARKDOWN).read_text()}
    return found | {name: (folder / name).read_text() for name in (view.AUDIT, view.COMPARISON)}


@pytest.mark.parametrize("payload", PAYLOADS)
def test_names_of_kernels_are_text_in_every_form(audits, tmp_path, capsys, payload):
    """Kernels, files, compilers, source lines, gaps and findings: a code object is whoever's."""

    def shapes(text):
        audit, comparison = infected(audits[0], Audit, text), infected(audits[1], Comparison, text)
        findings = zip(comparison.findings, audits[1].findings, strict=True)  # their metrics are words of a fixed list
        ours = [msgspec.structs.replace(finding, metric=own.metric) for finding, own in findings]
        assert ours
        forms = audit_forms(audit, msgspec.structs.replace(comparison, findings=ours), tmp_path, capsys)
        return {name: structure("json" if ".json" in name else name, form) for name, form in forms.items()}

    assert shapes(PAYLOADS[payload]) == shapes(HARMLESS)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_what_tools_answer_is_text_for_doctor(payload):
    """A compiler's version, a GPU's name, a path, a variable."""
    text = PAYLOADS[payload]
    lines = doctor.lines([DoctorCheck(text, text, "warning", text, text)])
    structure("terminal", "\n".join(lines))
    assert len(lines) == 3
    assert all("\n" not in line for line in lines)


def site_pages(text):
    """Return a site's pages with a regression: a text names benchmarks, parameters, machines, commits, the branch."""
    values = [1.0 + 0.001 * (n % 3) for n in range(11)] + [1.4 + 0.001 * (n % 3) for n in range(9)]
    commits = {f"{n:040x}": CommitInfo(f"{n:040x}", n, f"{text}{n}", n, on_branch=True) for n in range(20)}
    series = [make_series(values, benchmark=f"b.{text}", params={f"p{text}": text}, env=text, unit="seconds")]
    history = History(commits, text, f"{19:040x}")
    changes = find_changes(series, history, lambda *_: "")
    assert changes.open
    machines = {"box": {"cpu": text, "ram": text, "num_cpu": text}}
    site = Site(series, history, machines, problems=[text], changes=changes, made_ms=1_790_000_000_000)
    return dict(pages_of(site))


@pytest.mark.parametrize("payload", PAYLOADS)
def test_names_of_a_history_are_text_on_every_page(payload):
    """Benchmarks, parameters, commits' subjects, the branch, machines and problems; each page, and the feed."""

    def shapes(text):
        pages = site_pages(text)
        forms = {".html": "html", ".xml": "xml", ".json": "json"}
        return [structure(forms[Path(name).suffix], page) for name, page in pages.items() if Path(name).suffix in forms]

    text = PAYLOADS[payload]
    assert shapes(text) == shapes(HARMLESS)
    feed = ET.fromstring(site_pages(text)["feed.xml"])  # noqa: S314 - our own
    of_feed, of_entry = ({"id", "title", "updated"}, {"id", "title", "updated", "link"})
    for element, needed in [(feed, {*of_feed, "author"}), *((entry, of_entry) for entry in feed.iter(f"{ATOM}entry"))]:
        found = [child.tag.removeprefix(ATOM) for child in element]
        assert needed <= set(found)
        assert all(found.count(name) == 1 for name in of_feed)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", element.find(f"{ATOM}updated").text)
        assert element.find(f"{ATOM}id").text.startswith("urn:uuid:")


# Of SARIF 2.1.0, for each object that we write: what it must have, and what else it may (its schema allows no other).
SARIF = {
    "log": ({"version", "runs"}, {"$schema"}),
    "run": ({"tool"}, {"results", "automationDetails", "columnKind", "originalUriBaseIds", "properties",
                       "invocations"}),
    "result": ({"message"}, {"ruleId", "ruleIndex", "level", "locations", "partialFingerprints", "properties",
                             "suppressions", "relatedLocations", "kind", "baselineState"}),
    "rule": ({"id"}, {"name", "shortDescription", "fullDescription", "help", "helpUri", "defaultConfiguration",
                      "properties"}),
}  # fmt: skip


def keeps(kind, content):
    """Hold an object to the members of its kind."""
    needed, others = SARIF[kind]
    assert needed <= content.keys() <= needed | others, (kind, sorted(content))


@pytest.mark.parametrize("payload", PAYLOADS)
def test_sarif_has_what_its_schema_asks_for(gate_forms, payload):  # noqa: F811 - a fixture
    """As OASIS' schema of 2.1.0 has it, which all fitted when this was written: rules, levels, places that are URIs."""
    made, kind, _ = gate_forms
    log = json.loads(sarif.to_sarif(infected(made, kind, PAYLOADS[payload])))
    keeps("log", log)
    (run,) = log["runs"]
    keeps("run", run)
    rules = run["tool"]["driver"]["rules"]
    assert log["version"] == "2.1.0"
    assert run["tool"]["driver"]["name"]
    assert run["results"]
    for rule in rules:
        keeps("rule", rule)
    for result in run["results"]:
        keeps("result", result)
        assert result["message"].keys() <= {"text", "markdown"}
        assert result["message"]["text"]
        assert result["level"] in {"none", "note", "warning", "error"}
        assert result["ruleId"] in {rule["id"] for rule in rules}
        assert all(isinstance(value, str) for value in result.get("partialFingerprints", {}).values())
        for place in result.get("locations", []):
            physical = place["physicalLocation"]
            assert re.fullmatch(r"[\w.~:/?#@!$&'()*+,;=%-]*", physical["artifactLocation"]["uri"], re.ASCII)
            assert physical.get("region", {"startLine": 1})["startLine"] >= 1


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("document", ["gate_forms", "verify_forms"])
def test_junit_has_what_its_schema_asks_for(request, document, payload):
    """As Jenkins' schema (junit-10.xsd) has it: names, one outcome a case, numbers that are the counts."""
    made, kind, forms = request.getfixturevalue(document)
    suites = ET.fromstring(forms["xml"](infected(made, kind, PAYLOADS[payload])))  # noqa: S314 - our own
    outcomes = {"failure": "failures", "error": "errors", "skipped": "skipped"}
    assert suites.tag == "testsuites"
    for suite in suites:
        assert suite.tag == "testsuite"
        assert suite.get("name")
        cases = suite.findall("testcase")
        assert int(suite.get("tests")) == len(cases) > 0
        for tag, count in (
            outcomes.items() if document == "gate_forms" else ()
        ):  # the other's words contradict each other
            assert int(suite.get(count, 0)) == sum(case.find(tag) is not None for case in cases)
        for case in cases:
            assert case.get("name") is not None
            assert case.get("classname") is not None
            assert {child.tag for child in case} <= {*outcomes, "system-out"}
            assert sum(child.tag in outcomes for child in case) <= 1
        assert all(re.fullmatch(r"\d+(\.\d+)?", one.get("time", "0")) for one in (suite, *cases))
