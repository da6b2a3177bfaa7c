"""``rocattn doctor``: check what this machine has and lacks, with a remedy for everything missing."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocattn_profiling.doctor.checks import DoctorCheck


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    from rocattn_profiling.base.console import add_common

    parser.description = (
        "Show what this machine has: compilers, GPU, profilers, backends, measurement hygiene; and what to do "
        "about each missing thing. Exit status 0 when nothing is broken, 4 when something that rocattn needs, or that "
        "a ROCATTN_ variable asks for, does not work; with --gpu, 4 also unless attention runs on a GPU."
    )
    parser.add_argument(
        "--hostgpu", action="store_true",
        help="instead: build the stand-in GPU, which executes kernels on the CPU, and print the folder to name in "
        "ROCM_PATH",
    )  # fmt: skip
    parser.add_argument(
        "--gpu", nargs="?", const="", metavar="ARCH",
        help="fail unless there is a GPU, of this architecture if one is named, and attention on it is correct",
    )  # fmt: skip
    parser.add_argument("--allow-stand-in", action="store_true", help="with --gpu: the stand-in counts as a GPU")
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Examine the machine and print the result; return 0 if nothing is broken, else 4."""
    from rocattn_profiling.base.console import emit_json, steps
    from rocattn_profiling.base.status import OK, USAGE, CommandError

    if arguments.hostgpu:
        from rocattn.toolchain.hostgpu import hostgpu_library

        root = str(hostgpu_library())
        if arguments.json:
            emit_json({"ROCM_PATH": root})
        else:
            print(root)
        return OK
    from rocattn_profiling.doctor.checks import examine, gpu_problem

    with steps("rocattn doctor") as say_step:
        report = examine(say_step)
    if arguments.json:
        emit_json(report.to_builtins())
    else:
        print("\n".join([*lines(report.checks), "", verdict(report.to_builtins())]))
    if arguments.gpu is not None and (problem := gpu_problem(report, arguments.gpu, arguments.allow_stand_in)):
        raise CommandError(f"no GPU to measure on: {problem}")
    return OK if report.ok else USAGE


def lines(checks: Sequence[DoctorCheck]) -> list[str]:
    """Format checks by group as plain text: status, name and detail, with the remedy below.

    Output of compilers, drivers and tools is treated as plain text.
    """
    from rocattn_profiling.base.markup import line

    width = max((len(check.name) for check in checks), default=0)
    out: list[str] = []
    group = ""
    for check in checks:
        if check.group != group:
            out += [""] * bool(out) + [check.group]
            group = check.group
        out.append(f"  {check.status:7}  {check.name:{width}}  {check.detail}".rstrip())
        if check.remedy:
            out.append(f"  {'':7}  {'':{width}}  -> {check.remedy}")
    return [*map(line, out)]


def verdict(report: dict[str, Any]) -> str:
    """Summarize a report in one line: the CPU path, the GPU path, kernels, and the number of items in each state."""
    chosen = next((compiler for compiler in report["compilers"] if compiler["chosen"]), None)
    count = Counter(check["status"] for check in report["checks"])
    broken = [check["name"] for check in report["checks"] if check["status"] == "broken"]
    states = f"{count['ok']} ready, {count['missing']} missing but optional, {len(broken)} broken"
    states += f" ({', '.join(broken)})" if broken else ""
    warnings = f", {count['warning']} warning{'s' * (count['warning'] != 1)}" if count["warning"] else ""
    parts = [
        f"CPU path: {'ready' if report['ok'] else 'broken'}",
        f"GPU path: {_devices(report['gpu']['devices'])}",
        f"kernels: {'compile with ' + chosen['kind'] if chosen else 'no compiler'}",
        states + warnings,
    ]
    return "; ".join(parts)


def _devices(devices: list[dict[str, Any]]) -> str:
    real = sum(not device["is_stand_in"] for device in devices)
    if devices and not real:
        return "no GPU, only the stand-in"
    return f"{real or 'no'} device{'s' * (real != 1)}"
