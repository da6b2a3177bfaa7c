"""``rocattn kernels``: build GPU kernels and analyze their machine code, without a GPU."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn.sources import require_own_checkout
from rocattn_profiling.base.console import add_common, emit_json, progress, say
from rocattn_profiling.base.status import FAILED, OK, CommandError
from rocattn_profiling.kernels import audit_command as kernels_audit
from rocattn_profiling.kernels import occupancy_command as kernels_occupancy
from rocattn_profiling.kernels.capture import command as kernels_capture
from rocattn_profiling.workloads.options import positive

if TYPE_CHECKING:
    from rocattn.gpu.launch import LaunchPlan

_BUILD = """\
Compile the GPU kernels into code objects (.hsaco), with their assembly (.s) and a manifest.json that lists the inputs,
registers, LDS, spills and argument offsets of each kernel, checked against the code object's metadata. --arch builds
all kernels and dtypes at the usual head dimensions, D = Dv (other sizes are compiled on first use); --plan builds only
what the plan needs. Kernels compiled before come from the cache, so an interrupted build resumes where it stopped; the
manifest describes the last build into the folder."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands and their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    build = actions.add_parser("build", help="compile kernels into a folder", description=_BUILD)
    build.add_argument("--arch", nargs="+", metavar="GFX", help="architectures to build all kernels for")
    build.add_argument("--plan", type=Path, metavar="FILE", help="a plan of `rocattn plan --json`: build what it needs")
    build.add_argument("--jobs", type=positive, metavar="N", help="parallel compilations (default: available cores)")
    add_common(build, out="out/kernels")
    audit = actions.add_parser("audit", help="registers, spills, occupancy and hot loops, and their changes")
    kernels_audit.prepare(audit)
    capture = actions.add_parser("capture", help="a program's Triton kernels, compiled without a GPU")
    kernels_capture.prepare(capture)
    occupancy = actions.add_parser("occupancy", help="how many waves fit, and which limit binds by how much")
    kernels_occupancy.prepare(occupancy)


def run(arguments: argparse.Namespace) -> int:
    """Run the chosen sub-command."""
    others = {"capture": kernels_capture, "audit": kernels_audit, "occupancy": kernels_occupancy}
    return others[arguments.action].run(arguments) if arguments.action in others else _build(arguments)


def _build(arguments: argparse.Namespace) -> int:
    """Build and report."""
    from rocattn_profiling.kernels.build import MANIFEST, all_variants, build, variants_of

    if (arguments.arch is None) == (arguments.plan is None):
        raise CommandError("choose what to build: --arch GFX for every kernel, or --plan FILE for those of one plan")
    require_own_checkout()
    variants = all_variants(arguments.arch) if arguments.arch else variants_of(_read_plan(arguments.plan))
    out = Path(arguments.out)
    jobs = arguments.jobs or len(os.sched_getaffinity(0))
    with progress("kernels", len(variants)) as shown:
        manifest, problems = build(variants, out, jobs=jobs, on_step=shown.step)
    for problem in problems:
        say(problem)
    if arguments.json:
        emit_json({"manifest": manifest, "problems": problems})
    if problems:
        say(f"kernels: {len(problems)} of {len(variants)} failed; no manifest was written")
        return FAILED
    say(f"kernels: {len(variants)} for {', '.join(manifest.archs) or 'no architecture'} in {out / MANIFEST}")
    return OK


def _read_plan(path: Path) -> LaunchPlan:
    """Read a plan and check that its sources have not changed since."""
    import json

    from rocattn.gpu.build import code_object_name
    from rocattn.gpu.launch import LaunchPlan

    try:
        values = json.loads(path.read_text())
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise CommandError(f"{path} is not JSON: {error}") from error
    plan = LaunchPlan.from_dict(values)
    for launch in plan.launches:
        name = code_object_name(launch.source, plan.arch, launch.defines)
        if launch.code_object != name:
            raise CommandError(
                f"{path} asks for {launch.code_object}, but these sources make {name}: print the plan again"
            )
    return plan
