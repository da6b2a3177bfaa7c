"""A/A on this machine: one commit against itself, and what that says about the gate here.

The machinery is that of ``rocattn gate run`` with base and head alike, but every benchmark gets every round. The
launches say of each benchmark how noisy it is, how often the gate would have been wrong, and the smallest change it
would have found (`rocattn_profiling.gate.rule.sensitivity`); and how often a whole run of unchanged benchmarks
turns red.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rocattn_profiling.gate.measure import SIDES, LaunchLine
from rocattn_profiling.gate.noise_record import EarlierNoise, NoiseSource
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.rule.interim import has_zero, identical
from rocattn_profiling.gate.rule.pairs import Pair, Side
from rocattn_profiling.gate.rule.policy import Policy  # noqa: TC001 - msgspec reads the annotations when it encodes
from rocattn_profiling.gate.rule.sensitivity import Sensitivity, relabelled, sensitivity
from rocattn_profiling.gate.rule.suite import decide_suite
from rocattn_profiling.gate.run import run_gate
from rocattn_profiling.gate.verdict import JUDGED
from rocattn_profiling.measure.records import Machine  # noqa: TC001 - msgspec reads the annotations when it decodes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rocattn_profiling.base.console import Step
    from rocattn_profiling.gate.measure import LaunchStore, SideName
    from rocattn_profiling.gate.verdict import GateResult

SCHEMA = 1
DRAWS = 60
_MOST = 0.9  # of the benchmarks, for which the recommended rounds are enough


class SelftestOptions(Options, frozen=True, kw_only=True):
    """Options of `run_gate` for one revision on both sides; ``rounds`` are measured for every benchmark."""

    def policy(self) -> Policy:
        """Return the rule, with one look at the end: nothing stops early."""
        return msgspec.structs.replace(self.judging(), looks=(self.judging().looks[-1],))

    def judging(self) -> Policy:
        """Return the rule that ``gate run`` would have judged by."""
        return Options.policy(self)

    def unchanged_sides(self) -> tuple[SideName, ...]:
        """Return both: they are one commit."""
        return SIDES


class Selftest(msgspec.Struct, frozen=True, kw_only=True):
    """What the gate is worth on a machine.

    Attributes:
        schema: Of this structure.
        created_ms: Unix time.
        revision: The commit that was measured against itself; of an existing environment its Python.
        machine: Where.
        policy: The rule that is tested.
        rounds, launches: How much was measured; ``launches`` counts processes.
        wrong: Benchmarks that the run itself called a regression or an improvement.
        false_alarm_rate: Share of relabelled pairs, over all benchmarks, that are called regressions.
        red_rate: Share of relabelled runs of the whole suite with any regression.
        draws: Relabelled runs behind both rates.
        recommended_rounds: The fewest that show a slowdown as large as the tolerance in nine of ten benchmarks;
            None when more are needed than were measured.
        benchmarks: Each benchmark, the noisiest first.
        exact: Benchmarks whose value was the same in every launch: there is nothing to test.
        unmeasured: Benchmark -> why it could not be measured.
        noise: Where knowledge of the noise of earlier sessions came from; this one is no part of it.
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
    """Measure a revision against itself and judge the gate; writes ``selftest.json`` beside the files of the run.

    What a number of rounds would find is asked with the noise that was known before, as ``gate run`` knows it.

    Args:
        repo: A folder inside the repository.
        out: Folder for the results; an unfinished run in it is gone on with.
        options: What to measure; base and head are the same revision.
        draws: Relabelled runs for each rate.
        on_step: Told after every launch.
        say: Told one line about every longer stage.

    Raises:
        RocattnError: As `run_gate`.
    """
    found: list[Selftest] = []

    def judged(result: GateResult, store: LaunchStore) -> dict[str, str]:
        pairs = pairs_of(result, *stored_with(store.path))
        say(f"relabelling the launches of {len(pairs)} benchmark{'' if len(pairs) == 1 else 's'}")
        found.append(judge_gate(result, pairs, options.judging(), draws))
        return {"selftest.json": msgspec.json.format(msgspec.json.encode(found[0]), indent=1).decode() + "\n"}

    run_gate(repo, out, options, on_step=on_step, say=say, also=judged)
    return found[0]


def stored_with(launches: Path) -> tuple[dict[str, int], EarlierNoise]:
    """Return how many calls a sample of each benchmark is, and what was known before, from the launches of a run."""
    decoder = msgspec.json.Decoder(LaunchLine)
    found, known = {}, EarlierNoise()
    for text in launches.read_bytes().splitlines():
        try:
            line = decoder.decode(text)
        except msgspec.DecodeError:
            continue  # a kill cut it off
        if line.kind == "session":
            known = line.began_with or EarlierNoise()
        if line.outcome is not None and line.outcome.launch is not None:
            found[line.label] = line.outcome.launch.number
    return found, known


def pairs_of(result: GateResult, numbers: dict[str, int], known: EarlierNoise | None = None) -> list[Pair]:
    """Return the stored pairs of a verdict's judged times and values.

    Args:
        result: The verdict.
        numbers: Benchmark -> calls of a sample.
        known: What the run knew of earlier noise.
    """
    pairs = []
    for entry in result.entries:
        if entry.status not in JUDGED or not (entry.base_launches and entry.head_launches):
            continue
        a, b = (
            Side(unit=entry.unit, number=max(1, numbers.get(entry.label, 1)), launches=launches)
            for launches in (entry.base_launches, entry.head_launches)
        )
        history = (known or EarlierNoise()).history(entry.label, len(a.launches[0].samples))
        pairs.append(Pair(id=entry.label, a=msgspec.structs.replace(a, history=history), b=b))
    return pairs


def judge_gate(result: GateResult, pairs: Sequence[Pair], policy: Policy, draws: int = DRAWS) -> Selftest:
    """Return what the launches of identical code say about the gate.

    Args:
        result: The run of a revision against itself.
        pairs: Its pairs, of `pairs_of`.
        policy: The rule to be tested.
        draws: Relabelled runs for each rate.
    """
    exact = [pair.id for pair in pairs if identical(pair) or has_zero(pair)]
    pairs = [pair for pair in pairs if pair.id not in exact]
    seen = [sensitivity(pair, policy, draws=draws) for pair in pairs]
    told = decide_suite(pairs, policy).decisions
    return Selftest(
        created_ms=result.created_ms,
        revision=result.head.revision.sha if result.head.revision else result.head.interpreter,
        machine=result.machine,
        policy=policy,
        rounds=min((pair.rounds for pair in pairs), default=0),
        launches=result.launches,
        wrong=[decision.id for decision in told if decision.verdict in {"regression", "improvement"}],
        false_alarm_rate=sum(s.false_alarm_rate for s in seen) / len(seen) if seen else 0.0,
        red_rate=_red(pairs, policy, draws),
        draws=draws,
        recommended_rounds=_recommended(seen, policy),
        benchmarks=sorted(seen, key=lambda s: -s.noise),
        exact=exact,
        unmeasured={
            e.label: e.reason or e.status for e in result.entries if e.status in {"failed", "broken", "missing"}
        },
        noise=result.noise,
    )


def _red(pairs: Sequence[Pair], policy: Policy, draws: int) -> float:
    """Return the share of relabelled runs of all benchmarks together that have a regression."""
    drawn = [relabelled(pair, pair.rounds, 0.0, draws, seed) for seed, pair in enumerate(pairs, start=1)]
    runs = zip(*drawn, strict=True)
    red = [any(d.verdict == "regression" for d in decide_suite(list(run), policy).decisions) for run in runs]
    return sum(red) / draws


def _recommended(seen: Sequence[Sensitivity], policy: Policy) -> int | None:
    for look in policy.looks:
        enough = sum(1 for s in seen if s.rounds is not None and s.rounds <= look)
        if seen and enough >= _MOST * len(seen):
            return look
    return None
