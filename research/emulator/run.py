"""Executes our code objects instruction by instruction, on tinygrad's emulator, and judges the results.

    git -C TINYGRAD checkout COMMIT    # a clone of github.com/tinygrad/tinygrad, and the commit that --help names
    python research/emulator/run.py --tinygrad TINYGRAD --arch gfx1201                      # all problems
    python research/emulator/run.py --tinygrad TINYGRAD --arch gfx942 --case f32 --as-is    # with its mistakes
    python research/emulator/run.py --tinygrad TINYGRAD --corrections                       # each mistake by itself
    python research/emulator/run.py --tinygrad TINYGRAD --arch gfx942 --lockstep            # every instruction compared

Each problem's plan and machine code are those of ``rocattn plan`` and ``rocattn kernels build``; outputs are compared
with float64 by the rule of ``rocattn verify``. With ``--lockstep`` every instruction's effect on registers, LDS and
memory is compared with an independent reading of the ISA (`isa`), so that a wrong result names its instruction.
Nothing is fetched: the checkout is the caller's, and another commit than the one the corrections were made for is
refused. Nothing here measures time: an emulated wave has none.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent))
from corrections import CORRECTIONS, correct, results
from lockstep import Lockstep
from machine import COMMIT, FAMILIES, EmulatorError, Machine, open_emulator
from problems import PROBLEMS, judge

if TYPE_CHECKING:
    from typing import Any


def main() -> int:
    """Run what the command line asks for; 1 if a result is wrong, 2 if it cannot be run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tinygrad", type=Path, required=True, help=f"checkout of tinygrad at {COMMIT}")
    parser.add_argument("--any-commit", action="store_true", help="take another commit, too")
    parser.add_argument("--arch", choices=FAMILIES, default="gfx1201")
    names = [problem.name for problem in PROBLEMS]
    parser.add_argument("--case", nargs="+", choices=names, metavar="NAME", help=f"problems: {', '.join(names)}")
    parser.add_argument("--as-is", action="store_true", help="leave the emulator's mistakes in")
    parser.add_argument("--lockstep", action="store_true", help="compare every instruction with the ISA (slower)")
    parser.add_argument("--corrections", action="store_true", help="show each of the emulator's mistakes by itself")
    options = parser.parse_args()
    try:
        emulator = open_emulator(options.tinygrad, any_commit=options.any_commit)
        if options.corrections:
            return _show_corrections(emulator)
        if not options.as_is:
            correct(emulator)
        return _run(emulator, options)
    except EmulatorError as error:
        print(error, file=sys.stderr)
        return 2


def _run(emulator: Any, options: argparse.Namespace) -> int:
    machine = Machine(emulator, options.arch)
    lockstep = Lockstep(machine) if options.lockstep else None
    wrong = count = 0
    print(f"{options.arch}, the emulator {'as it is' if options.as_is else 'corrected'}; limit: 1 x what is allowed")
    print(f"{'problem':18} {'verdict':7} {'error':>9} {'instructions':>12} {'s':>6}  config")
    for problem in PROBLEMS:
        if options.case and problem.name not in options.case:
            continue
        verdict = judge(machine, problem, "plain" if options.as_is else "moat")
        count += 1
        wrong += bool(verdict.fault)
        print(
            f"{problem.name:18} {'WRONG' if verdict.fault else 'right':7} {verdict.ratio:9.3g}"
            f" {verdict.instructions:12,} {verdict.seconds:6.1f}  {verdict.label}",
            flush=True,
        )
        if verdict.fault:
            print(f"{'':18} {verdict.fault}")
        if lockstep:
            lockstep.report()
    print(f"{count - wrong} of {count} right")
    return 1 if wrong or (lockstep and lockstep.found) else 0


def _show_corrections(emulator: Any) -> int:
    """Execute each correction's cases before and after all are applied; 1 if one is not right then."""
    cases = [(correction, case) for correction in CORRECTIONS for case in correction.cases]
    before = [_result(emulator, case) for _, case in cases]
    correct(emulator)
    wrong, last = 0, None
    for (correction, case), old in zip(cases, before, strict=True):
        new = _result(emulator, case)
        if correction is not last:
            print(f"\n{correction.instructions}\n  emulator: {correction.mistake}\n  AMD: {correction.document}")
        last = correction
        print(f"  {case.arch}: {'; '.join(case.assembly.splitlines())}")
        for name, (found, right) in new.items():
            was = f"{old[name][0]:#x} where {old[name][1]:#x} is right" if old else "cannot execute it"
            print(f"    {name}: emulator: {was}; corrected: {found:#x}{'' if found == right else ', WRONG'}")
            wrong += found != right
    return 1 if wrong else 0


def _result(emulator: Any, case: Any) -> dict[str, tuple[int, int]]:
    """Return what `results` says; nothing where the emulator cannot execute the case."""
    try:
        return results(Machine(emulator, case.arch).execute(case.assembly, case.vectors, case.scalars), case)
    except RuntimeError:
        return {}


if __name__ == "__main__":
    raise SystemExit(main())
