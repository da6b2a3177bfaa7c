"""Strangers' text is text: every payload in every string of every document, in every form of output."""

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import msgspec
import pytest
from markdown_it import MarkdownIt

from rocattn_profiling.bench import report as bench_report
from rocattn_profiling.bench import view as bench_view
from rocattn_profiling.cli import main
from rocattn_profiling.gate.formats import card, junit, markdown, outputs, page, sarif
from rocattn_profiling.gate.model import Cause, Entry, GateResult, Location
from rocattn_profiling.measure.records import Check, Record
from rocattn_profiling.memory import command as memory_command
from rocattn_profiling.memory import page as memory_page
from rocattn_profiling.memory.measure import MemoryFit, MemoryPoint, MemoryStudy
from rocattn_profiling.memory.model import Growth, Theory
from rocattn_profiling.report.command import report_html, report_markdown
from rocattn_profiling.verify import report as verify_report
from rocattn_profiling.verify.outcomes import CaseOutcome, Verification

from ..profile.ingest import generators as g

PAYLOADS = {
    "clears the screen": "\x1b[2J\x1b[1;1H", "title of the window": "\x1b]0;x\x07", "one-byte CSI": "\x9b31m",
    "script": "<script>alert(1)</script>", "attribute": "\" onmouseover=alert(1) x='",
    "image": "<img src=x onerror=a()>",
    "comment": "--><b>", "template": "{{ 7*7 }}{% raw %}", "link": "[a](https://evil.example)",
    "picture": "![a](https://evil.example/x.png)", "mention": "@org/team", "reference": "#1 org/repo#2 GH-3",
    "address": "https://evil.example www.evil.example", "heading": "\n\n# Approved\n\n",
    "table": "| a | b |\n|--|--|\n",
    "fence": "```\n</code></pre>~~~", "command": "\n::error file=a::x", "other commands": "##[error]x ##vso[task.x]y",
    "carriage return": "fine\rPASS", "bidi": "\u202efdp\u2066", "formula": '=HYPERLINK("https://e",1)',
    "JSON": '"},{"level":"note","x":"', "XML": "]]><failure/>\ufffe\x00", "diff": "<b>@x\x1b[1m",
}  # fmt: skip
HARMLESS = "harmless"
ACTIVE = {
    "script",
    "img",
    "a",
    "iframe",
    "form",
    "input",
    "link",
    "style",
    "meta",
    "base",
    "object",
    "b",
    "h1",
    "table",
}
CHANGE = "@@ -1 +1 @@\n-old\n+new"


def infected(document, kind, text):
    """Return a document with the text in every string that may have any: the others are words of a fixed list."""
    content = json.loads(msgspec.json.encode(document))

    def infect(value, put):
        for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
            if isinstance(item, dict | list) and key != "config":  # which takes no other words
                infect(item, put)
            elif isinstance(item, str):
                value[key] = text
                try:
                    put()
                except msgspec.ValidationError:
                    value[key] = item

    infect(content, lambda: msgspec.convert(content, kind))
    assert text in json.dumps(content, ensure_ascii=False) or json.dumps(text)[1:-1] in json.dumps(content)
    return msgspec.convert(content, kind)


class _Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes = Counter(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += tag in ACTIVE
        self.attributes |= {name for name, _ in attrs if name.startswith("on")}


def structure(form, text):
    """Return what a reader of a form acts on, and check what none may hold."""
    if form in {"html", "markdown"}:
        html = text if form == "html" else MarkdownIt("commonmark").enable("table").render(text)
        found = _Tags(html)
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
        assert form == "html" or not re.search(r"(?<![\w&])@org|(?<![&\w])#1\b|\bGH-3", text)
        return +found.tags, found.attributes
    if form == "terminal":
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
        assert not re.search(r"(?m)^\s*::|##\w*\[", text)
        return None
    if form == "commands":
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
        return re.findall(r"(?m)^::(\w+)", text)
    if form == "xml":
        return Counter(element.tag for element in ET.fromstring(text).iter())  # noqa: S314 - our own
    return keys_of(json.loads(text))


def keys_of(value):
    """Return the keys of a JSON document, in order."""
    if isinstance(value, dict):
        return [(key, keys_of(item)) for key, item in value.items()]
    return [keys_of(item) for item in value] if isinstance(value, list) else None


@pytest.fixture
def gate_forms(verdict):
    """A verdict with causes, and its forms."""
    cause = Cause(kind="source", text="t", location=Location(path="a.py", line=3), diff=CHANGE.splitlines())
    entries = [msgspec.structs.replace(e, causes=[cause], waiver="w", traceback="t") for e in verdict.entries]
    more = Entry(label="k", name="k", status="regression", metric="audit", arch="gfx942", base=0.0, head=4.0, unit="u",
                 reason="r", causes=[cause])  # fmt: skip
    whole = msgspec.structs.replace(verdict, entries=[*entries, more], problems=["p"], invalid="")
    return whole, GateResult, {
        "terminal": card.text, "html": page.html, "markdown": lambda r: markdown.comment(r) + markdown.summary(r),
        "xml": junit.to_xml, "json": sarif.to_sarif, "commands": outputs.workflow_commands,
    }  # fmt: skip


@pytest.fixture
def memory_forms(capsys):
    """A study of memory, and its forms."""
    theory = Theory(inputs=1, outputs=1, workspace=1, scores=1)
    points = [
        MemoryPoint(
            backend="cpu", length=n, label="l", theory=theory, matrix_bytes=9, allocated_bytes=3 * n, rss_bytes=4
        )
        for n in (1, 2, 4)
    ]
    points.append(
        MemoryPoint(backend="cpu", length=9, label="l", theory=theory, matrix_bytes=9, status="failed", skipped="s")
    )
    fit = MemoryFit(backend="cpu", growth=Growth(exponent=1.0, low=0.9, high=1.1, fixed_bytes=1.0, factor=1.0,
                    misfit_pct=0.1, lengths=3), longest=9, longest_theory_bytes=9, longest_measured_bytes=9.0,
                    worst_difference_pct=1.0)  # fmt: skip
    config = {"batch": 1, "num_heads": 2, "seq_q": 9, "seq_k": 9, "head_dim": 8}
    study = MemoryStudy(config=config, keep_queries=False, threads=1, budget_bytes=99, points=points, fits=[fit],
                        reductions=[], absent={"gpu": "a"})  # fmt: skip

    def printed(study):
        memory_command._print(study)
        return capsys.readouterr().err

    return study, MemoryStudy, {
        "terminal": printed, "html": lambda s: memory_page.html(memory_page.build(s, 1)),
        "markdown": lambda s: memory_page.markdown(memory_page.build(s, 1)),
    }  # fmt: skip


@pytest.fixture
def bench_forms(records, capsys):
    """Records, and their forms."""
    failed = msgspec.structs.replace(records[0], status="failed", skipped="s", launches=[], check=None)

    def printed(made):
        bench_view.print_tables([(made[0].suite, made)])
        return capsys.readouterr().err

    return [*records, failed], list[Record], {
        "terminal": printed, "html": lambda r: report_html(bench_report.build(r), 1),
        "markdown": lambda r: report_markdown(bench_report.build(r)),
        "json": lambda r: json.dumps(bench_report.to_json(bench_report.build(r))),
    }  # fmt: skip


@pytest.fixture
def verify_forms(capsys):
    """Outcomes of checks, and their forms."""
    check = Check(ok=False, max_abs_error=1.0, max_rel_error=1.0, rms_error=1.0, naive_max_abs_error=1.0, factor=2.0,
                  rows_checked=1, rows=1, ratio=9.0)  # fmt: skip
    outcomes = [
        CaseOutcome(case="c", backend="cpu", options=["o"], check=check, problem="p", symptom="s"),
        CaseOutcome(case="c", backend="gpu", options=["o"], error="e"),
        CaseOutcome(case="c", backend="x", options=["o"], skipped="k"),
    ]

    def built(outcomes):
        text = outcomes[0].case
        return verify_report.build(
            Verification(outcomes), cases=3, level="quick", seed=0, unavailable={text: text}, stand_ins=[text],
            architectures={text: text}, again=lambda o: o.case, started=0.0, seconds=1.0,
        )  # fmt: skip

    def printed(outcomes):
        verify_report.print_tables(built(outcomes))
        verify_report.print_failures(built(outcomes), 9)
        return capsys.readouterr().err

    return outcomes, list[CaseOutcome], {
        "terminal": printed, "html": lambda o: verify_report.to_html(built(o)),
        "xml": lambda o: verify_report.to_xml(built(o)),
        "json": lambda o: json.dumps(list(verify_report.to_json(built(o)))),
    }  # fmt: skip


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("document", ["gate_forms", "memory_forms", "bench_forms", "verify_forms"])
def test_a_payload_is_text_in_every_form(request, document, payload):
    """Each form has the structure that it has with a harmless word in the same places, and nothing that acts."""
    made, kind, forms = request.getfixturevalue(document)
    whole = {text: infected(made, kind, text) for text in (HARMLESS, PAYLOADS[payload])}
    for form, write in forms.items():
        usual, found = (structure(form, write(each)) for each in whole.values())
        assert found == usual, (form, payload)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_names_of_a_profile_are_text_in_every_form(tmp_path, capsys, payload):
    """Kernels' and counters' names, the command and the agent come from the profiled program."""

    def written(text, folder):
        made = [replace(one, kernel=text) for one in g.launches(2, counters=("SQ_WAVES", "GRBM_GUI_ACTIVE"))]
        g.v3_counters(folder / "a_counter_collection.csv", made)
        g.v3_trace(folder / "a_kernel_trace.csv", made)
        assert main(["report", str(folder), "--out", str(folder / "out")]) in {0, 3}
        found = {"terminal": capsys.readouterr().err.replace(str(folder), "")}
        for path in (folder / "out").iterdir():
            form = {".html": "html", ".md": "markdown", ".json": "json"}.get(path.suffix)
            if form:
                found[form] = path.read_text().replace(str(folder), "")
        return {form: structure(form, text) for form, text in found.items()}

    for name in ("usual", "odd"):
        (tmp_path / name).mkdir()
    text = PAYLOADS[payload].replace("\n", " ").replace("\x00", "")
    assert written(text, tmp_path / "odd") == written(HARMLESS, tmp_path / "usual")
