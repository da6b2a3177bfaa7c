"""``rocattn gate compare``: a verdict on other programs' result files, by the rule of ``gate run``.

A file is a launch: its values for a benchmark are samples of one process, on one machine, at one time. Timestamps in
the files show whether the sides ran in turns. Without them, one side is assumed to have run first, so machine drift
explains as much of a difference as it can.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rocattn_profiling.base.card import listed
from rocattn_profiling.base.console import add_common
from rocattn_profiling.base.status import USAGE, CommandError
from rocattn_profiling.gate import options as gate_options
from rocattn_profiling.gate.rule.constants import MIN_LAUNCHES
from rocattn_profiling.gate.rule.policy import Policy

if TYPE_CHECKING:
    from rocattn_profiling.gate.foreign.readers import Reading, Results
    from rocattn_profiling.gate.model import Entry, GateResult, SideName, Status
    from rocattn_profiling.gate.rule.pairs import Decision, Pair, PairLaunch
    from rocattn_profiling.gate.rule.suite import SuiteDecision

_DESCRIPTION = """Compare result files by the rule of `gate run`: Google Benchmark, nvbench, pytest-benchmark,
hyperfine, asv, Catch2 (XML), Criterion, go test -bench, ckProfiler, tables of comma-separated values whose columns name
their unit (rocblas-bench, hipblaslt-bench, Triton, AITER), and JSON lines {"name", "value", "unit", "better"}. A file
is one launch: give five or more per side, measured in turns; a folder stands for its files."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.description = _DESCRIPTION
    text = "files or folders: base's, then head's, told apart by their folders or names (or by --head)"
    parser.add_argument("files", nargs="+", metavar="FILE", help=text)
    parser.add_argument("--head", nargs="+", default=[], metavar="FILE", help="head's files; the others are base's")
    parser.add_argument("--format", default="", metavar="NAME", help="format of all files (default: detected for each)")
    gate_options.add_tolerance(parser)
    parser.add_argument("--strict", action="store_true", help="exit 2 if anything is undecided")
    add_common(parser, out="out/gate")


def run(arguments: argparse.Namespace) -> int:
    """Read, decide, write the verdict in every form and print it."""
    policy = gate_options.Options(tolerance=gate_options.chosen_tolerance(arguments)).policy()
    from rocattn_profiling.base.files import result_folder
    from rocattn_profiling.gate.formats import outputs

    result = compared(sides_of(arguments.files, arguments.head), policy, arguments.format)
    out = Path(arguments.out)
    result_folder(out)
    outputs.write_all(result, out)
    return outputs.show(result, out, json=arguments.json, strict=arguments.strict)


def sides_of(files: Sequence[str], head: Sequence[str]) -> dict[SideName, list[Path]]:
    """Return the files of both sides, with folders replaced by their files.

    Args:
        files: Base's files; without ``head``, both sides' files, base's first.
        head: Head's files.

    Raises:
        CommandError: The sides cannot be told apart, a side has no file, or both have the same file.
    """
    base = list(files)
    if not head:
        cut = 1 if len(files) == 2 else _cut(files)
        base, head = base[:cut], base[cut:]
    sides: dict[SideName, list[Path]] = {"base": list(_files(base)), "head": list(_files(head))}
    for side, paths in sides.items():
        if not paths:
            raise CommandError(f"{side} has no files", USAGE)
    if twice := {path.resolve() for path in sides["base"]} & {path.resolve() for path in sides["head"]}:
        raise CommandError(f"{min(twice)} is on both sides", USAGE)
    return sides


def _cut(files: Sequence[str]) -> int:
    """Return the index of head's first file: the only place where the folder (or the name without digits) changes.

    Raises:
        CommandError: There is no such place, or several.
    """
    paths = [Path(name) for name in files]
    for keys in ([str(path.parent) for path in paths], [re.sub(r"\d+", "", path.name) for path in paths]):
        cuts = [at for at in range(1, len(keys)) if keys[at] != keys[at - 1]]
        if len(cuts) == 1:
            return cuts[0]
    raise CommandError("cannot tell base's files from head's: name head's files after --head", USAGE)


def _files(names: Sequence[str]) -> Iterator[Path]:
    for path in map(Path, names):
        yield from sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else [path]


def compared(sides: Mapping[SideName, Sequence[Path]], policy: Policy, form: str = "") -> GateResult:
    """Return the verdict on files.

    Args:
        sides: The files of both sides.
        policy: The rule.
        form: Name of their format; "" to detect it for each.

    Raises:
        CommandError: The format is unknown.
        ReadError: A file cannot be read.
    """
    from rocattn_profiling.gate.foreign.readers import FORMS, read_results
    from rocattn_profiling.gate.headline import conclude
    from rocattn_profiling.gate.model import SIDES, GateResult, SideFacts, counts_of, coverage_of
    from rocattn_profiling.gate.result import worst_first
    from rocattn_profiling.gate.rule.suite import decide_suite, stored

    if form and form not in FORMS:
        raise CommandError(f"--format {form}: give {', '.join(FORMS)}", USAGE)
    read: dict[SideName, list[Results]] = {side: [read_results(path, form) for path in sides[side]] for side in SIDES}
    in_turns, notes = _design(read)
    pairs, others = _paired(read)
    decision = decide_suite(pairs, stored(policy, max((pair.rounds for pair in pairs), default=1)))
    judged = [_judged(pair, read, each, decision) for pair, each in zip(pairs, decision.decisions, strict=True)]
    entries = sorted([*judged, *others], key=worst_first)
    if any(entry.metric == "time" and entry.unit != "ns" for entry in entries):
        notes.append("for a rate, larger is better: its ratio is base / head, so above 1 is always worse")
    overall, sentence = conclude(entries, decision.invalid, tolerance=policy.tolerance)
    facts = {side: SideFacts(interpreter=_title(sides[side]), python="", packages={}) for side in SIDES}
    return GateResult(
        verdict=overall,
        sentence=sentence,
        created_ms=time.time_ns() // 1_000_000,
        base=facts["base"],
        head=facts["head"],
        policy=policy,
        quick=False,
        seed=0,
        launches=sum(map(len, read.values())),
        in_turns=in_turns,
        suite="",
        suite_shift=decision.shift,
        canary_shift=decision.canary,
        invalid=decision.invalid,
        notes=notes,
        counts=counts_of(entries),
        not_compared=list(coverage_of(entries).not_compared),
        entries=entries,
    )


def _title(paths: Sequence[Path]) -> str:
    files = f"{len(paths)} file{'' if len(paths) == 1 else 's'}"
    return f"{files}: {listed([str(path) for path in paths], 2)}"


def _design(read: Mapping[SideName, list[Results]]) -> tuple[bool, list[str]]:
    """Sort the files by time if all have one; return whether the sides ran in turns, and notes on the design."""
    notes = []
    dated = all(results.start_s for side in read.values() for results in side)
    for side in read.values() if dated else ():
        side.sort(key=lambda results: results.start_s)
    first, last = ({side: r[at].start_s for side, r in read.items()} for at in (0, -1))
    in_turns = dated and last["base"] > first["head"] and last["head"] > first["base"]
    fewest = min(map(len, read.values()))
    if fewest < MIN_LAUNCHES:
        files = f"{fewest} file{'' if fewest == 1 else 's'} per side"
        why = "samples of one process do not show how two processes of the same code differ"
        notes.append(f"{files} prove{'s' if fewest == 1 else ''} no regression: {why}; give five or more")
    if not in_turns:
        why = "one side ran before the other" if dated else "the files do not say when they were measured"
        notes.append(f"{why}: what the machine did in between looks like a change; run the sides in turns")
    return in_turns, notes


def _paired(read: Mapping[SideName, Sequence[Results]]) -> tuple[list[Pair], list[Entry]]:
    """Return a pair for each benchmark that can be judged, and an entry for each of the others."""
    from rocattn_profiling.gate.foreign.readers import undirected
    from rocattn_profiling.gate.model import SIDES, Entry
    from rocattn_profiling.gate.rule.pairs import Pair, Side

    starts = _starts(read)
    pairs: list[Pair] = []
    others: list[Entry] = []
    for name in dict.fromkeys(name for side in SIDES for each in read[side] for name in (*each.readings, *each.failed)):
        found = {
            side: [(at, each.readings[name]) for at, each in enumerate(read[side]) if name in each.readings]
            for side in SIDES
        }
        kinds = {(reading.unit, reading.better) for readings in found.values() for _, reading in readings}
        if status := _status(name, read, found):
            others.append(Entry(label=name, name=name, status=status[0], reason=status[1]))
        elif len(kinds) > 1:
            units = " and ".join(sorted(unit for unit, _ in kinds))
            others.append(Entry(label=name, name=name, status="void", reason=f"it is in {units}"))
        elif not next(iter(kinds))[1]:
            reason = undirected(next(iter(kinds))[0])
            others.append(Entry(label=name, name=name, metric="track", status="ungated", reason=reason))
        else:
            a, b = (
                Side(
                    benchmark=name,
                    side=side,
                    unit=next(iter(kinds))[0],
                    number=min(reading.number for _, reading in found[side]),
                    launches=[_launch(at, reading, starts[side][at]) for at, reading in found[side]],
                )
                for side in SIDES
            )
            pairs.append(Pair(id=name, a=a, b=b))
    return pairs, others


def _starts(read: Mapping[SideName, Sequence[Results]]) -> dict[SideName, list[float]]:
    """Return when each file was measured, in seconds; if that is unknown, as if all of base's files came first."""
    starts = {side: [each.start_s for each in results] for side, results in read.items()}
    if not all(map(all, starts.values())):
        before = len(read["base"])
        after = before + len(read["head"])
        starts = {"base": [*map(float, range(before))], "head": [*map(float, range(before, after))]}
    return starts


def _status(
    name: str, read: Mapping[SideName, Sequence[Results]], found: Mapping[SideName, Sequence[object]]
) -> tuple[Status, str] | None:
    """Return why a benchmark is not on both sides; None if it is."""
    failed = {side: next((each.failed[name] for each in read[side] if name in each.failed), "") for side in read}
    if found["base"] and found["head"]:
        return None
    if found["base"]:
        return ("failed", failed["head"]) if failed["head"] else ("missing", "only base's files have it")
    if found["head"]:
        return ("void", f"base: {failed['base']}") if failed["base"] else ("new", "only head's files have it")
    if failed["base"]:
        return ("broken", failed["head"] or failed["base"])
    return ("failed", failed["head"])


def _launch(round_: int, reading: Reading, start_s: float) -> PairLaunch:
    """Return a file's samples as a launch; rates are inverted to times, so that smaller is better."""
    from rocattn_profiling.gate.rule.pairs import PairLaunch

    samples = [1 / value for value in reading.values] if reading.better == "larger" else reading.values
    return PairLaunch(round=round_, start_us=1e6 * start_s, samples=samples, cpu=list(reading.cpu))


def _judged(pair: Pair, read: Mapping[SideName, Sequence[Results]], decision: Decision, suite: SuiteDecision) -> Entry:
    """Return the entry of a judged benchmark, with its values as in the files."""
    from rocattn_profiling.gate.model import Entry

    reading = next(each.readings[pair.id] for each in read["base"] if pair.id in each.readings)
    larger = reading.better == "larger"
    levels = suite.levels.get(pair.id)
    base, head = (1 / level if larger else level for level in levels) if levels else (None, None)
    metric = "time" if larger or reading.unit == "ns" else "track"
    suspect = decision.verdict == "inconclusive" and pair.id in set(suite.listed)
    return Entry(
        label=pair.id, name=pair.id, unit=reading.unit, metric=metric, decision=decision,
        status=cast("Status", decision.verdict), base=base, head=head,
        base_launches=pair.a.launches, head_launches=pair.b.launches, suspect=suspect,
    )  # fmt: skip
