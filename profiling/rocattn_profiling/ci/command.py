"""``rocattn ci``, the main job: each step is a command in a separate process, so none can affect another."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rocattn.sources import require_own_checkout
from rocattn_profiling.base.console import add_common, emit_json, say
from rocattn_profiling.base.files import stamp, write_text
from rocattn_profiling.base.journal import keeping
from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.base.status import NOT_MEASURED, CommandError
from rocattn_profiling.ci import card
from rocattn_profiling.ci.card import ASKED, CHANGE, DOCTOR, OF_GPU, STEPS, JobStep, SkipCode, gravity, status_of, worst

if TYPE_CHECKING:
    from rocattn_profiling.gate.model import Entry

# Number of regressed benchmarks to profile, worst first: each takes a run per group of counters.
PROFILED = 3


_EPILOG = """\
Each step is a command of rocattn. One that cannot be run here (no compiler, no git checkout, no profiler) is skipped,
and stands in the verdict, as do the parts that a step left out: backends that are not there, benchmarks that were
skipped or are undecided.

With --gpu, backend gpu alone is checked and timed (in float16), a known program is profiled and one of its kernels
traced (step known), and what was measured is packed into rocattn-gpu.tar.gz, without names of users, machines and
folders, for the issue form "First numbers of a GPU".

exit status: 0 what ran is right, and nothing is proven to be slower; what did not run is listed
             1 something is wrong, or became slower or worse
             2 undecided, under --strict
             3 a step could not measure all that it must, nothing was measured at all (doctor and report measure
               nothing), or a step was skipped that --bench or --history asks for
             4 usage or environment error, such as --base or --gpu without one
             130 interrupted: what was finished is kept"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, _EPILOG
    parser.add_argument("--quick", action="store_true", help="small grids and few rounds: minutes on 2 cores")
    parser.add_argument("--base", metavar="REV", help="what to gate against (default: the parent commit)")
    parser.add_argument(
        "--bench", action="append", default=[], metavar="REGEX", help="gate only benchmarks it finds; may be repeated"
    )
    parser.add_argument(
        "--gpu", nargs="?", const="", metavar="ARCH",
        help="this job is about a GPU, of this architecture if one is named: without a healthy one nothing is run",
    )  # fmt: skip
    parser.add_argument("--allow-stand-in", action="store_true", help="with --gpu: the stand-in counts as a GPU")
    parser.add_argument(
        "--skip", nargs="+", action="extend", default=[], choices=(*STEPS, OF_GPU), metavar="STEP",
        help=f"of {', '.join(STEPS)}; with --gpu also {OF_GPU}",
    )  # fmt: skip
    parser.add_argument("--history", type=int, metavar="N", help="commits to measure for the site (quick 2, else 10)")
    parser.add_argument("--strict", action="store_true", help="fail (status 2) when the gate stays undecided")
    parser.add_argument("--site-url", default="", metavar="URL", help="the address of the site, for its feed")
    parser.add_argument("--open", action="store_true", help="open the site in a browser at the end")
    add_common(parser, out="out")


def run(arguments: argparse.Namespace) -> int:
    """Run the steps in order, summarize them, and return the worst status."""
    require_own_checkout()
    out, began_s = Path(arguments.out), time.time()
    steps = plan(arguments, out)  # before our files exist, which would count as changes of the checkout
    # Before measuring: checks that the folder is writable, and replaces an older job's status.
    write_text(out / "ci.json", json.dumps({"status": NOT_MEASURED, "steps": []}) + "\n")
    with keeping(out, len(steps), lambda: sum(step.seconds > 0 for step in steps)):
        execute(steps, _run_command, out, arguments.gpu or "")
    for step in steps:
        card.read_back(step, out, began_s)
    return _finish(arguments, out, steps, began_s)


def plan(arguments: argparse.Namespace, out: Path) -> list[JobStep]:
    """Return the steps with their commands, or the reasons why they cannot run here."""
    quick = ["--quick"] if arguments.quick else []
    grids = ["inference", "decode"] if arguments.quick else ["inference", "square", "gemma", "decode"]
    count = arguments.history or (2 if arguments.quick else 10)
    gate, why_no_gate = gate_arguments(arguments.base)
    why_no_history = why_no_commit()
    audit = ["--check-pins", *([] if why_no_history else ["--history", str(count)])]
    gate += [word for pattern in arguments.bench for word in ("--bench", pattern)]
    strict = ["--strict"] if arguments.strict else []
    # An older job's records in the folder do not belong to this one.
    why_no_report = Reason[SkipCode]("no_records", "bench was not run") if "bench" in arguments.skip else None
    history = ["--measure", str(count), *(["--launches", "2"] if arguments.quick else [])]
    address = ["--url", arguments.site_url] if arguments.site_url else []
    doctor, on_gpu, halves = ["doctor"], [], []
    if arguments.gpu is not None:
        # Named, so that an unchecked or untimed GPU is not a pass; in the usual dtype of attention on GPUs.
        on_gpu, halves = ["--backend", "gpu"], ["--dtype", "float16"]
        doctor += ["--gpu", *([arguments.gpu] if arguments.gpu else [])]
        doctor += ["--allow-stand-in"] if arguments.allow_stand_in else []
    steps = [
        JobStep("doctor", [doctor]),
        JobStep("verify", [["verify", *quick, *on_gpu, "--out", f"{out}/verify"]]),
        JobStep(
            "bench", [["bench", "--grid", *grids, *quick, *on_gpu, *halves, "--out", f"{out}/bench", "--fresh"]]
        ),
        JobStep("audit", [["kernels", "audit", *audit, *quick, "--out", f"{out}/audit"]], why_no_audit()),
        JobStep(
            "gate", [["gate", "run", *gate, *quick, *strict, "--out", f"{out}/gate"]], why_no_gate,
            asked=bool(arguments.bench),
        ),
        JobStep("profile"),  # profiles the gate's findings: its commands are known after the gate
        JobStep("report", [["report", "--records", f"{out}/bench", "--out", f"{out}/report"]], why_no_report),
        JobStep(
            "site", [["site", *history, *address, "--out", f"{out}/site"]], why_no_history,
            asked=arguments.history is not None,
        ),
    ]  # fmt: skip
    if arguments.gpu is not None:
        steps.insert(STEPS.index("profile") + 1, known_step(out / OF_GPU, arguments.gpu))
    for step in steps:
        if step.name in arguments.skip:
            step.why_skipped, step.asked = Reason(ASKED, "asked for by --skip"), False
    return steps


def known_step(out: Path, arch: str) -> JobStep:
    """Return the step that profiles the known program, as requested by --gpu.

    Args:
        out: Its folder.
        arch: The GPU's architecture; "" for that of the GPU that rocattn uses, not an integrated one.
    """
    from rocattn.gpu.probe import probe
    from rocattn_profiling.ci import known

    devices = () if arch else probe().devices
    of_first = devices[0].arch.partition(":")[0] if devices else arch
    return JobStep(OF_GPU, known.commands(out, of_first), why_no_profiler(), asked=True)


def why_no_profiler() -> Reason[SkipCode] | None:
    """Return why nothing can be profiled here, or None."""
    from rocattn_profiling.profile.collect.find import find_profilers

    if any(not tool.problem for tool in find_profilers()):
        return None
    return Reason("no_profiler", "no profiler is installed (rocattn doctor says how to get one)", DOCTOR)


def why_no_audit() -> Reason[SkipCode] | None:
    """Return why the GPU kernels' machine code cannot be compared with its pins here, or None."""
    from rocattn.errors import ToolchainError
    from rocattn.toolchain import choose_compiler
    from rocattn_profiling.kernels.audit_command import pins_folder

    try:
        choose_compiler()
        pins_folder(None)
    except ToolchainError as error:
        return Reason("no_compiler", str(error), DOCTOR)
    except CommandError as error:
        return Reason("no_pins", str(error))
    return None


def gate_arguments(base: str | None) -> tuple[list[str], Reason[SkipCode] | None]:
    """Return the gate's revisions for this checkout, or why there is nothing to gate.

    A base named by the user is always used: if that is impossible, the gate reports why and fails.
    """
    if base is None and (why := why_no_commit()):
        return [], why
    dirty = _has_changes()
    if base is None and not dirty and _is_first_commit():
        why = Reason[SkipCode]("first_commit", "the first commit has no parent to compare with", CHANGE)
        return [], why
    revisions = ["--head", "WORKTREE"] if dirty else []
    return [*revisions, *(["--base", base] if base is not None else [])], None


def why_no_commit() -> Reason[SkipCode] | None:
    """Return why there is no commit here; None if there is one or git rejects the checkout: no reason to skip."""
    from rocattn_profiling.revisions.git import DistrustError, NoGitError, RevisionError, git

    try:
        git(Path(), "rev-parse", "--verify", "HEAD")
    except DistrustError:
        # Another user's checkout in a container: the steps run, and fail with git's remedy.
        return None
    except NoGitError as error:
        return Reason("no_git", str(error))
    except RevisionError:
        return Reason(
            "no_commit", "not a git checkout with a commit", "run it in a git clone: the gate compares commits"
        )
    return None


def _has_changes() -> bool:
    """Return whether the tree may behave differently from HEAD; a stray file does not count."""
    from rocattn_profiling.revisions.git import RevisionError, uncommitted

    try:
        return bool(uncommitted(Path()).code)
    except RevisionError:
        return False  # there is no commit, or git rejects the checkout, which the gate reports


def _is_first_commit() -> bool:
    # From the commit object: a shallow clone also has a parent, and the gate then tells how to fetch it.
    commit = _git("cat-file", "-p", "HEAD")
    return bool(commit) and "\nparent " not in f"\n{commit}"


def _git(*arguments: str) -> str:
    from rocattn_profiling.revisions.git import RevisionError, git

    try:
        return git(Path(), *arguments)
    except RevisionError:
        return ""


def execute(steps: list[JobStep], run_command: Callable[[list[str]], int], out: Path, arch: str = "") -> None:
    """Run the steps in order; after a failure, later steps still report what was measured.

    Args:
        steps: The steps; their outcomes are stored in them.
        run_command: Runs one command and returns its exit status.
        out: The job's folder.
        arch: Architecture of the profiled GPU; "" to let the profiler detect it.
    """
    without: Reason[SkipCode] | None = Reason("no_verdict", "the gate was not run")
    for number, step in enumerate(steps, 1):
        if step.name == "profile" and not step.skipped:
            step.commands, step.why_skipped = ([], without) if without else profile_commands(out, arch)
        head = f"[{number}/{len(steps)}] {step.name}"
        if step.skipped:
            say(f"{head}: SKIPPED: {step.skipped}")
            continue
        started, cpu = time.monotonic(), _cpu_of_children()
        statuses, before = [], stamp(_verdict(out))
        for command in step.commands:
            say(f"{head}: rocattn {shlex.join(command)}")
            statuses.append(run_command(command))
        step.status, step.seconds = min(statuses, key=gravity), round(time.monotonic() - started, 1)
        step.cpu_seconds = round(_cpu_of_children() - cpu, 1)
        if step.name == "gate":
            without = None if stamp(_verdict(out)) != before else Reason("no_verdict", "the gate left no verdict")
            if without and before:
                _leave_out_verdict(steps)
        if step.name == "doctor" and "--gpu" in step.commands[0] and step.status:
            for later in steps[number:]:
                later.why_skipped = later.why_skipped or Reason("no_gpu", "there is no GPU to measure on")


def _cpu_of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _verdict(out: Path) -> Path:
    return out / "gate" / "verdict.json"


def _leave_out_verdict(steps: list[JobStep]) -> None:
    """Exclude from this job's pages an earlier verdict that a gate without a verdict left in place."""
    for step in steps:
        for command in step.commands:
            if step.name == "site":
                command += ["--gate", os.devnull]


def profile_commands(out: Path, arch: str) -> tuple[list[list[str]], Reason[SkipCode] | None]:
    """Return commands that profile the slower GPU benchmarks, or the reason why there are none."""
    from rocattn.errors import RocattnError
    from rocattn_profiling.gate import verdict

    try:
        result = verdict.read(_verdict(out))
    except RocattnError as error:
        return [], Reason("no_verdict", str(error))
    slower = [entry for entry in result.entries if entry.status == "regression" and entry.metric == "time"]
    slower = [entry for entry in slower if on_gpu(entry)]
    if not slower:
        return [], Reason("nothing_slower", "no GPU benchmark became slower")
    # The gate profiles both sides of a regression if it can; benchmarks with counters are not run again.
    slower = [entry for entry in slower if all(cause.kind != "counters" for cause in entry.causes)][:PROFILED]
    if not slower:
        return [], Reason("profiled", f"the gate has profiled what became slower: {out / 'gate' / 'explain'}")
    if why := why_no_profiler():
        return [], why
    commands: list[list[str]] = []
    named = ["--arch", arch] if arch else []
    for number, entry in enumerate(slower, 1):
        folder = f"{out}/profile/{number}"
        once = [sys.executable, "-m", "rocattn_profiling.asv.launch", result.suite, entry.label]
        commands += [["profile", "--out", folder, *named, "--", *once], ["report", folder, "--out", f"{folder}/report"]]
    return commands, None


def on_gpu(entry: Entry) -> bool:
    """Return whether a benchmark launches GPU kernels: by its name, or by a parameter with the gpu backend."""
    return "gpu" in entry.name.lower() or "'gpu'" in entry.params.values()


def _run_command(command: list[str]) -> int:
    # Its stdout goes to stderr: ours is only for --json.
    full = [sys.executable, "-m", "rocattn_profiling.cli", *command]
    with subprocess.Popen(full, stdout=sys.stderr.fileno()) as process:
        try:
            return process.wait()
        except BaseException as ended:
            # No child keeps measuring without us. The terminal's Ctrl-C also reaches it, so it gets a moment before
            # SIGTERM: a command that ends by itself ends its workers and keeps its results.
            for how, patience_s in ((None, 3.0), (signal.SIGTERM, 30.0), (signal.SIGKILL, None)):
                if how is not None:
                    process.send_signal(how)
                if how is not None or isinstance(ended, KeyboardInterrupt):
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(patience_s)
            raise


def _finish(arguments: argparse.Namespace, out: Path, steps: list[JobStep], began_s: float) -> int:
    status, pages = status_of(steps), card.pages_of(steps, out)
    if arguments.gpu is not None:
        from rocattn.errors import RocattnError
        from rocattn_profiling.ci import archive

        try:
            pages["archive"] = archive.pack(steps, out, began_s, steps[0].commands[0])
        except RocattnError as error:
            say(f"what was measured is not packed: {error}")
            status = worst([status, NOT_MEASURED])
    coverage = card.coverage_of(steps)
    result = {
        "status": status,
        "undecided": coverage.undecided,
        "not_compared": msgspec.to_builtins(coverage.not_compared),
        "steps": [_as_json(step) for step in steps],
        **{name: str(page) for name, page in pages.items()},
    }
    write_text(out / "ci.json", json.dumps(result, indent=2) + "\n")
    card.show(steps, status, pages)
    if arguments.json:
        emit_json(result)
    if "site" in pages and (arguments.open or _has_desktop()):
        import webbrowser

        webbrowser.open(pages["site"].as_uri())
    return status


def _as_json(step: JobStep) -> dict[str, object]:
    names = ("name", "commands", "skipped", "status", "seconds", "cpu_seconds", "outcome")
    return {name: getattr(step, name) for name in names}


def _has_desktop() -> bool:
    # In a terminal of a graphical session, open the page as documented; not in CI or over ssh.
    graphical = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(graphical) and sys.stderr.isatty() and not os.environ.get("CI")
