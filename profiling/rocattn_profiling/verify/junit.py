"""Outcomes of `rocattn verify` as JUnit XML, the form that CI servers show.

A suite for each backend; a test's class is its family, its name the case's label. A backend that was asked for by name
and on which no case ran is one error. Read by Jenkins, GitLab and GitHub's
reporters; the attributes follow the schema of Jenkins' xUnit plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET  # writes only: nothing foreign is parsed

from rocattn_profiling.base.markup import xml

if TYPE_CHECKING:
    from rocattn_profiling.verify.outcomes import CaseOutcome
    from rocattn_profiling.verify.page import VerifyReport


def to_xml(report: VerifyReport) -> str:
    """Return the report as JUnit XML."""
    root = ET.Element("testsuites", name="rocattn verify", time=f"{report.seconds:.3f}")
    commands = {(failure.case, failure.backend): failure for failure in report.failures}
    for backend in dict.fromkeys(outcome.backend for outcome in report.outcomes):
        mine = [outcome for outcome in report.outcomes if outcome.backend == backend]
        counts = {
            "tests": len(mine),
            "failures": sum(not o.ok and not o.error for o in mine),
            "errors": sum(bool(o.error) for o in mine),
            "skipped": sum(not o.ran for o in mine),
        }
        seconds = f"{sum(o.seconds for o in mine):.3f}"
        numbers = {key: str(count) for key, count in counts.items()}
        suite = ET.SubElement(root, "testsuite", {"name": xml(backend), "time": seconds} | numbers)
        for outcome in mine:
            test = ET.SubElement(
                suite, "testcase", classname=f"{xml(backend)}.{outcome.family}", name=xml(outcome.case),
                time=f"{outcome.seconds:.3f}",
            )  # fmt: skip
            _add_result(test, outcome)
            if (failure := commands.get((outcome.case, backend))) is not None:
                test[0].text = xml(f"{failure.fault}\n{failure.symptom}\nagain: {failure.command}\n")
    for backend, reason in report.unchecked.items():
        numbers = {"tests": "1", "failures": "0", "errors": "1", "skipped": "0"}
        suite = ET.SubElement(root, "testsuite", {"name": f"{xml(backend)}: not checked", "time": "0.000"} | numbers)
        test = ET.SubElement(suite, "testcase", classname=xml(backend), name="asked for with --backend", time="0.000")
        ET.SubElement(test, "error", message=xml(f"not checked: {reason}"))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _add_result(test: ET.Element, outcome: CaseOutcome) -> None:
    if not outcome.ran:
        ET.SubElement(test, "skipped", message=xml(outcome.skipped))
    elif outcome.error:
        ET.SubElement(test, "error", message=xml(outcome.error))
    elif not outcome.ok:
        ET.SubElement(test, "failure", message=xml(outcome.symptom or outcome.fault))
