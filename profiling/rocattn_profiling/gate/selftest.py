"""A/A test on this machine: compare one commit with itself, and report how well the gate works here.

It runs ``rocattn gate run`` with the same commit as base and head, but every benchmark gets every round. The launches
show how noisy each benchmark is, how often the gate would have been wrong, the smallest change that it would have
found, and how often a whole run of unchanged benchmarks turns red. This assumes no noise model: recorded rounds are
drawn and their sides swapped at random, a change of known size is applied to one side, and the rule itself decides.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rocattn_profiling.base.journal import entries
from rocattn_profiling.gate.model import JUDGED, SIDES, EarlierNoise, GateResult, NoiseSource, SideName
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.rule.interim import has_zero, identical, launch_noise
from rocattn_profiling.gate.rule.pairs import Pair, PairLaunch, Side
from rocattn_profiling.gate.rule.policy import Policy
from rocattn_profiling.gate.rule.suite import decide, decide_suite
from rocattn_profiling.gate.run import run_gate
from rocattn_profiling.gate.session.store import LaunchLine, LaunchStore
from rocattn_profiling.measure.machine import this_machine
from rocattn_profiling.measure.records import Machine

if TYPE_CHECKING:
    from rocattn_profiling.base.console import Step

SCHEMA = 1
DRAWS = 60
CHANGES = (0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
POWER = 0.9
"""Required share of draws, or of benchmarks, in which a change is found."""


class SelftestOptions(Options, frozen=True, kw_only=True):
    """Options of `run_gate` for one revision on both sides; ``rounds`` are measured for every benchmark."""

    def policy(self) -> Policy:
        """Return the rule with a single look at the end: nothing stops early."""
        return msgspec.structs.replace(self.judging(), looks=(self.judging().looks[-1],))

    def judging(self) -> Policy:
        """Return the rule that ``gate run`` would have judged by."""
        return Options.policy(self)

    @property
    def equal_code_passes(self) -> bool:
        """False: only launches decide here, since the code is equal by design."""
        return False

    def unchanged_sides(self) -> tuple[SideName, ...]:
        """Return both sides: they are the same commit."""
        return SIDES


class Sensitivity(msgspec.Struct, frozen=True, kw_only=True):
    """What the gate can find in one benchmark.

    Attributes:
        id: The benchmark.
        noise: Launch-to-launch noise of the log time.
        sessions: Earlier sessions in its history.
        draws: Number of relabelled pairs for each rate.
        false_alarm_rate: Share of relabelled pairs without a change that are called regressions, using all rounds.
        smallest_change: Rounds -> the smallest change of `CHANGES` found in 90 % of the pairs; None if none is.
        rounds: The fewest rounds that find a slowdown as large as the tolerance in 90 % of the pairs; None if more
            are needed.
    """

    id: str
    noise: float
    sessions: int = 0
    draws: int
    false_alarm_rate: float
    smallest_change: dict[int, float | None]
    rounds: int | None


class Selftest(msgspec.Struct, frozen=True, kw_only=True):
    """How well the gate works on a machine.

    Attributes:
        schema: The version of this structure.
        created_ms: Unix time in ms.
        revision: The commit that was measured against itself; for an existing environment, its Python.
        machine: Where it was measured.
        policy: The rule under test.
        rounds, launches: How much was measured; ``launches`` counts processes.
        wrong: Benchmarks that the run itself called a regression or an improvement.
        false_alarm_rate: Share of relabelled pairs, over all benchmarks, that are called regressions.
        red_rate: Share of relabelled runs of the whole suite with any regression.
        draws: Number of relabelled runs for both rates.
        recommended_rounds: The fewest rounds that find a slowdown as large as the tolerance in nine of ten benchmarks;
            None if more are needed than were measured.
        benchmarks: Each benchmark, noisiest first.
        exact: Benchmarks with the same value in every launch, or with zeros: there is nothing to test.
        unmeasured: Benchmark -> why it could not be measured.
        noise: Where the history came from; it does not include this session.
    """

    schema: int = SCHEMA
    created_ms: int
    revision: str
    machine: Machine
    policy: Policy
    rounds: int
    launches: int
    wrong: list[str]
    false_alarm_rate: float
    red_rate: float
    draws: int
    recommended_rounds: int | None
    benchmarks: list[Sensitivity]
    exact: list[str]
    unmeasured: dict[str, str]
    noise: NoiseSource | None = None


def run_selftest(
    repo: Path,
    out: Path,
    options: SelftestOptions,
    *,
    draws: int = DRAWS,
    on_step: Callable[[Step], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> Selftest:
    """Measure a revision against itself and judge the gate; write ``selftest.json`` to ``out``.

    The sensitivity uses the history available before this session, as ``gate run`` does.

    Args:
        repo: A folder inside the repository.
        out: Folder for the results; an unfinished run in it is resumed.
        options: What to measure; base and head are the same revision.
        draws: Number of relabelled runs for each rate.
        on_step: Called after every launch.
        say: Called with one line about each longer stage.

    Raises:
        RocattnError: As for `run_gate`.
    """
    selftests: list[Selftest] = []

    def tested(result: GateResult, store: LaunchStore) -> dict[str, str]:
        pairs = pairs_of(result, *stored_with(store.path))
        say(f"relabelling the launches of {len(pairs)} benchmark{'' if len(pairs) == 1 else 's'}")
        policy = msgspec.structs.replace(options.judging(), tolerance=result.policy.tolerance)  # may be the project's
        selftests.append(judge_gate(result, pairs, policy, draws))
        return {"selftest.json": msgspec.json.format(msgspec.json.encode(selftests[0]), indent=1).decode() + "\n"}

    run_gate(repo, out, options, on_step=on_step, say=say, also=tested)
    return selftests[0]


def stored_with(launches: Path) -> tuple[dict[str, int], EarlierNoise]:
    """Read each benchmark's calls per sample, and the run's history, from the run's file of launches."""
    numbers, earlier = {}, EarlierNoise()
    for line in entries(launches, LaunchLine):
        if line.kind == "session":
            earlier = line.began_with or EarlierNoise()
        if line.outcome is not None and line.outcome.launch is not None:
            numbers[line.label] = line.outcome.launch.number
    return numbers, earlier


def pairs_of(result: GateResult, numbers: dict[str, int], earlier: EarlierNoise | None = None) -> list[Pair]:
    """Return the stored pairs behind a verdict's judged times and values.

    Args:
        result: The verdict.
        numbers: Benchmark -> calls per sample.
        earlier: The run's history.
    """
    pairs = []
    for entry in result.entries:
        if entry.status not in JUDGED or not (entry.base_launches and entry.head_launches):
            continue
        a, b = (
            Side(unit=entry.unit, number=max(1, numbers.get(entry.label, 1)), launches=launches)
            for launches in (entry.base_launches, entry.head_launches)
        )
        history = (earlier or EarlierNoise()).history(entry.label, len(a.launches[0].samples))
        pairs.append(Pair(id=entry.label, a=msgspec.structs.replace(a, history=history), b=b))
    return pairs


def judge_gate(result: GateResult, pairs: Sequence[Pair], policy: Policy, draws: int = DRAWS) -> Selftest:
    """Return what the launches of identical code show about the gate.

    Args:
        result: The run of a revision against itself.
        pairs: Its pairs, from `pairs_of`.
        policy: The rule under test.
        draws: Number of relabelled runs for each rate.
    """
    exact = [pair.id for pair in pairs if identical(pair) or has_zero(pair)]
    pairs = [pair for pair in pairs if pair.id not in exact]
    benchmarks = [sensitivity(pair, policy, draws=draws) for pair in pairs]
    decisions = decide_suite(pairs, policy).decisions
    return Selftest(
        created_ms=result.created_ms,
        revision=result.head.revision.sha if result.head.revision else result.head.interpreter,
        machine=result.machine or this_machine(),
        policy=policy,
        rounds=min((pair.rounds for pair in pairs), default=0),
        launches=result.launches,
        wrong=[decision.id for decision in decisions if decision.verdict in {"regression", "improvement"}],
        false_alarm_rate=sum(s.false_alarm_rate for s in benchmarks) / len(benchmarks) if benchmarks else 0.0,
        red_rate=_red_rate(pairs, policy, draws),
        draws=draws,
        recommended_rounds=_recommended(benchmarks, policy),
        benchmarks=sorted(benchmarks, key=lambda s: -s.noise),
        exact=exact,
        unmeasured={e.label: e.reason or e.status for e in result.entries if e.lost or e.status == "broken"},
        noise=result.noise,
    )


def sensitivity(pair: Pair, policy: Policy, *, draws: int = DRAWS, seed: int = 1) -> Sensitivity:
    """Measure what the gate can find in one benchmark.

    Args:
        pair: Launches of identical code on both sides, with as many rounds as the longest look to judge; its history
            counts as in a run.
        policy: The rule.
        draws: Number of relabelled pairs for each rate.
        seed: Seed of the draws.
    """
    looks = [look for look in policy.looks if look <= pair.rounds]
    most = looks[-1] if looks else pair.rounds
    false_alarms = _regression_rate(pair, policy, most, 0.0, draws, seed)
    smallest = {look: _smallest_change(pair, policy, look, draws, seed) for look in looks}
    enough = (look for look, change in smallest.items() if change is not None and change <= policy.tolerance)
    return Sensitivity(
        id=pair.id,
        noise=launch_noise(pair, policy),
        sessions=len(pair.a.history),
        draws=draws,
        false_alarm_rate=false_alarms,
        smallest_change=smallest,
        rounds=next(enough, None),
    )


def relabelled(pair: Pair, rounds: int, change: float, draws: int, seed: int) -> Iterator[Pair]:
    """Yield pairs of randomly drawn rounds with randomly swapped sides, with head slowed by ``change``."""
    source = random.Random(seed)  # noqa: S311 - resampling, not secrets; seeded for reproducible results
    recorded = list(zip(pair.a.launches, pair.b.launches, strict=False))
    for _ in range(draws):
        sides: tuple[list[PairLaunch], list[PairLaunch]] = ([], [])
        for round_, index in enumerate(sorted(source.sample(range(len(recorded)), rounds))):
            order = recorded[index] if source.random() < 0.5 else recorded[index][::-1]
            for side, launch in zip(sides, order, strict=True):
                side.append(msgspec.structs.replace(launch, round=round_))
        head = [_slower(launch, 1 + change) for launch in sides[1]]
        a, b = (
            msgspec.structs.replace(side, launches=launches) for side, launches in ((pair.a, sides[0]), (pair.b, head))
        )
        yield Pair(id=pair.id, a=a, b=b)


def _slower(launch: PairLaunch, factor: float) -> PairLaunch:
    samples, cpu = ([value * factor for value in column] for column in (launch.samples, launch.cpu))
    return msgspec.structs.replace(launch, samples=samples, cpu=cpu)


def _regression_rate(pair: Pair, policy: Policy, rounds: int, change: float, draws: int, seed: int) -> float:
    """Return the share of relabelled pairs that are called a regression."""
    drawn = relabelled(pair, rounds, change, draws, seed)
    return sum(decide(pair_, policy).verdict == "regression" for pair_ in drawn) / draws


def _smallest_change(pair: Pair, policy: Policy, rounds: int, draws: int, seed: int) -> float | None:
    """Return the smallest change found often enough, by bisection, since power grows with the change."""
    low, high = 0, len(CHANGES)
    while low < high:
        middle = (low + high) // 2
        if _regression_rate(pair, policy, rounds, CHANGES[middle], draws, seed) >= POWER:
            high = middle
        else:
            low = middle + 1
    return CHANGES[low] if low < len(CHANGES) else None


def _red_rate(pairs: Sequence[Pair], policy: Policy, draws: int) -> float:
    """Return the share of relabelled runs of the whole suite that have a regression."""
    drawn = [relabelled(pair, pair.rounds, 0.0, draws, seed) for seed, pair in enumerate(pairs, start=1)]
    runs = zip(*drawn, strict=True)
    red = [any(d.verdict == "regression" for d in decide_suite(list(run), policy).decisions) for run in runs]
    return sum(red) / draws


def _recommended(benchmarks: Sequence[Sensitivity], policy: Policy) -> int | None:
    """Return the smallest number of rounds that suffices for nine of ten benchmarks."""
    for look in policy.looks:
        enough = sum(1 for s in benchmarks if s.rounds is not None and s.rounds <= look)
        if benchmarks and enough >= POWER * len(benchmarks):
            return look
    return None
