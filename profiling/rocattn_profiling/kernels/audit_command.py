"""``rocattn kernels audit``: analyze the machine code of our kernels or of any file, and compare it."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn.sources import require_own_checkout
from rocattn_profiling.base.console import add_common, emit_json, progress, say
from rocattn_profiling.base.status import NOT_MEASURED, CommandError
from rocattn_profiling.kernels.hip_source import SUFFIXES
from rocattn_profiling.workloads.options import natural, positive

if TYPE_CHECKING:
    from rocattn_profiling.base.reasons import NotCompared
    from rocattn_profiling.kernels.audit import Audit
    from rocattn_profiling.kernels.compare import Comparison
    from rocattn_profiling.kernels.hip_source import HipBuild

_AUDIT = """\
Analyze the machine code of kernels without a GPU: registers, spills, LDS, occupancy with its binding limit, and the
cost of one iteration of the hot loop. Without FILE, all kernels that rocattn ships are compiled or taken from the
cache. A FILE is a code object (.hsaco, .o), a fat binary or library with kernels in it, assembly text (.s, .amdgcn),
a folder of such files from any compiler, or a HIP source (.hip, .cu, .cpp), which is compiled for each --arch.
--against compares kernel by kernel and exits with 1 if one got worse: a new spill, scratch memory, a lost wave or
block, over 2 % more issue cycles in the hot loop, narrower loads.
--check-pins compares with the pinned numbers, and also asks for new pins after an improvement. What cannot be compared
is listed, with exit status 3: kernels with ambiguous pairs, and facts unknown on one side, such as the hot loop
without llvm-objdump. Across compilers, only registers, spills, waves and the cycles of loops are judged."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = _AUDIT
    what = parser.add_argument_group("what to audit")
    what.add_argument("files", nargs="*", type=Path, metavar="FILE", help="files to audit instead of our own kernels")
    what.add_argument("--arch", nargs="+", default=[], metavar="GFX", help="only these architectures (default: all)")
    what.add_argument("--quick", action="store_true", help="one variant of each of our kernels: float16, D = 128")
    what.add_argument("--block", type=positive, default=0, metavar="N", help="with FILE: threads per block")
    what.add_argument(
        "--options", default="", metavar="OPTIONS", help='with HIP sources: compiler options ("-DN=4 -Iinclude")'
    )
    what.add_argument("--dynamic-lds", type=natural, metavar="BYTES", help="with FILE: dynamic LDS at launch")
    against = parser.add_argument_group("what to compare with").add_mutually_exclusive_group()
    against.add_argument(
        "--against", metavar="REV|FILE", help="a git revision, an audit.json or, with FILE, other files"
    )
    against.add_argument("--check-pins", action="store_true", help="the pinned numbers")
    against.add_argument("--write-pins", action="store_true", help="pin the current numbers")
    parser.add_argument(
        "--pins", type=Path, metavar="DIR", help="folder of pins (default: the checkout's benchmarks/pins)"
    )
    parser.add_argument("--lines", action="store_true", help="show the costliest source lines of each hot loop")
    parser.add_argument("--all", action="store_true", help="show every kernel, and columns on how the code is built")
    parser.add_argument("--notes", action="store_true", help="show changes without consequence one by one")
    parser.add_argument(
        "--history", type=positive, metavar="N", help="also add the numbers of the newest N commits to the asv store"
    )
    parser.add_argument("--jobs", type=positive, metavar="N", help="parallel processes (default: the available cores)")
    add_common(parser, out="out/audit")


def run(arguments: argparse.Namespace) -> int:
    """Audit, compare, print and write."""
    import msgspec

    from rocattn_profiling.base.reasons import Coverage
    from rocattn_profiling.kernels import card, view
    from rocattn_profiling.kernels.verdict import rows_of
    from rocattn_profiling.pages.render import count

    if not arguments.files:
        require_own_checkout()
    _check(arguments)
    audit, comparison = _against_revision(arguments) if _names_revision(arguments) else _against_numbers(arguments)
    if not audit.kernels and not (comparison and comparison.alike):
        for problem in audit.problems:
            say(problem.line)
        raise CommandError("no kernels to audit", NOT_MEASURED)
    if comparison is not None:
        comparison = _with_lines(arguments, audit, comparison)
    pinned, out = arguments.check_pins, Path(arguments.out)
    files = bool(arguments.files) and len({facts.file for facts in audit.kernels}) > 1
    named, readable = view.for_people(audit, comparison)
    view.write(out, audit, comparison, (named, readable), pinned=pinned, files=files)
    if readable is not None and not arguments.json:
        card.show(readable, named, _next(arguments, named, readable), out / view.MARKDOWN, notes=arguments.notes)
    if readable is None or arguments.all:
        view.show_table(named, out / view.MARKDOWN, lines=arguments.lines, files=files, everything=arguments.all)
    else:
        shown = {row.variant for row in rows_of(readable, named, notes=arguments.notes)}
        view.show_remarks(named, shown, lines=arguments.lines, files=files)
    for problem in audit.problems:
        say(problem.line)
    if arguments.write_pins:
        _write_pins(arguments, audit)
    coverage = (
        comparison.coverage if comparison else Coverage(compared=len(audit.kernels), not_compared=audit.not_audited)
    )
    if arguments.history:
        lost = _track(arguments)
        coverage = msgspec.structs.replace(coverage, not_compared=(*coverage.not_compared, *lost))
    if arguments.json:
        emit_json({"audit": audit, "comparison": comparison, "not_compared": coverage.not_compared})
    say(f"audit: {count(len(audit.kernels), 'kernel')} of {audit.subject} in {out / view.AUDIT}")
    return coverage.status(failed=comparison is not None and _is_worse(comparison, pinned=pinned))


def _next(arguments: argparse.Namespace, audit: Audit, comparison: Comparison) -> list[tuple[str, str]]:
    """Return next steps for a comparison: a keyword, and the advice or command."""
    from rocattn_profiling.kernels.sentences import advice
    from rocattn_profiling.kernels.verdict import rows_of, worst

    lines, again = [], ""
    if rows := [row for row in rows_of(comparison, audit) if row.severity == "worse"]:
        row = worst(rows)
        facts = next((facts for facts in audit.kernels if (facts.arch, facts.name, facts.file) == row.variant), None)
        worse = [finding.metric for finding in row.findings if finding.severity == "worse"]
        waves, ours = facts.occupancy if facts else None, not arguments.files
        given = [advice(metric, waves, ours=ours) for metric in worse]
        lines = [("try", text) for text in given if text][:1]
        again = f"{' --quick' * arguments.quick} --arch {row.arch}"
    against = arguments.against
    if arguments.check_pins:
        lines += [("recheck", f"rocattn kernels audit --check-pins{again}")] if again else []
        lines += [("accept", "rocattn kernels audit --write-pins  # then commit benchmarks/pins")]
    elif _names_revision(arguments):
        base = "" if against == "HEAD" else f" --base {against}"
        lines += [("recheck", f"rocattn kernels audit --against {against}{again}")] if again else []
        lines += [("time", f"rocattn gate run{base} --head WORKTREE --bench bench_gpu  # on a GPU")]
    return lines


def _check(arguments: argparse.Namespace) -> None:
    if arguments.files:
        for path in arguments.files:
            if not (path.is_file() or path.is_dir()):
                raise CommandError(f"{path} is not a file" if path.exists() else f"{path} does not exist")
        if arguments.check_pins or arguments.write_pins:
            raise CommandError("pins are for the kernels that rocattn ships: leave out FILE")
        if arguments.quick:
            raise CommandError("--quick selects kernels that rocattn ships: leave it out with FILE")
        if arguments.history:
            raise CommandError("--history is for the kernels that rocattn ships: leave out FILE")
        _check_sources(arguments)
    if not arguments.files and (arguments.block or arguments.dynamic_lds is not None or arguments.options):
        raise CommandError("--block, --dynamic-lds and --options need a FILE")
    if arguments.write_pins and arguments.quick:
        raise CommandError("pins cover all kernels: leave out --quick")
    if arguments.check_pins:
        _check_pin_files(arguments)


def _check_sources(arguments: argparse.Namespace) -> None:
    sources = [path for path in arguments.files if path.suffix in SUFFIXES]
    if sources and not arguments.arch:
        raise CommandError(f"use --arch to say what to compile {sources[0]} for")
    if arguments.options and not sources:
        raise CommandError("--options are compiler options: they need a HIP source")
    if arguments.against and len(sources) < len(arguments.files) and not Path(arguments.against).exists():
        hint = "give an audit.json or files; only sources can be read from a revision"
        raise CommandError(f"{arguments.against} does not exist: {hint}")


def _names_revision(arguments: argparse.Namespace) -> bool:
    return bool(arguments.against) and not arguments.files and not Path(arguments.against).is_file()


def _audit(arguments: argparse.Namespace) -> Audit:
    from rocattn.gpu.arch import TESTED
    from rocattn_profiling.kernels.audit import audit_shipped

    if arguments.files:
        return _audit_files(arguments, arguments.files)
    with progress("audit", 0) as shown:
        return audit_shipped(
            arguments.arch or TESTED, jobs=_jobs(arguments), quick=arguments.quick,
            on_step=shown.step, on_total=shown.expect,
        )  # fmt: skip


def _audit_files(arguments: argparse.Namespace, paths: Sequence[Path], build: HipBuild | None = None) -> Audit:
    from rocattn_profiling.kernels.audit import audit_files
    from rocattn_profiling.kernels.foreign import LaunchConfig
    from rocattn_profiling.kernels.hip_source import HipBuild

    launch = LaunchConfig(arguments.block, arguments.dynamic_lds)
    with progress("audit", 0, brief=True) as shown:
        return audit_files(
            paths, archs=arguments.arch, launch=launch, build=build or HipBuild(tuple(shlex.split(arguments.options))),
            jobs=_jobs(arguments), on_step=shown.step, on_total=shown.expect,
        )  # fmt: skip


def _base_of_files(arguments: argparse.Namespace) -> Audit:
    """Return the base of a comparison of files: an earlier audit, or one of other files or of a revision's sources."""
    import msgspec

    from rocattn_profiling.kernels.audit import read_audit
    from rocattn_profiling.kernels.foreign import may_hold_code
    from rocattn_profiling.kernels.hip_source import HipBuild
    from rocattn_profiling.kernels.revision import tree_of_revision

    path = Path(arguments.against)
    if path.is_dir() or path.suffix in SUFFIXES or (path.is_file() and may_hold_code(path)):
        return _audit_files(arguments, [path])
    if path.is_file():
        return read_audit(path)
    with tree_of_revision(arguments.files[0].resolve().parent, arguments.against) as (repo, tree, revision):
        build = HipBuild(tuple(shlex.split(arguments.options)), repo, tree)
        base = _audit_files(arguments, arguments.files, build)
        return msgspec.structs.replace(base, subject=f"{arguments.against} ({revision.short})")


def _jobs(arguments: argparse.Namespace) -> int:
    return int(arguments.jobs or len(os.sched_getaffinity(0)))


def _check_pin_files(arguments: argparse.Namespace) -> None:
    """Reject unreadable pins before compiling the kernels, which may take minutes."""
    from rocattn.gpu.arch import TESTED
    from rocattn_profiling.kernels.pins import read_pins

    for path in _pin_files(arguments, ()) or _pin_files(arguments, arguments.arch or TESTED):
        read_pins(path)


def _pin_files(arguments: argparse.Namespace, needed: Iterable[str]) -> list[Path]:
    """Return the existing pin files, including those for architectures without kernels, and the needed ones."""
    from rocattn.gpu.arch import TESTED, has_kernels, processor

    folder = pins_folder(arguments.pins)
    stale = [path for path in sorted(folder.glob("gfx*.json")) if not has_kernels(path.stem)]
    asked = [folder / f"{processor(arch)}.json" for arch in arguments.arch or TESTED]
    there = [path for path in asked if path.is_file()] + ([] if arguments.arch else stale)
    return list(dict.fromkeys([*there, *(folder / f"{processor(arch)}.json" for arch in needed)]))


def _against_numbers(arguments: argparse.Namespace) -> tuple[Audit, Comparison | None]:
    """Audit, and compare with pins or another audit if requested."""
    import msgspec

    from rocattn_profiling.kernels.audit import read_audit
    from rocattn_profiling.kernels.compare import check_pins, compare
    from rocattn_profiling.kernels.pins import read_pins

    before = None
    if arguments.against:  # before work that takes minutes
        before = _base_of_files(arguments) if arguments.files else read_audit(Path(arguments.against))
    audit = _audit(arguments)
    if not audit.kernels:
        return audit, None
    if arguments.check_pins:
        pins = [read_pins(path) for path in _pin_files(arguments, audit.archs)]
        return audit, check_pins(pins, audit, partial=arguments.quick)
    if before is None:
        return audit, None
    archs = {arch.partition(":")[0] for arch in arguments.arch} or set(before.archs)
    before = msgspec.structs.replace(before, kernels=[facts for facts in before.kernels if facts.arch in archs])
    comparison = compare(before, audit, partial=arguments.quick, foreign=bool(arguments.files))
    if arguments.files:
        for problem in before.problems:
            say(f"{before.subject}: {problem.line}")
        lost = (*comparison.not_compared, *before.not_audited)
        comparison = msgspec.structs.replace(comparison, not_compared=lost)
    return audit, comparison


def _against_revision(arguments: argparse.Namespace) -> tuple[Audit, Comparison]:
    """Audit and compare the kernels that may differ from a revision's; with --all, every kernel."""
    import msgspec

    from rocattn.gpu.arch import TESTED
    from rocattn.sources import kernel_root
    from rocattn_profiling.kernels import shipped as ships
    from rocattn_profiling.kernels.audit import audit_shipped
    from rocattn_profiling.kernels.compare import compare
    from rocattn_profiling.kernels.revision import kernels_of_revision
    from rocattn_profiling.kernels.source_lines import with_sources

    archs = arguments.arch or TESTED
    with kernels_of_revision(Path.cwd(), arguments.against, archs, quick=arguments.quick) as shipped:
        for problem in shipped.problems:
            say(f"{shipped.revision.short}: {problem}")
        here = ships.shipped_kernels(archs, quick=arguments.quick)
        alike = ships.equal_kernels(shipped.kernels, shipped.root, here, kernel_root()) if not arguments.all else set()
        audits = []
        for kernels, root, title, subject in (
            (shipped.kernels, shipped.root, shipped.revision.short, f"{arguments.against} ({shipped.revision.short})"),
            (here, kernel_root(), "this checkout", "this checkout"),
        ):
            differing = [kernel for kernel in kernels if (kernel.arch, kernel.name) not in alike]
            with progress(f"audit of {title}", len(differing)) as shown:
                audits.append(
                    audit_shipped(
                        archs, jobs=_jobs(arguments), root=root, kernels=differing, subject=subject, on_step=shown.step
                    )
                )
        comparison = with_sources(compare(*audits), shipped.root, kernel_root())
        return audits[1], msgspec.structs.replace(comparison, alike=len(alike))


def _with_lines(arguments: argparse.Namespace, audit: Audit, comparison: Comparison) -> Comparison:
    """Add source lines to findings that got worse."""
    from rocattn.sources import kernel_root
    from rocattn_profiling.kernels.source_lines import with_lines
    from rocattn_profiling.kernels.verdict import rows_of

    shipped_from = None if arguments.files else kernel_root()
    worse = [row.variant for row in rows_of(comparison, audit) if row.severity == "worse"]
    return with_lines(comparison, audit, shipped_from, worse)


def _track(arguments: argparse.Namespace) -> tuple[NotCompared, ...]:
    """Add numbers to the asv store; return the commits without any, marked needed if no commit has numbers."""
    from rocattn.gpu.arch import TESTED
    from rocattn_profiling.base.reasons import Reason, counted
    from rocattn_profiling.kernels.revision import track_history

    archs = arguments.arch or TESTED
    with progress("history", arguments.history) as shown:
        tracked = track_history(Path.cwd(), arguments.history, archs, jobs=_jobs(arguments), on_step=shown.step)
    lost = counted(
        [("# commit of the history", "# commits of the history", Reason("no_kernels", why))
         for why in tracked.passed_over.values()],
        needed=not (tracked.stored or tracked.known),
    )  # fmt: skip
    for each in lost:
        say(f"not audited: {each.line}")
    say(f"history: {len(tracked.stored)} commits added to the asv store, {len(tracked.known)} were already in it")
    return lost


def pins_folder(given: Path | None) -> Path:
    """Return the folder of pins: the given one, or the one in the checkout that rocattn runs from.

    Raises:
        CommandError: When rocattn does not run from a checkout.
    """
    from rocattn.sources import kernel_root

    if given is not None:
        return given
    checkout = kernel_root().parent
    if not (checkout / "benchmarks").is_dir():
        raise CommandError("rocattn does not run from a checkout: use --pins to say where the pins are")
    return checkout / "benchmarks" / "pins"


def _write_pins(arguments: argparse.Namespace, audit: Audit) -> None:
    from rocattn_profiling.kernels.pins import pins_of, write_pins

    if audit.not_audited:
        raise CommandError("nothing was pinned: pins cover all kernels, and some could not be audited", NOT_MEASURED)
    for path in write_pins(pins_folder(arguments.pins), pins_of(audit)):
        say(f"pinned {path}")


def _is_worse(comparison: Comparison, *, pinned: bool) -> bool:
    """Return whether there is a regression or an outdated pin."""
    failing = ("worse", "better", "new", "missing") if pinned else ("worse",)
    return any(finding.severity in failing for finding in comparison.findings)
