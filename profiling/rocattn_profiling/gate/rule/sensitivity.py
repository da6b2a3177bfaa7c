"""What the gate can see on a machine: false alarms and the smallest change found, from launches of identical code.

Nothing is assumed about the noise: recorded A/A rounds are drawn and their sides swapped at random, a change of known
size is laid over one side, and the decision itself is asked.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from rocattn_profiling.gate.rule.interim import launch_noise
from rocattn_profiling.gate.rule.pairs import Pair, Side
from rocattn_profiling.gate.rule.suite import decide

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocattn_profiling.gate.rule.pairs import PairLaunch
    from rocattn_profiling.gate.rule.policy import Policy

CHANGES = (0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
POWER = 0.9


class Sensitivity(msgspec.Struct, frozen=True, kw_only=True):
    """What the gate sees in one benchmark.

    Attributes:
        id: The benchmark.
        noise: Launch-to-launch noise, in logs.
        sessions: Earlier sessions whose noise was known.
        draws: Relabelled pairs behind each rate.
        false_alarm_rate: Share of them, without a change, that are called regressions within all rounds.
        smallest_change: Rounds -> the smallest change of `CHANGES` found in 90 % of them; None when none is.
        rounds: The fewest that show a slowdown as large as the tolerance in 90 %; None when more are needed.
    """

    id: str
    noise: float
    sessions: int = 0
    draws: int
    false_alarm_rate: float
    smallest_change: dict[int, float | None]
    rounds: int | None


def sensitivity(pair: Pair, policy: Policy, *, draws: int = 60, seed: int = 1) -> Sensitivity:
    """Measure what the gate sees.

    Args:
        pair: Launches of identical code on both sides, as many rounds as the longest look to be judged; a history of
            earlier sessions is listened to as a run does.
        policy: The rule.
        draws: Relabelled pairs for each rate.
        seed: Of the draws.
    """
    looks = [look for look in policy.looks if look <= pair.rounds]
    most = looks[-1] if looks else pair.rounds
    false_alarms = _share(pair, policy, most, 0.0, draws, seed)
    smallest = {look: _smallest(pair, policy, look, draws, seed) for look in looks}
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
    """Go through pairs of randomly drawn rounds with randomly swapped sides, head made slower by ``change``."""
    source = random.Random(seed)  # noqa: S311 - resampling, not secrets; seeded so that a machine always reads the same
    couples = list(zip(pair.a.launches, pair.b.launches, strict=False))
    for _ in range(draws):
        sides: tuple[list[PairLaunch], list[PairLaunch]] = ([], [])
        for place, couple in enumerate(sorted(source.sample(range(len(couples)), rounds))):
            order = couples[couple] if source.random() < 0.5 else couples[couple][::-1]
            for side, launch in zip(sides, order, strict=True):
                side.append(msgspec.structs.replace(launch, round=place))
        head = [_slower(launch, 1 + change) for launch in sides[1]]
        a, b = (_with(side, launches) for side, launches in ((pair.a, sides[0]), (pair.b, head)))
        yield Pair(id=pair.id, a=a, b=b)


def _share(pair: Pair, policy: Policy, rounds: int, change: float, draws: int, seed: int) -> float:
    found = [decide(drawn, policy).verdict == "regression" for drawn in relabelled(pair, rounds, change, draws, seed)]
    return sum(found) / draws


def _smallest(pair: Pair, policy: Policy, rounds: int, draws: int, seed: int) -> float | None:
    """Return the smallest change found often enough; power grows with the change, so the list is halved."""
    low, high = 0, len(CHANGES)
    while low < high:
        middle = (low + high) // 2
        if _share(pair, policy, rounds, CHANGES[middle], draws, seed) >= POWER:
            high = middle
        else:
            low = middle + 1
    return CHANGES[low] if low < len(CHANGES) else None


def _slower(launch: PairLaunch, factor: float) -> PairLaunch:
    samples, cpu = ([value * factor for value in column] for column in (launch.samples, launch.cpu))
    return msgspec.structs.replace(launch, samples=samples, cpu=cpu)


def _with(side: Side, launches: list[PairLaunch]) -> Side:
    return msgspec.structs.replace(side, launches=launches)
