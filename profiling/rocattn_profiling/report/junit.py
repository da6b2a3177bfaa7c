"""Outcomes of `rocattn verify` as JUnit XML, the form that CI servers show.

A suite for each backend; a test's class is its family, its name the case's label. Read by Jenkins, GitLab and GitHub's
reporters; the attributes follow the schema of Jenkins' xUnit plugin.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET  # writes only: nothing foreign is parsed

if TYPE_CHECKING:
    from rocattn_profiling.measure.verify_outcomes import Outcome
    from rocattn_profiling.report.verify_report import VerifyReport

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # by XML 1.0, section 2.2


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
        suite = ET.SubElement(root, "testsuite", {"name": _clean(backend), "time": seconds} | numbers)
        for outcome in mine:
            test = ET.SubElement(
                suite, "testcase", classname=f"{_clean(backend)}.{outcome.family}", name=_clean(outcome.case),
                time=f"{outcome.seconds:.3f}",
            )  # fmt: skip
            _add_result(test, outcome)
            if (failure := commands.get((outcome.case, backend))) is not None:
                test[0].text = _clean(f"{failure.fault}\n{failure.symptom}\nagain: {failure.command}\n")
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _add_result(test: ET.Element, outcome: Outcome) -> None:
    if not outcome.ran:
        ET.SubElement(test, "skipped", message=_clean(outcome.skipped))
    elif outcome.error:
        ET.SubElement(test, "error", message=_clean(outcome.error))
    elif not outcome.ok:
        ET.SubElement(test, "failure", message=_clean(outcome.symptom or outcome.fault))


def _clean(text: str) -> str:
    """Return text without the characters that XML cannot hold: an exception's message may have any."""
    return _FORBIDDEN.sub("?", text)
