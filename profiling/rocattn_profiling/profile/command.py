"""``rocattn profile``: collect counters of a command with the installed AMD profiler."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn_profiling.base.console import add_common, emit_json, print_table, progress, say
from rocattn_profiling.base.status import NOT_MEASURED, OK, CommandError

if TYPE_CHECKING:
    from rocattn_profiling.base.console import Step
    from rocattn_profiling.profile.collect.hardware import Hardware
    from rocattn_profiling.profile.collect.store import Collection, Job

_EPILOG = """\
The command runs once undisturbed, for its times, and once for each group of counters that the hardware can count
together. DIR/passes has everything that the profiler writes, DIR/profile.json what was done and what failed.

  rocattn profile -- python train.py            the default groups on this machine's GPU
  rocattn profile --pc-sampling -- ./app        also hot spots by source line: rocattn report DIR
  rocattn profile --thread-trace --kernel attn -- ./app
                                                also the cycles of each instruction in one launch of a kernel
  rocattn profile --list --arch gfx1100         the available groups, and their counters
  rocattn profile --dry-run --arch gfx942 -- ./app
                                                the command lines, without a GPU or a profiler

exit status: 0 every pass has all its counters
             3 no profiler, or something named in --metrics was not measured (profile.json has the reason)
             4 usage or environment error
             130 interrupted: the finished passes are kept (--resume continues)"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "rocattn profile [options] -- COMMAND [ARGUMENT ...]"
    parser.epilog = _EPILOG
    add_common(parser, out="out/profile")
    parser.add_argument("--metrics", nargs="+", default=[], metavar="NAME", help="groups, metrics, counters (--list)")
    parser.add_argument(
        "--pc-sampling", nargs="?", const="auto", default="", choices=("auto", "stochastic", "host_trap"),
        help="one more pass: where the time goes, by instruction and source line (MI200 and later; compile with -g)",
    )  # fmt: skip
    parser.add_argument(
        "--pc-sampling-interval", type=int, default=0, metavar="N",
        help="cycles, a power of two (stochastic, default 1048576), or microseconds (host_trap, default 1000)",
    )  # fmt: skip
    parser.add_argument(
        "--thread-trace", action="store_true",
        help="one more pass: the cycles of every instruction on one compute unit, in each kernel's first launch or in "
        "those selected by --kernel and --launches (ROCm 7.0 and later, with rocprof-trace-decoder)",
    )  # fmt: skip
    parser.add_argument(
        "--tool", default="", metavar="NAME[@ROCM]",
        help="rocprofv3, rocprofv2, rocprof or rocprof-compute; with --dry-run also of a release: rocprofv3@6.2",
    )  # fmt: skip
    parser.add_argument("--arch", default="", metavar="GFX", help="the GPU's architecture (default: this machine's)")
    parser.add_argument("--format", default="", choices=("csv", "rocpd"), help="rocprofv3's output (default csv)")
    parser.add_argument("--timeout", type=_seconds, default=900.0, metavar="S", help="limit per pass (default 900 s)")
    parser.add_argument(
        "--keep-env", nargs="+", default=[], metavar="NAME",
        help="keep these environment variables of another profiler (removed by default)",
    )  # fmt: skip
    parser.add_argument("--kernel", default="", metavar="REGEX", help="count only kernels whose name matches")
    parser.add_argument(
        "--launches", default="", metavar="RANGE", help="count only these launches of each kernel: 3, 2-10, [2-10,15]"
    )
    parser.add_argument("--gpu-id", type=int, metavar="N", help="count only on the N-th GPU of this machine, from 0")
    parser.add_argument("--resume", action="store_true", help="resume the collection in DIR at the missing pass")
    parser.add_argument("--dry-run", action="store_true", help="print the passes and their command lines, and exit")
    parser.add_argument("--list", action="store_true", help="list groups and metrics with their counters, and exit")
    parser.add_argument("command", nargs="*", metavar="COMMAND", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """Plan, show, run and report."""
    from rocattn_profiling.profile.collect import hardware
    from rocattn_profiling.profile.collect.assemble import CollectionRequest, assemble
    from rocattn_profiling.profile.collect.find import NoProfilerError

    machine = hardware.examine()
    if arguments.list:
        return _list(arguments, machine)
    if not arguments.command:
        raise CommandError("name the command to profile after --: rocattn profile -- ./app --its-options")
    request = CollectionRequest(
        command=tuple(arguments.command),
        wanted=tuple(arguments.metrics),
        arch=arguments.arch,
        tool=arguments.tool,
        output_format=arguments.format,
        timeout_s=arguments.timeout,
        keep_env=tuple(arguments.keep_env),
        sampling=arguments.pc_sampling,
        interval=max(arguments.pc_sampling_interval, 0),
        traced=arguments.thread_trace,
        kernel=arguments.kernel,
        launches=arguments.launches,
        gpu=arguments.gpu_id,
        dry=arguments.dry_run,
    )
    try:
        job = assemble(request, machine)
    except NoProfilerError as error:
        raise CommandError(str(error), NOT_MEASURED) from error
    _show(job)
    if arguments.dry_run:
        return _dry(arguments, job)
    collection = _collect(arguments, job)
    _summary(collection, Path(arguments.out))
    if arguments.json:
        emit_json(collection)
    lacking = [name for name in dict.fromkeys(arguments.metrics) if name in collection.left_out]
    if lacking:
        say(f"requested with --metrics but not measured (status 3): {', '.join(lacking)}")
    if gaps := collection.coverage.gaps("measured"):
        say(gaps)
    return NOT_MEASURED if lacking else collection.coverage.status()


def _collect(arguments: argparse.Namespace, job: Job) -> Collection:
    from rocattn_profiling.profile.collect.run import Session

    with progress("profile", len(job.plan.passes)) as shown:

        def on_step(step: Step) -> None:
            shown.expect(step.total)
            shown.step(step.what, step.done - shown.done)

        return Session(job, Path(arguments.out), resume=arguments.resume, on_step=on_step).collect()


def _show(job: Job) -> None:
    """Print the tool, what is left out, notes and removed environment variables."""
    say(f"{job.tool.label} at {job.tool.path}: {job.why}")
    for name, why in job.plan.left_out.items():
        say(f"left out: {name} ({why})")
    for note in job.plan.notes:
        say(f"note: {note}")
    if job.removed:
        say(f"removed from the environment: {', '.join(job.removed)} (--keep-env keeps them)")


def _dry(arguments: argparse.Namespace, job: Job) -> int:
    """Print the passes and their command lines."""
    from rocattn_profiling.profile.collect.run import command_lines

    launches = command_lines(job, Path(arguments.out))
    if arguments.json:
        passes = [
            {"name": of_pass.name, "counters": of_pass.counters, "argv": how.argv, "env": how.env, "files": how.files}
            for of_pass, how in launches
        ]
        plan = {"tool": job.tool, "why": job.why, "arch": job.plan.arch, "passes": passes}
        emit_json(plan | {"left_out": job.plan.left_out, "notes": job.plan.notes, "removed": job.removed})
        return OK
    for of_pass, how in launches:
        sampled = f"PC samples ({of_pass.sampling})" if of_pass.sampling else "kernel trace, no counters"
        sampled = "thread trace" if of_pass.traced else sampled
        what = "its own counters" if of_pass.opaque else sampled
        print(f"# {of_pass.name}: {' '.join(of_pass.counters) or what}")
        for name, text in how.files.items():
            print("\n".join(f"# {name}: {line}" for line in text.splitlines()))
        print(how.line)
    return OK


def _list(arguments: argparse.Namespace, machine: Hardware) -> int:
    """Print the groups and metrics that can be requested, and their counters on an architecture."""
    from rocattn_profiling.profile.collect.counters import default_groups, group, group_names, of_arch
    from rocattn_profiling.profile.collect.passes import metric_names, of_metric

    arch = arguments.arch or (machine.archs[0] if machine.archs else "gfx942")
    counters = of_arch(arch)
    rows = {
        name: [*dict.fromkeys(counter for part in group(name, counters) for counter in part)] for name in group_names()
    }
    metrics = {key: of_metric(key, counters) for key in metric_names()}
    if arguments.json:
        emit_json({
            "arch": counters.arch, "default": default_groups(), "groups": rows, "metrics": metrics,
            "note": counters.note,
        })  # fmt: skip
        return OK
    for name, about in group_names().items():
        usual = "" if name in default_groups() else " (only if named)"
        print(f"{name}{usual}: {about}\n    {' '.join(rows[name]) or f'no counters on {counters.arch}'}")
    print("Metrics (each computed from some of the groups' counters):")
    for key, names in metrics.items():
        print(f"  {key}: {' '.join(names) or f'cannot be counted on {counters.arch}'}")
    return OK


def _summary(collection: Collection, out: Path) -> None:
    from rocattn_profiling.pages.render import count

    rows = [
        (
            result.name,
            result.status,
            str(len(result.counters)),
            str(result.arrived.dispatches if result.arrived else 0),
            f"{result.seconds:.1f} s",
        )
        for result in collection.passes
    ]
    print_table(f"profile of {collection.arch}", ("pass", "status", "counters", "dispatches", "took"), rows)
    said = set()
    for result in collection.passes:
        for finding in result.findings:
            if finding.line not in said:
                said.add(finding.line)
                say(f"{finding.level}: {result.name}: {finding.line}")
    if collection.stopped and len(collection.passes) > len(said):
        missing = sum(result.status == "missing" for result in collection.passes)
        if missing:
            them = "it" if missing == 1 else "them"
            said_of = f"{count(missing, 'pass was', 'passes were')} not run, because {'it' if missing == 1 else 'they'}"
            say(f"{said_of} would fail in the same way (--resume runs {them})")
    say(f"{collection.measured} of {count(len(collection.passes), 'pass', 'passes')} measured: {out / 'profile.json'}")
    if collection.measured:
        say(f"next: rocattn report {shlex.quote(str(out))}")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value
