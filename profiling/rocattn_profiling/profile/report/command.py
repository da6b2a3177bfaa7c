"""``rocattn report PATH…``: report on a profiler's files as HTML, Markdown, JSON and a trace."""

from __future__ import annotations

import argparse
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocattn_profiling.base.console import emit_json, print_table, say
from rocattn_profiling.base.status import NOT_MEASURED, OK, CommandError

if TYPE_CHECKING:
    from rocattn_profiling.profile.collect.store import Collection
    from rocattn_profiling.profile.ingest import FileSummary
    from rocattn_profiling.profile.ingest.table import Profile
    from rocattn_profiling.profile.report.records import ProfileReport

MOST_REASONS = 5  # reasons printed for files that were not read, if nothing else was found
FILES = {"html": "profile.html", "md": "profile.md", "json": "profile.json", "trace": "trace.json"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for profiles; the other options of ``rocattn report`` are for records."""
    group = parser.add_argument_group("of profiles")
    group.add_argument(
        "paths", nargs="*", metavar="PATH",
        help="files or folders written by rocprofv3, rocprof, rocprofv2, rocprof-compute or `rocattn profile`",
    )  # fmt: skip
    group.add_argument(
        "--per", choices=("kernel", "dispatch"), default="kernel", help="one row for each (default kernel)"
    )
    group.add_argument(
        "--gpu", metavar="NAME",
        help="the GPU, if the files do not name it: MI300X, 'RX 7900 XT', 'MI300X CPX', or a target: gfx1151",
    )  # fmt: skip
    group.add_argument(
        "--peak", nargs="+", default=[], metavar="NAME=RATE",
        help="a peak that replaces the one in the files or tables: hbm=4.2TB/s, fp16=1307TFLOP/s",
    )  # fmt: skip
    group.add_argument(
        "--plans", nargs="+", default=[], metavar="FILE",
        help="plans of `rocattn plan --json` or a plan log, which identify the attention problem of each dispatch "
        "(default: the plan logs among PATH)",
    )  # fmt: skip
    group.add_argument(
        "--kernel", metavar="REGEX", default="", help="only kernels whose name matches (as printed, or part of it)"
    )
    group.add_argument("--launches", metavar="RANGE", default="", help="these launches per kernel: 3, 2-10, [2-10,15]")
    group.add_argument("--gpu-id", type=int, metavar="N", help="only the GPU with this number, as in the report")
    group.add_argument(
        "--pair", action="append", default=[], metavar="A=B",
        help="with --against: compare its kernel A with kernel B of PATH, names as printed or regular expressions",
    )  # fmt: skip
    group.add_argument("--against", nargs="+", metavar="PATH", help="an earlier profile to compare with")
    group.add_argument("--files", action="store_true", help="only list the files, with their contents and problems")


def run(arguments: argparse.Namespace) -> int:
    """Write the report in every format; exit status 3 if the files contain no dispatch."""
    from rocattn_profiling.base.files import write_together
    from rocattn_profiling.profile.report import compare as profile_compare
    from rocattn_profiling.profile.report import pages, summary, terminal
    from rocattn_profiling.profile.report import report as profile_report

    if not all((*arguments.paths, *(arguments.against or ()))):
        raise CommandError("'' is not a path (an unset variable?): name the profiler's files or their folder")
    if arguments.files:
        return _list_files(arguments.paths, as_json=arguments.json)
    if arguments.pair and not arguments.against:
        raise CommandError("--pair compares with an earlier profile: name it with --against PATH")
    report = _report(arguments.paths, arguments, arguments.per)
    if report is None:
        return OK
    comparison = None
    if arguments.against:
        # Launches of two runs cannot be paired, so kernels are compared, whatever --per says.
        before = _report(arguments.against, arguments, "kernel")
        after = report if report.per == "kernel" else _report(arguments.paths, arguments, "kernel")
        assert before is not None
        assert after is not None
        comparison = profile_compare.compare(before, after, arguments.pair)
        report.problems += profile_compare.cautions(before, report)
    content = profile_report.to_json(report)
    if comparison is not None:
        content["against"] = profile_compare.to_json(comparison)
        content["not_compared"] = list(comparison.coverage.not_compared)
    out = Path(arguments.out).resolve()
    texts = {
        "html": pages.profile_html(report, int(time.time() * 1000), comparison),
        "md": pages.profile_markdown(report, comparison),
        "json": profile_report.dump(content),
        "trace": pages.trace_json(report.profile),
    }
    write_together({out / FILES[name]: text for name, text in texts.items()})
    if arguments.json:
        emit_json(content)
    terminal.show(report, summary.summarise(report), comparison)
    say("")
    if comparison is not None and (gaps := comparison.coverage.gaps()):
        say(gaps)
    say(f"The report is at {out / FILES['html']}")
    return OK if comparison is None else comparison.coverage.status()


def _report(paths: list[str], arguments: argparse.Namespace, per: str) -> ProfileReport | None:
    """Read paths and compute their report; a missing path is an error before anything is read.

    Returns:
        None if the files only have a profiler's statistics, which are printed unchanged.
    """
    from rocattn_profiling.profile.ingest import read
    from rocattn_profiling.profile.metrics.attribution import read_plans
    from rocattn_profiling.profile.metrics.devices import given_peaks
    from rocattn_profiling.profile.report.report import build
    from rocattn_profiling.profile.report.verdict import COLLECT

    peaks = given_peaks(arguments.peak)
    roots = [Path(path) for path in paths]
    for path in roots:
        if not path.exists():
            raise CommandError(f"{path} does not exist")
    profile = read(roots)
    if not len(profile.dispatches) and not len(profile.samples):
        if len(profile.summaries):
            of_launches = arguments.launches or arguments.gpu_id is not None or arguments.plans or per == "dispatch"
            if arguments.against or of_launches or arguments.gpu or arguments.peak:
                raise CommandError("the files have statistics only, not single launches", NOT_MEASURED)
            _show_statistics(profile, arguments.kernel, as_json=arguments.json)
            return None
        _say_why_nothing(profile, [line for path in roots for line in _not_collected(path)])
        remedy = f"`{COLLECT}` collects some"
        if any(not each.skipped for each in profile.provenance) and all(path.is_file() for path in roots):
            remedy = f"pass the folder, which may have some: rocattn report {shlex.quote(str(roots[0].parent))}"
        raise CommandError(f"no kernel dispatch in {', '.join(paths)}: nothing to report ({remedy})", NOT_MEASURED)
    plans = [Path(name) for name in arguments.plans] or _plan_logs(roots)
    for path in roots:
        profile = _as_collected(profile, path)
    profile, chosen = _chosen(profile, arguments)
    # With --gpu-id alone, all launches of that GPU are kept, so its busy time is still known.
    part = chosen if arguments.kernel or arguments.launches else ""
    report = build(profile, per=per, gpu=arguments.gpu, ran=read_plans(plans), peaks=peaks, chosen=part)
    if peaks:
        report.problems.insert(0, f"peaks from --peak, not from tables or files: {', '.join(arguments.peak)}")
    report.problems += [line for path in roots for line in _not_collected(path)]
    report.paths, report.chosen = list(paths), chosen
    report.command = next((collection.command for path in roots if (collection := _collection(path))), ())
    return report


def _show_statistics(profile: Profile, kernel: str, *, as_json: bool) -> None:
    """Print a profiler's own statistics: kernels with calls and times, without single launches."""
    from rocattn_profiling.pages.quantities import quantity
    from rocattn_profiling.profile.report.names import matching, short_name
    from rocattn_profiling.profile.report.verdict import COLLECT

    found = profile.summaries.sort_values("total_ns", ascending=False, kind="stable")
    found = found.assign(share=found["total_ns"] / found["total_ns"].sum())
    if kernel:
        found = found[found["kernel"].isin(matching(found["kernel"].astype(str).to_list(), kernel))]
    rows = found.astype("object").where(found.notna(), None).to_dict("records")
    if as_json:
        emit_json({"statistics": rows, "problems": [str(problem) for problem in profile.problems]})
    times = ("total_ns", "average_ns", "min_ns", "max_ns")
    cells = [
        (short_name(row["kernel"], 70), f"{100 * row['share']:.2g} %", f"{row['calls']:,}",
         *("-" if row[name] is None else quantity(row[name] / 1e9, "seconds") for name in times))
        for row in rows
    ]  # fmt: skip
    print_table(
        "the profiler's statistics", ("kernel", "share", "calls", "total", "mean", "shortest", "longest"), cells
    )
    for problem in profile.problems:
        say(f"note: {problem}")
    say(f"statistics only: without single launches, limits and the GPU's busy share are unknown ({COLLECT})")


def _chosen(profile: Profile, arguments: argparse.Namespace) -> tuple[Profile, str]:
    """Return the part of a profile that was asked for, and its size: "12 of 43,915 launches (--kernel gemm)"."""
    from rocattn_profiling.pages.render import count
    from rocattn_profiling.profile.ingest.choice import LaunchChoice, gpus, ranges_of
    from rocattn_profiling.profile.metrics.launches import find_launches
    from rocattn_profiling.profile.report.names import matching

    options = {"--kernel": arguments.kernel, "--launches": arguments.launches, "--gpu-id": arguments.gpu_id}
    said = " ".join(f"{name} {value}" for name, value in options.items() if value not in {"", None})
    if not said or profile.runs:
        return profile, ""
    names = [str(name) for name in profile.dispatches["kernel"].unique()]
    names += [str(name) for name in profile.samples["kernel"].unique() if name and name not in names]
    if arguments.gpu_id is not None and arguments.gpu_id not in (there := gpus(profile)):
        raise CommandError(f"no GPU {arguments.gpu_id} ran a kernel: there is {', '.join(map(str, there)) or 'none'}")
    choice = LaunchChoice(
        matching(names, arguments.kernel) if arguments.kernel else None,
        ranges_of(arguments.launches) if arguments.launches else (), arguments.gpu_id,
    )  # fmt: skip
    part, every = choice.of(profile), len(find_launches(profile))
    if not len(part.dispatches) and not len(part.samples):
        raise CommandError(f"{said} leaves none of the {every:,} launches")
    return part, f"{len(find_launches(part)):,} of {count(every, 'launch', 'launches')} ({said})"


def _say_why_nothing(profile: Profile, lacking: list[str]) -> None:
    """Print the gaps of a collection, the problems of the files and the first reasons why other files were not read."""
    from rocattn_profiling.pages.render import count

    wrong = {problem.file for problem in profile.problems}
    others = [each for each in profile.provenance if each.skipped and each.file not in wrong]
    lines = [*lacking, *map(str, profile.problems), *(f"{each.file}: {each.skipped}" for each in others[:MOST_REASONS])]
    for line in lines:
        say(f"note: {line}")
    if len(others) > MOST_REASONS:
        more = count(len(others) - MOST_REASONS, "more file contains", "more files contain")
        say(f"note: {more} nothing to read; --files names them all")


def _not_collected(folder: Path) -> list[str]:
    """Return a line with the reason for each incomplete pass of a `rocattn profile` collection."""
    collection = _collection(folder)
    if collection is None:
        return []
    lines = []
    for result in collection.passes:
        if result.status in {"done", "split"}:
            continue
        absent = [name for name in result.counters if result.arrived is None or name not in result.arrived.counters]
        why = [f"without {', '.join(absent)}"] if absent else []
        why += [f"{each.what}: {each.remedy}" for each in result.findings] or [result.ended]
        lines.append(f"pass {result.name}: {result.status} ({'; '.join(why)})")
    return lines + [f"{name} was left out: {why}" for name, why in collection.left_out.items()]


def _collection(folder: Path) -> Collection | None:
    """Return the `rocattn profile` collection in a folder, if there is one."""
    from rocattn_profiling.profile.collect.store import PROFILE, read_profile

    return read_profile(folder / PROFILE) if (folder / PROFILE).is_file() else None


def _as_collected(profile: Profile, folder: Path) -> Profile:
    """Return a profile whose kernel trace, which no profiler filters, contains only the launches that were counted."""
    from rocattn_profiling.profile.collect.passes import TIMING
    from rocattn_profiling.profile.ingest.choice import LaunchChoice, gpus, ranges_of
    from rocattn_profiling.profile.report.names import matching

    collection = _collection(folder)
    if collection is None or profile.runs:
        return profile
    rows = profile.dispatches
    traced = [name for name in rows["pass"].cat.categories if TIMING in str(name).split("/")]
    kernels = (
        matching([str(name) for name in rows["kernel"].unique()], collection.kernel) if collection.kernel else None
    )
    choice = LaunchChoice(kernels, ranges_of(collection.launches) if collection.launches else (), passes=traced)
    counted = set(rows["agent"][~rows["pass"].isin(traced)].dropna())
    if collection.gpu is not None and counted:  # the collection's index of the GPU is not the profiler's number
        choice = replace(choice, gpu=next(number for number, agents in gpus(profile).items() if counted & {*agents}))
    return choice.of(profile)


def _plan_logs(paths: list[Path]) -> list[Path]:
    """Return the plan logs of a `rocattn profile` collection: one pass's, because all passes run the same program."""
    logs = sorted(log for path in paths if path.is_dir() for log in path.rglob("plans.jsonl"))
    return logs[:1]


def _list_files(paths: Sequence[str], *, as_json: bool) -> int:
    """List these files and folders, as a table on stderr or as JSON on stdout.

    Returns:
        The exit status: 3 if no file contains a measurement.
    """
    from rocattn_profiling.profile.ingest import describe

    summaries = describe(paths)
    if as_json:
        emit_json({"files": [_file_json(summary) for summary in summaries]})
    else:
        _print_files(summaries)
    return OK if any(not summary.source.skipped for summary in summaries) else NOT_MEASURED


def _file_json(summary: FileSummary) -> dict[str, Any]:
    """Return one file's summary as JSON-ready values."""
    import msgspec

    return {
        **msgspec.to_builtins(summary.source),
        "kernels": summary.kernels,
        "dispatches": summary.dispatches,
        "counters": list(summary.counters),
        "samples": summary.samples,
        "problems": [{"line": p.line, "what": p.what, "remedy": p.remedy} for p in summary.problems],
    }


def _print_files(summaries: Sequence[FileSummary]) -> None:
    from rocattn_profiling.pages.render import count

    read = [summary for summary in summaries if not summary.source.skipped]
    skipped = [summary for summary in summaries if summary.source.skipped]
    root = os.path.commonpath([summary.source.file for summary in summaries]) if len(summaries) > 1 else ""
    rows = [
        (
            os.path.relpath(summary.source.file, root) if root else summary.source.file,
            f"{summary.source.tool} {summary.source.generation}".strip(),
            summary.source.kind,
            *(
                str(number) if number else ""
                for number in (summary.kernels, summary.dispatches, len(summary.counters), summary.samples)
            ),
            str(len(summary.problems) or ""),
        )
        for summary in read
    ]
    columns = ("file", "tool and generation", "contents", "kernels", "dispatches", "counters", "samples", "problems")
    if rows:
        print_table(f"{count(len(read), 'file')} read" + (f" below {root}" if root else ""), columns, rows)
    for summary in summaries:
        for problem in summary.problems:
            say(str(problem))
    if skipped:
        say(f"{count(len(skipped), 'file contains', 'files contain')} nothing to read:")
    for summary in skipped:
        if not summary.problems:
            file = os.path.relpath(summary.source.file, root) if root else summary.source.file
            say(f"  {file}: {summary.source.skipped}")
