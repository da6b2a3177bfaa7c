"""``rocattn site``: the history website, with our pages and asv's."""

from __future__ import annotations

import argparse
import gc
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocattn.errors import RocattnError
from rocattn_profiling.base.console import add_common, emit_json, progress, say
from rocattn_profiling.base.status import NOT_MEASURED, OK, CommandError
from rocattn_profiling.report.command import RECORDS, find_records
from rocattn_profiling.workloads.options import positive

if TYPE_CHECKING:
    from rocattn_profiling.asv.series import Series
    from rocattn_profiling.asv.store import AsvStore
    from rocattn_profiling.base.console import Progress, Step
    from rocattn_profiling.base.reasons import Coverage
    from rocattn_profiling.bench.report import BenchReport
    from rocattn_profiling.gate.model import GateResult
    from rocattn_profiling.measure.records import Record
    from rocattn_profiling.site.changes import Searched, Waived
    from rocattn_profiling.site.commits import History
    from rocattn_profiling.site.model import Changes, LevelChange
    from rocattn_profiling.site.site import Site

DOCUMENTS = "docs/index.html"
"""Front page of the documentation, which `python3 dev.py docs` puts next to the site."""
MOST_JOBS = 8
"""Most processes that read, search and lay out: each takes 100 MB, and a single one collects their results."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_common(parser, out="out/site")
    parser.add_argument("--repo", default=".", metavar="DIR", help="the repository whose history to show (default .)")
    parser.add_argument("--store", metavar="DIR", help="asv results folder (default: the one asv.conf.json names)")
    parser.add_argument("--results", metavar="DIR", help="where verify, audit, profile, … wrote (default OUT/..)")
    parser.add_argument("--records", metavar="PATH", help="bench records to show as the latest (default RESULTS/bench)")
    parser.add_argument("--gate", metavar="PATH", help="verdict.json of the gate (default RESULTS/gate)")
    parser.add_argument(
        "--measure", type=positive, metavar="N",
        help="first run the asv suite's quick benchmarks on those of the newest N commits that have no results",
    )  # fmt: skip
    parser.add_argument("--launches", type=positive, default=3, metavar="N", help="processes per benchmark (default 3)")
    parser.add_argument("--url", default="", metavar="URL", help="the URL that the site will have, for its feed")
    parser.add_argument(
        "--no-asv", action="store_true",
        help="leave out asv's own pages, which take the most time; those of an earlier run are removed",
    )  # fmt: skip
    parser.add_argument("--open", action="store_true", help="open the front page in a browser")


def run(arguments: argparse.Namespace) -> int:
    """Write the site; status 3 if there is nothing to publish."""
    # A long history is a million points without reference cycles: garbage collection took a third of the time.
    gc.disable()
    try:
        return _run(arguments)
    finally:
        gc.unfreeze()
        gc.enable()


def _run(arguments: argparse.Namespace) -> int:
    status = _measure(arguments) if arguments.measure else OK
    return max(status, _publish(arguments))


def _measure(arguments: argparse.Namespace) -> int:
    """Measure the newest commits of the repository into its asv store; status 3 if none has results afterwards."""
    from rocattn_profiling.pages.render import count
    from rocattn_profiling.site.measure import measure_history

    with progress("history", 0) as shown:

        def on_step(step: Step) -> None:
            shown.expect(step.total)
            shown.step(step.what)

        repo = Path(arguments.repo).resolve()
        try:
            done = measure_history(
                repo, arguments.measure, results=Path(arguments.store) if arguments.store else None,
                launches=arguments.launches, on_step=on_step, say=say,
            )  # fmt: skip
        except RocattnError as error:  # earlier results are still published
            say(f"no commit was measured: {error}")
            return NOT_MEASURED
    counts = f"{count(len(done.measured), 'commit')} measured, {len(done.known)} had results"
    say(f"history: {counts}, {len(done.passed_over)} passed over, {count(done.launches, 'launch', 'launches')}")
    return OK if done.measured or done.known else NOT_MEASURED


def _publish(arguments: argparse.Namespace) -> int:
    from rocattn_profiling.asv.store import AsvStore
    from rocattn_profiling.base.files import StagedFiles
    from rocattn_profiling.bench import report as bench_report
    from rocattn_profiling.measure.machine import available_cores
    from rocattn_profiling.pages.render import GENERATOR
    from rocattn_profiling.site import asv_pages
    from rocattn_profiling.site.commits import branch_with, commit_url, read_history
    from rocattn_profiling.site.history import order_commits
    from rocattn_profiling.site.site import Site, write_site
    from rocattn_profiling.site.state import read_standing

    if arguments.url and not re.fullmatch(r"https?://[^\s\"'<>]+", arguments.url):
        raise CommandError(f"{arguments.url!r} is not the URL of a site: it begins with https://")
    out, repo = Path(arguments.out).resolve(), Path(arguments.repo).resolve()
    results = Path(arguments.results).resolve() if arguments.results else out.parent
    notes: list[str] = []
    history = read_history(repo)
    store = AsvStore(repo, Path(arguments.store) if arguments.store else None)
    records = find_records(arguments.records, results / "bench", notes)
    gate = _find_verdict(arguments.gate, results / "gate", notes)
    coverage = _coverage(arguments, records, gate)
    reading_notes, jobs = list[str](), min(MOST_JOBS, available_cores())
    with progress("site: reading results", 0, brief=True) as shown:
        order = partial(order_commits, commits=history.commits)
        series = store.read(reading_notes.append, _counted(shown), jobs, order)
    notes += reading_notes
    if not series and not records and gate is None:
        unread = f" that can be read ({reading_notes[0]})" if reading_notes else ""
        reason = f"{store.results_dir} has no results{unread}"
        reason += f", and there are no records or verdict beside {out} ({_remedy(repo, store)})"
        raise CommandError(f"nothing to publish: {reason}", NOT_MEASURED)
    notes += _unknown_commits(series, history, repo, store.results_dir)
    report = bench_report.build(records) if records else None
    standing = read_standing(results, repo / "benchmarks" / "pins", GENERATOR, notes.append)
    judged = gate.head.revision if gate else None
    # asv may take minutes: our pages are in place before it starts, with links to its future pages.
    no_asv = "--no-asv was given" if arguments.no_asv else "" if series else "the store has no results"
    site = Site(
        series, history, store.machines(), report, gate, asv_pages.AsvPages(published=not no_asv, reason=no_asv), notes,
        changes=_changes(series, history, store, notes, jobs), standing=standing,
        gate_branch=branch_with(repo, judged.sha, history.branch) if judged else "",
        baselines=_baselines(results / "baselines", notes), url=arguments.url,
        commit_url=commit_url(repo, store.commit_url), project=store.project or repo.name,
        documents=DOCUMENTS if (out / DOCUMENTS).is_file() else "",
    )  # fmt: skip
    gc.freeze()  # the input stays: only garbage from laying out pages is collected
    gc.enable()
    with StagedFiles() as staging, progress("site: pages", 0, brief=True) as shown:
        if not no_asv:
            asv_pages.hold_place(store, out / "asv", staging)
        written = write_site(out, site, _counted(shown), staging, jobs)
    if no_asv:
        asv_pages.remove(out / "asv")
    else:
        site.asv = asv_pages.publish(store, history, out / "asv", say)
    _report(site, written, coverage, json=arguments.json)
    if arguments.open:
        import webbrowser

        webbrowser.open(written[0].as_uri())
    return coverage.status()


def _coverage(arguments: argparse.Namespace, records: list[Record], gate: GateResult | None) -> Coverage:
    """Return which results other than the history are on the pages; results that the user names must exist."""
    from rocattn_profiling.base.reasons import Coverage, NotCompared

    lacking = [
        NotCompared(what=what, code="no_results", text=f"there is none in {given}" if given else "there is none",
                    needed=bool(given))
        for what, there, given in (
            ("bench records", records, arguments.records), ("the gate's verdict", gate, _named_gate(arguments)),
        )
        if not there
    ]  # fmt: skip
    return Coverage(compared=1, not_compared=tuple(lacking))


def _named_gate(arguments: argparse.Namespace) -> str:
    return "" if arguments.gate in {None, os.devnull} else str(arguments.gate)


def _remedy(repo: Path, store: AsvStore) -> str:
    """Return the command that produces something to publish; `rocattn bench` is only for this repository."""
    from rocattn_profiling.measure.machine import measured_repo

    if measured_repo() == repo:
        return "run `rocattn bench` first, or `rocattn site --measure 10`"
    if store.config_path is None:
        return f"{repo} has no asv.conf.json: name a folder of asv results with --store"
    return "run `asv run` there first for a history, or `rocattn gate run` for a verdict"


def _report(site: Site, written: list[Path], coverage: Coverage, *, json: bool) -> None:
    """Report omissions, open regressions and the path of the site."""
    from rocattn_profiling.pages.render import count

    asv = site.asv
    # A file that neither reader accepts is reported once, though their messages differ.
    known = {note.partition(": ")[0] for note in site.problems}
    asv.notes = [note for note in asv.notes if note.partition(": ")[0] not in known]
    for note in [*site.problems, *asv.notes]:
        say(f"note: {note}")
    if not asv.published:
        say(f"note: asv's pages were not made: {asv.reason}")
    if json:
        emit_json({
            "not_compared": coverage.not_compared,
            "index": str(written[0]), "pages": [str(p) for p in written], "asv": asv, "notes": site.problems,
            "open_regressions": [
                {**_fields(change), "commit": change.likeliest} for change in site.changes.open
            ],
            "causes": [
                {"commit": cause.sha, "since": cause.since, "among": cause.among, "event": cause.event,
                 "doubt": cause.doubt,
                 "changes": [{**_fields(change), "kind": change.kind} for change in cause.changes]}
                for cause in site.changes.causes
            ],
        })  # fmt: skip
    if causes := site.changes.of("open"):
        lines = count(sum(len(cause.changes) for cause in causes), "line")
        listed = written[0].with_name("changes.html")
        say(f"{count(len(causes), 'open regression')} in the history, in {lines}: {listed}")
    gaps = coverage.gaps("shown")
    say(f"The site is at {written[0]}{'; ' * bool(gaps)}{gaps}")


def _fields(change: LevelChange) -> dict[str, Any]:
    """Return a change for JSON, which has no infinite ratio: a rise from zero has none."""
    ratio = change.point.ratio if change.rise is None else None
    return {"label": change.label, "where": change.where, "ratio": ratio, "state": change.state}


def _unknown_commits(series: list[Series], history: History, repo: Path, store: Path) -> list[str]:
    """Return a note if no result belongs to a commit of the repository, so that no change can be found."""
    from rocattn_profiling.asv.series import commits_of

    measured = commits_of(line.points for line in series)
    if not measured or measured.keys() & history.commits.keys():
        return []
    note = (
        f"none of the {len(measured)} measured commits is in {repo}: no change can be found. If results are kept apart "
        f"from the project, name a clone of it: --repo CLONE --store {store}. In a shallow clone, fetch the history."
    )
    return [note]


def _changes(series: list[Series], history: History, store: AsvStore, notes: list[str], jobs: int) -> Changes:
    from rocattn_profiling.site.changes import find_changes, in_processes, rules_of_asv
    from rocattn_profiling.site.touched import excused_by

    with progress("site: change points", len(series), brief=True) as shown:

        def run(work: Callable[..., Searched], lined: Sequence[Series], *columns: Sequence[Any]) -> Iterator[Searched]:
            shown.expect(shown.done + len(lined))
            for line, found in zip(lined, in_processes(work, lined, *columns, jobs=jobs), strict=True):
                shown.step(line.label)
                yield found

        accepted, limit_of = rules_of_asv(store, history, notes.append)
        waived, excused = _waived(store.repo_root, notes), excused_by(store.repo_root, jobs)
        return find_changes(series, history, waived, run, accepted, limit_of, excused)


def _counted(shown: Progress) -> Callable[[int, str], None]:
    """Return a progress callback for work that reports its total number of steps."""

    def step(total: int, what: str) -> None:
        if shown.total != total:
            shown.expect(total)
        shown.step(what)

    return step


def _waived(repo: Path, notes: list[str]) -> Waived:
    """Return a function that looks up the repository's waivers; an unreadable file waives nothing."""
    from rocattn_profiling.gate import waivers
    from rocattn_profiling.site.changes import nothing_waived

    try:
        loaded = waivers.load(repo)
    except RocattnError as error:
        notes.append(f"waivers are ignored: {error}")
        return nothing_waived

    def waived(label: str, metric: str, arch: str, ratio: float) -> str:
        large_enough = [waiver for waiver in loaded.rows if ratio <= waiver.ceiling]
        return waivers.WaiverTable(rows=large_enough).waived(label, metric, arch)

    return waived


def _baselines(folder: Path, notes: list[str]) -> dict[str, BenchReport]:
    """Return the reports of all baselines below a folder, by the names of their pages."""
    from rocattn_profiling.bench import report as bench_report
    from rocattn_profiling.measure.records import read_records

    reports = {}
    for path in sorted(folder.rglob(RECORDS)):
        name = re.sub(r"[^\w.]+", "-", "-".join(path.parent.relative_to(folder).parts)) or "baseline"
        try:
            reports[name] = bench_report.build(read_records(path))
        except RocattnError as error:
            notes.append(f"passed over {path}: {error}")
    return reports


def _find_verdict(given: str | None, default: Path, notes: list[str]) -> GateResult | None:
    """Return the gate's verdict from a file or a folder; note a folder without one.

    Raises:
        RocattnError: A named file is missing or not a verdict.
    """
    from rocattn_profiling.gate.verdict import FILE, read

    place = Path(given) if given else default
    path = place if place.suffix == ".json" else place / FILE
    if not path.exists() and path is not place:
        if given:
            notes.append(f"no {FILE} in {place}")
        return None
    if not path.exists():
        raise CommandError(f"{path} does not exist: run `rocattn gate run` first, or name its folder")
    return read(path)
