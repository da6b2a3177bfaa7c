"""Our change points on real asv histories: kept while the history grows, and against asv's and Apache Otava's.

    python research/peers/change_points.py REPO STORE [--lines N] [--otava PYTHON] [--only lost|replay|peers]

Takes a project's clone and its asv results, of which every line with eight or more points counts. Prints

- of the changes, and of the open regressions, those lost when 0 to 3 values of 1.3 or 3 times the last are appended;
- of the regressions that were open in one of the last 80 builds: those missing for a build or more and then back, those
  gone at the end, those now at another commit (up to three away), and those that vanished when a later level grew;
- of each detector, its clean steps (eight points on each side that do not overlap, more than 2 %, found by anyone
  within two commits), and its changes that a rank test of the 15 points on each side does not support. Needs asv, scipy
  and a Python that has `apache-otava`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import time
from pathlib import Path

import numpy as np

from rocattn_profiling.asv.series import in_order
from rocattn_profiling.asv.store import AsvStore
from rocattn_profiling.site.changepoints import FEWEST, change_points
from rocattn_profiling.site.changes import lower_is_better
from rocattn_profiling.site.commits import read_history

BUILDS, NEAR, BESIDE = 80, 2, 8
OTAVA = """
import json, sys
from otava.series import AnalysisOptions, Metric, Series
found = []
for y in json.load(sys.stdin):
    series = Series("line", None, list(range(len(y))), {"m": Metric(1, 1.0)}, {"m": y}, {})
    found.append([int(c.index) for c in series.analyze(AnalysisOptions()).change_points["m"]])
json.dump(found, sys.stdout)
"""


def lines_of(repo: Path, store: Path) -> list[tuple[str, int, list[float]]]:
    """Return each line: its label, 1 if lower is better else -1, and its values in commit order."""
    order = {sha: info.order for sha, info in read_history(repo).commits.items() if info.on_branch}
    lines = []
    for series in in_order(AsvStore(repo, store).read(), order):
        values = [value for value in series.points.values.tolist() if math.isfinite(value)]
        if len(values) >= FEWEST and min(values) > 0:
            lines.append((series.label, 1 if lower_is_better(series) else -1, values))
    return lines


def lost(lines: list[tuple[str, int, list[float]]]) -> None:
    """Print the changes and open regressions that appended values hide."""
    before = [change_points(values) for _, _, values in lines]
    for count in range(4):
        for factor in (1.3, 3.0) if count else (1.0,):
            gone = still = total = opened = 0
            for (_, sign, values), known in zip(lines, before, strict=True):
                after = {c.index for c in change_points([*values, *[values[-1] * factor] * count])}
                for change in known:
                    is_open = sign * (change.ratio - 1) > 0 and change.state != "recovered"
                    hidden = not any(abs(change.index - index) <= NEAR for index in after)
                    total, opened = total + 1, opened + is_open
                    gone, still = gone + hidden, still + (hidden and is_open)
            print(f"{count} x{factor:g}: {gone} of {total} changes lost, {still} of {opened} open", flush=True)


def replay(lines: list[tuple[str, int, list[float]]], verbose: bool) -> None:
    """Print what became of the regressions that were open in one of the last builds."""
    kinds = dict.fromkeys(("kept", "back", "moved", "gone"), 0)
    alone = 0
    for label, sign, values in lines:
        first = max(FEWEST, len(values) - BUILDS)
        seen: dict[int, int] = {}  # index -> place of the build that announced it
        builds: list[list[int]] = []
        for n in range(first, len(values) + 1):
            found = change_points(values[:n])
            for change in found:
                if sign * (change.ratio - 1) > 0 and change.state != "recovered":
                    seen.setdefault(change.index, len(builds))
            builds.append([change.index for change in found])
        for index, start in sorted(seen.items()):
            later = builds[start:]
            absent = [n for n, found in enumerate(later) if index not in found]
            # Not its own data: the newest point is on a later level, which began when the change was still there.
            foreign = [
                n for n in absent
                if index in later[n - 1]
                and (after := next((other for other in later[n - 1] if other > index), 0))
                and any(abs(after - other) <= NEAR for other in later[n])
            ]  # fmt: skip
            near = any(abs(index - other) <= 3 for other in later[-1])
            kind = "kept" if not absent else "back" if index in later[-1] else "moved" if near else "gone"
            kinds[kind] += 1
            alone += bool(foreign)
            if verbose and absent:
                at = ", ".join(str(first + start + n) for n in absent[:8])
                told = f"{kind} {index}{' by others' * bool(foreign)}, from {first + start} of {len(values)}"
                print(f"  {told}, absent {at}: {label[:70]}")
    said = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    print(f"replay: {said}; {alone} vanished without data of its own", flush=True)


def steps_by_asv(values: list[float]) -> list[int]:
    """Return where the levels of asv's own detection begin."""
    from asv.step_detect import detect_steps

    return [int(start) for start, *_ in detect_steps(values)[1:]]


def clean(values: list[float], at: int) -> bool:
    """Return whether the eight points on both sides of a place are levels more than 2 % apart without overlap."""
    old, new = values[max(0, at - BESIDE) : at], values[at : at + BESIDE]
    if min(len(old), len(new)) < BESIDE:
        return False
    apart = max(old) < min(new) or max(new) < min(old)
    return apart and abs(math.log(statistics.median(new) / statistics.median(old))) > math.log(1.02)


def supported(values: list[float], at: int) -> bool:
    """Return whether the points on both sides differ (a rank test at 5 %), or are too few to say so."""
    from scipy.stats import mannwhitneyu

    old, new = values[max(0, at - 15) : at], values[at : at + 15]
    return min(len(old), len(new)) >= 3 and float(mannwhitneyu(old, new).pvalue) < 0.05


def against(lines: list[tuple[str, int, list[float]]], otava: str) -> None:
    """Print the clean steps that each detector finds, and how many of its changes have no support."""
    found = {
        "ours": [[c.index for c in change_points(values)] for _, _, values in lines],
        "asv": [steps_by_asv(values) for _, _, values in lines],
    }
    if otava:
        asked = json.dumps([values for _, _, values in lines])
        done = subprocess.run([otava, "-c", OTAVA], input=asked, capture_output=True, text=True, check=True)
        found["otava"] = json.loads(done.stdout)
    steps: list[list[int]] = []
    for number, (_, _, values) in enumerate(lines):
        places: list[int] = []
        for at in sorted({at for places in found.values() for at in places[number] if clean(values, at)}):
            if not places or at - places[-1] > NEAR:
                places.append(at)
        steps.append(places)
    total = sum(map(len, steps))
    for name, all_places in found.items():
        hits = sum(
            any(abs(at - other) <= NEAR for other in mine)
            for places, mine in zip(steps, all_places, strict=True) for at in places
        )  # fmt: skip
        bad = sum(
            not supported(values, at) for (_, _, values), mine in zip(lines, all_places, strict=True) for at in mine
        )
        print(f"{name}: {hits} of {total} clean steps, {bad} of {sum(map(len, all_places))} unsupported", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repo", type=Path)
    parser.add_argument("store", type=Path)
    parser.add_argument("--lines", type=int, default=0, help="so many lines, spread over all")
    parser.add_argument("--otava", default="", help="a Python that has apache-otava")
    parser.add_argument("--only", choices=["lost", "replay", "peers"])
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    lines = lines_of(arguments.repo, arguments.store)
    if arguments.lines and arguments.lines < len(lines):
        lines = [lines[int(i)] for i in np.linspace(0, len(lines) - 1, arguments.lines)]
    began = time.perf_counter()
    count = sum(len(change_points(values)) for _, _, values in lines)
    print(f"{len(lines)} lines, {count} changes, searched in {time.perf_counter() - began:.2f} s", flush=True)
    if arguments.only in {None, "lost"}:
        lost(lines)
    if arguments.only in {None, "replay"}:
        replay(lines, arguments.verbose)
    if arguments.only in {None, "peers"}:
        against(lines, arguments.otava)


if __name__ == "__main__":
    main()
