"""``rocattn kernels capture``: save the Triton kernels of a program, compiled without a GPU."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn_profiling.base.console import add_common, cleanly, emit_json, say
from rocattn_profiling.base.status import NOT_MEASURED, OK, CommandError
from rocattn_profiling.workloads.options import positive

if TYPE_CHECKING:
    from rocattn_profiling.kernels.capture.run import CapturedRun

_CAPTURE = """\
Run a program without a GPU and save every Triton kernel that it would launch, compiled for each architecture: plain
kernels, all configurations of autotuned ones, and those from torch.compile. Triton compiles, but launches nothing;
tensors claim to be on a GPU, but live on the CPU; the program's results are meaningless. Each kernel is saved as code
object, assembly and JSON (signature, constants, options, versions, source), which `rocattn kernels audit` reads.

  rocattn kernels capture --arch gfx950 gfx942 --python OLD --out old -- python bench.py
  rocattn kernels capture --arch gfx950 gfx942 --python NEW --out new -- python bench.py
  rocattn kernels audit new --against old

Without --arch the program runs on this machine's GPU, and the kernels that Triton compiles for it are saved.

The exit status is 3 if a kernel did not compile or the program failed: kernels may be missing."""
_SHOWN = 5  # most failed kernels to name


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "rocattn kernels capture [--arch GFX [GFX ...]] [options] -- COMMAND [ARGUMENT ...]"
    parser.description = _CAPTURE
    parser.add_argument(
        "--arch", nargs="+", metavar="GFX", help="architectures to compile for (default: run on the GPU)"
    )
    parser.add_argument("--python", type=Path, metavar="ENV", help="the program's Python: its virtual environment")
    parser.add_argument(
        "--timeout", type=positive, default=1800, metavar="S", help="time limit for the program (default: 1800 s)"
    )
    parser.add_argument("command", nargs="*", metavar="COMMAND", help=argparse.SUPPRESS)
    add_common(parser, out="out/capture")


def run(arguments: argparse.Namespace) -> int:
    """Run the program for each architecture and report the saved kernels."""
    from rocattn_profiling.kernels.capture.run import (
        LOG,
        Captured,
        capture,
        capture_here,
        gpu_of,
        prepared,
        write_listing,
    )
    from rocattn_profiling.pages.render import count

    program = arguments.command
    if not program:
        raise CommandError("give the program after --: rocattn kernels capture --arch gfx950 -- python bench.py")
    gpus = [gpu_of(arch) for arch in dict.fromkeys(arguments.arch or ())]
    out = prepared(Path(arguments.out))
    limits = {"python": arguments.python, "timeout_s": arguments.timeout}
    runs: list[CapturedRun] = []
    with cleanly("capture"):
        for gpu in gpus or (None,):
            kept = [capture(program, gpu, out, **limits)] if gpu else capture_here(program, out, **limits)
            runs += kept
            write_listing(out, Captured(program=program, runs=runs))
            for each in kept:
                _show(each, (out / gpu.arch if gpu else out) / LOG)
    if arguments.json:
        emit_json(Captured(program=program, runs=runs))
    without = [kept.arch for kept in runs if not kept.kernels]
    if without or not runs:
        where = ", ".join(without) if runs else f"an AMD GPU of this machine (output: {out / LOG})"
        raise CommandError(
            f"no Triton kernel was compiled for {where}: run the program with a Python that has Triton, "
            "not isolated (-I, -E, -S), on inputs that reach a kernel",
            NOT_MEASURED,
        )
    total = sum(sum(kept.kernels.values()) for kept in runs)
    say(f"capture: {count(total, 'kernel')} for {', '.join(kept.arch for kept in runs)} in {out}")
    return NOT_MEASURED if any(kept.failure or kept.not_compiled for kept in runs) else OK


def _show(kept: CapturedRun, log: Path) -> None:
    from rocattn_profiling.pages.render import count

    variants = sum(kept.kernels.values())
    say(f"{kept.arch}: {count(variants, 'variant')} of {count(len(kept.kernels), 'kernel')}")
    for failed in kept.not_compiled[:_SHOWN]:
        say(f"{kept.arch}: {failed.kernel} did not compile: {failed.text.splitlines()[0]}")
    if more := kept.not_compiled[_SHOWN:]:
        say(f"{kept.arch}: {len(more)} more did not compile")
    if kept.failure:
        say(f"{kept.arch}: the program failed after {count(variants, 'kernel')}: {kept.failure}")
        say(f"{kept.arch}: output: {log}")
