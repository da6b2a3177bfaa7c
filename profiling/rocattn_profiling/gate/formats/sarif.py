"""A verdict as SARIF 2.1.0: results with locations, for code-scanning pages and editors.

Follows the OASIS standard (2.1.0, errata 1). There is one result per cause, which points at its source line, and one
per reason why benchmarks are undecided; without a known line, a result points at the file of its benchmark.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import rocattn
from rocattn_profiling.base.card import listed
from rocattn_profiling.base.markup import plain
from rocattn_profiling.gate.formats import render
from rocattn_profiling.gate.groups import by_cause, by_reason
from rocattn_profiling.gate.model import EXACT, Entry, GateResult, Location
from rocattn_profiling.gate.waivers import FILE as WAIVERS

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_MOST_RESULTS = 5000  # GitHub ignores further ones
_MOST_CHARACTERS = 4000
_NAMED = 10  # benchmarks in one message, in addition to the worst


class _Rule(NamedTuple):
    name: str
    short: str
    help: str
    level: str = "error"


_MEASURED = (
    "The result says what differs on this benchmark's path; measure it again with rocattn gate run --bench NAME."
)
_EXACT = "The metric is computed, not measured: it is the same on every machine. Fix it, or waive it with a reason."
RULES = {
    "time": _Rule("SlowerBenchmark", "A benchmark became slower.", _MEASURED),
    "mem": _Rule("MoreMemory", "A benchmark's result needs more memory.", _MEASURED),
    "peakmem": _Rule("HigherPeakMemory", "A benchmark needs more memory at its peak.", _MEASURED),
    "track": _Rule("WorseTrackedValue", "A tracked value became worse.", _MEASURED),
    "audit": _Rule("KernelResources", "A kernel's machine code became worse.", _EXACT),
    "workspace": _Rule("LargerWorkspace", "A plan needs a larger workspace.", _EXACT),
    "plan": _Rule("SlowerPath", "Other kernels or backends are selected.", _EXACT),
    "exact": _Rule("ExactMetric", "An exact metric became worse.", _EXACT),
    "not-measured": _Rule(
        "NotMeasured",
        "A benchmark that ran on base does not run on head.",
        "Its error is in the result: a benchmark that fails is never a pass.",
    ),
    "undecided": _Rule(
        "Undecided",
        "A benchmark's launches do not decide whether it became slower.",
        "Give it more rounds, or a quieter machine.",
        "note",
    ),
    "improved": _Rule(
        "ImprovedPin", "An exact metric became better.", "Lower its pin, or a later change can lose the gain.", "note"
    ),
    "waivers": _Rule(
        "WaiverDoesNotHold", "A waiver has expired, or nothing needs it.", "Remove it, or renew it with a reason."
    ),
}
_IDS = list(RULES)


def to_sarif(result: GateResult) -> str:
    """Return the verdict as a SARIF log with one run."""
    results = [finding for alike in _groups(result) if (finding := _result(alike, result.suite)) is not None]
    results += [_problem(problem) for problem in result.problems]
    if any("suppressions" in finding for finding in results):
        # Either all results of a run have suppressions or none (3.27.23); an empty list means "not suppressed".
        results = [finding | {"suppressions": finding.get("suppressions", [])} for finding in results]
    run: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": "rocattn gate",
                "semanticVersion": rocattn.__version__,
                "rules": [_rule(id_, rule) for id_, rule in RULES.items()],
            }
        },
        "automationDetails": {"id": "rocattn-gate/"},
        "columnKind": "utf16CodeUnits",
        "invocations": [
            {
                # Whether the analysis itself succeeded; what it found is in the results.
                "executionSuccessful": result.verdict != "not measured",
                "exitCode": result.status,
                "toolExecutionNotifications": _notifications(result, len(results)),
            }
        ],
        "results": results[:_MOST_RESULTS],
        "properties": {"verdict": result.verdict, "counts": result.counts, "launches": result.launches},
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _rule(id_: str, rule: _Rule) -> dict[str, Any]:
    return {
        "id": f"rocattn-gate/{id_}",
        "name": rule.name,
        "shortDescription": {"text": rule.short},
        "fullDescription": {"text": f"{rule.short} {rule.help}"},
        "help": {"text": rule.help},
        "defaultConfiguration": {"level": rule.level},
        "properties": {"tags": ["performance"]},
    }


def _notifications(result: GateResult, count: int) -> list[dict[str, Any]]:
    level = "error" if result.status else "note"
    notifications = [{"level": level, "message": _message(result.sentence)}]
    notifications += [{"level": "note", "message": _message(note)} for note in result.notes]
    if count > _MOST_RESULTS:
        text = f"{count - _MOST_RESULTS} results are left out"
        notifications.append({"level": "warning", "message": _message(text)})
    return notifications


def _groups(result: GateResult) -> Iterator[list[Entry]]:
    """Yield the entries of each result: those with one located cause, and those undecided for one reason."""
    for group in by_cause(result.entries):
        if any(cause.location is not None for cause in group.causes):
            yield group.entries
        else:
            yield from ([entry] for entry in group.entries)
    yield from (group.entries for group in by_reason(result.entries, "inconclusive"))
    yield from ([entry] for entry in result.entries if entry.status in {"waived", "improvement"})


def _result(alike: Sequence[Entry], suite: str) -> dict[str, Any] | None:
    """Return a result for entries that need attention, worst first; None if they need none."""
    entry = alike[0]
    if entry.lost:
        id_, level = "not-measured", "error"
    elif entry.status == "inconclusive":
        id_, level = "undecided", "note"
    elif entry.status == "improvement" and entry.metric in EXACT:
        id_, level = "improved", "note"
    elif entry.status in {"regression", "waived"}:
        id_, level = entry.metric if entry.metric in RULES else "track", "error"
    else:
        return None
    places = [cause.location for member in alike for cause in member.causes if cause.location is not None]
    places = [place for place in places if _is_inside(place.path)] or [_file_of(member, suite) for member in alike]
    places = list(dict.fromkeys(places))
    finding: dict[str, Any] = {
        "ruleId": f"rocattn-gate/{id_}",
        "ruleIndex": _IDS.index(id_),
        "level": level,
        "message": _message(_words(alike)),
        "locations": [_location(places[0])],
        # The same in every run, so that a page shows one alert, not one per run.
        "partialFingerprints": _fingerprints(alike),
        "properties": _numbers(entry),
    }
    if places[1:]:
        finding["relatedLocations"] = [{"id": n, **_location(place)} for n, place in enumerate(places[1:])]
    if entry.status == "waived":
        finding["suppressions"] = [
            {"kind": "external", "status": "accepted", "justification": plain(entry.waiver, _MOST_CHARACTERS)}
        ]
    return finding


def _problem(problem: str) -> dict[str, Any]:
    place = re.match(rf"{re.escape(WAIVERS)}:(\d{{1,6}}): ", problem)
    return {
        "ruleId": "rocattn-gate/waivers",
        "ruleIndex": _IDS.index("waivers"),
        "level": "error",
        "message": _message(problem),
        "locations": [_location(Location(path=WAIVERS, line=int(place[1]) if place else 1))],
        "partialFingerprints": {"rocattnBenchmark/v1": _fingerprint(problem)},
    }


def _fingerprints(alike: Sequence[Entry]) -> dict[str, str]:
    """Return what is the same in every run: a benchmark's name, or a change and the names of what it slowed down."""
    if len(alike) == 1:
        return {"rocattnBenchmark/v1": _fingerprint(alike[0].label, alike[0].metric, alike[0].arch)}
    changed = [line for cause in alike[0].causes for line in cause.diff]
    return {"rocattnGroup/v1": _fingerprint(alike[0].status, *changed, *sorted({entry.name for entry in alike}))}


def _words(alike: Sequence[Entry]) -> str:
    entry = alike[0]
    numbers = render.change(entry)
    parts = [f"{render.title(entry)}: {entry.status}{', ' + numbers if numbers else ''}"]
    parts += [reason.rstrip(".") for reason in render.reasons(entry)]
    parts += dict.fromkeys(render.cause_line(cause).rstrip(".") for member in alike for cause in member.causes)
    others = [f"{render.title(member)} {render.change(member)}".rstrip() for member in alike[1:]]
    parts += [f"The same applies to {listed(others, _NAMED)}"] if others else []
    return ". ".join(parts) + "."


def _numbers(entry: Entry) -> dict[str, Any]:
    """Return the numbers, for programs that sort by them."""
    known: dict[str, Any] = {"status": entry.status, "metric": entry.metric, "unit": entry.unit}
    known |= {"base": entry.base, "head": entry.head} if entry.base is not None and entry.head is not None else {}
    if entry.decision is not None and entry.decision.has_ratio:
        decision = entry.decision
        known |= {"ratio": decision.ratio, "ratioLow": decision.ratio_low, "ratioHigh": decision.ratio_high}
    return known | ({"arch": entry.arch} if entry.arch else {})


def _message(text: str) -> dict[str, str]:
    """Return a message, with braces (placeholders, 3.11.5) and brackets (links, 3.11.6) escaped."""
    shown = plain(text, _MOST_CHARACTERS).replace("{", "{{").replace("}", "}}").replace("](", "] (")
    return {"text": shown or "(no message)"}


def _fingerprint(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="backslashreplace")).hexdigest()


def _is_inside(path: str) -> bool:
    """Whether a path is relative and stays in the repository."""
    return bool(path) and not path.startswith("/") and ".." not in path.split("/") and "\\" not in path


def _file_of(entry: Entry, suite: str) -> Location:
    """Return the file of a benchmark, derived from its asv module or pytest node id, or else the suite's folder.

    Code-scanning pages reject a result without a location.
    """
    folder = [part for part in suite.split("/") if part not in {"", "."}]
    if suite.startswith("/") or ".." in folder:
        folder = folder[-1:]  # existing environments: the suite may be outside of the repository
    parts = entry.name.partition("(")[0].split(".")
    if "::" in entry.name:
        return Location(path=entry.name.partition("::")[0])
    if " " in entry.name and (file := re.search(r"(?<!\S)\w[\w./-]*\.\w+(?!\S)", entry.name)):
        return Location(path=file[0])  # a file in a command
    if entry.metric in EXACT or not all(part.isidentifier() for part in parts):
        return Location(path="/".join(folder) or "benchmarks")
    classes = len(parts) > 2 and parts[-2][:1].isupper()
    # A module that cannot be imported is an entry too, under the module's name.
    modules = parts if len(parts) == 1 else parts[: -2 if classes else -1]
    return Location(path=f"{'/'.join([*folder, *modules])}.py")


def _location(place: Location) -> dict[str, Any]:
    artifact = {"uri": quote(plain(place.path, 1000), safe="/"), "uriBaseId": "%SRCROOT%"}
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": max(1, place.line)}}}
