"""A verdict as JUnit XML: a test case for each benchmark and exact metric, and one for the verdict as a whole.

A regression is a failure; a benchmark that ran on base but not on head is an error; one that is undecided, waived or
not judged is skipped. A case's time is that of one call on head. The verdict has its own case, so a CI server that
counts failures never mistakes an empty run for a good one.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET  # writes only: no untrusted input is parsed

from rocattn_profiling.base.markup import plain, terminal, xml
from rocattn_profiling.gate.formats import render
from rocattn_profiling.gate.model import Entry, GateResult
from rocattn_profiling.gate.rule.pairs import TIMES

_ELEMENTS = {
    "regression": "failure", "failed": "error", "missing": "error", "void": "error", "removed": "error",
    "broken": "skipped", "inconclusive": "skipped", "waived": "skipped", "ungated": "skipped", "new": "skipped",
    "skipped": "skipped", "unreached": "skipped",
}  # fmt: skip
_OVERALL = {"regression": "failure", "problem": "failure", "not measured": "error", "inconclusive": "skipped"}
_TRACEBACK, _LINES = 100_000, 1000  # characters and lines shown
_COUNTED = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def to_xml(result: GateResult) -> str:
    """Return the verdict as JUnit XML."""
    root = ET.Element("testsuites", name="rocattn gate")
    suites: dict[str, list[ET.Element]] = {}
    for entry in result.entries:
        suites.setdefault(entry.metric, []).append(_case(entry))
    for name, cases in [("gate", _overall(result)), *suites.items()]:
        counts = {key: str(sum(case.find(tag) is not None for case in cases)) for key, tag in _COUNTED.items()}
        counts |= {"tests": str(len(cases)), "time": _seconds(sum(float(case.get("time", 0)) for case in cases))}
        suite = ET.SubElement(root, "testsuite", {"name": _attribute(name)} | counts)
        suite.extend(cases)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _overall(result: GateResult) -> list[ET.Element]:
    """Return the case of the verdict, and one for each waiver that is expired or unused."""
    verdict = _element("rocattn.gate", "verdict", _OVERALL.get(result.verdict, ""), result.sentence, "")
    return [verdict, *(_element("rocattn.gate", problem, "failure", problem, "") for problem in result.problems)]


def _case(entry: Entry) -> ET.Element:
    module, _, _ = entry.name.partition("(")
    group = f"{entry.metric}.{entry.arch}" if entry.arch else module.rpartition(".")[0] or entry.metric
    lines = [*render.entry_lines(entry), *_traceback(entry.traceback)]
    message = entry.waiver or render.why(entry)
    case = _element(group, render.title(entry), _kind(entry), f"{entry.status}: {message}", "\n".join(lines))
    if entry.metric == "time" and entry.head is not None:
        case.set("time", _seconds(entry.head * TIMES.get(entry.unit, 0.0) / TIMES["s"]))
    return case


def _kind(entry: Entry) -> str:
    """Return the element that says how a case ended; "" for one that passed."""
    kind = _ELEMENTS.get(entry.status, "")
    return "skipped" if kind == "error" and not entry.lost else kind


def _traceback(text: str) -> list[str]:
    """Return the last lines of a traceback, where the error is."""
    lines = text[-_TRACEBACK:].splitlines()[-_LINES:]
    # Keep indentation, which shows the structure of a traceback.
    return [line[: len(line) - len(line.lstrip(" "))][:40] + terminal(line, 1000) for line in lines]


def _element(group: str, name: str, tag: str, message: str, text: str) -> ET.Element:
    # Some readers show a case without a time as "NaN".
    case = ET.Element("testcase", classname=_attribute(group), name=_attribute(name), time="0")
    # Numbers are output of a passing case; otherwise they are in the element of its outcome.
    outcome = ET.SubElement(case, tag, message=_attribute(message, 2000)) if tag else None
    if text:
        output = ET.SubElement(case, "system-out") if outcome is None else outcome
        output.text = xml(f"\n{text}\n")
    return case


def _seconds(value: float) -> str:
    """Return seconds as an XML decimal, which has no exponent."""
    return f"{value:.9f}".rstrip("0").rstrip(".")


def _attribute(text: str, most: int = 500) -> str:
    return xml(plain(text, most))
