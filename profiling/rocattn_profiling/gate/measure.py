"""Measuring base and head side by side: rounds of fresh processes, with more rounds only for undecided benchmarks.

Every finished launch is appended to ``launches-KEY.jsonl``, which becomes ``launches.jsonl`` once there is a verdict. A
run that was killed resumes from it. Orders are derived from the seed and the round, not from a generator's state, so a
resumed run ends as an uninterrupted one would with the same timings.

A launch during a slow spell of the machine is repeated after its round. The canary (fixed work in its process) detects
such spells, never the measured value. Slow launches carry little information, and on a busy host a quarter of all
launches are slow (docs/gate-measured.md).
"""

from __future__ import annotations

import hashlib
import math
import random
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.asv.launch import Case, Outcome, Request
from rocattn_profiling.base.console import Step
from rocattn_profiling.base.files import append_line
from rocattn_profiling.gate.noise_record import EarlierNoise
from rocattn_profiling.gate.rule.constants import SLOW
from rocattn_profiling.gate.rule.launches import usual_canary
from rocattn_profiling.gate.rule.pairs import Pair, PairLaunch, Side, no_measurement
from rocattn_profiling.gate.rule.suite import SuiteDecision, decide_suite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rocattn_profiling.gate.rule.policy import Policy
    from rocattn_profiling.gate.sources import CaseLauncher

SideName = Literal["base", "head"]
SIDES: tuple[SideName, SideName] = ("base", "head")
PROBE = -1  # the round that tries each side once and chooses the sampling
REPEATS = 2  # at most, of one slow launch
_KNOWN = 6  # launches that are needed to know the usual canary
TIME_UNITS = {"seconds": "ns"}
_GPU_MEDIANS = ("mclk_mhz", "power_w", "temperature_c")


class LaunchLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of ``launches.jsonl``: the session's key and its prior knowledge of noise, or a launch."""

    kind: Literal["session", "launch"]
    key: str = ""
    label: str = ""
    side: SideName = "base"
    round: int = 0
    repeat: int = 0
    outcome: Outcome | None = None
    began_with: EarlierNoise | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What a session measures, and how.

    Attributes:
        cases: The benchmarks, each with one combination of parameters.
        policy: When to look at the launches, and how to decide.
        policies: Label -> the policy of a case that has its own.
        request: How a launch samples.
        seed: Determines every order.
    """

    cases: Sequence[Case]
    policy: Policy
    policies: Mapping[str, Policy] = field(default_factory=dict)
    request: Request
    seed: int

    def policy_of(self, case: Case) -> Policy:
        """Return the policy of one case."""
        return self.policies.get(case.label, self.policy)

    @property
    def looks(self) -> list[int]:
        """The rounds after which any case is looked at."""
        return sorted({look for policy in (self.policy, *self.policies.values()) for look in policy.looks})


class SessionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a session measured.

    Attributes:
        pairs: The stored pair of every case that ran on both sides.
        decision: Their verdicts.
        outcomes: Per label and side, the probe or the failed launch.
        launches: Number of processes with samples.
        repeated: How many of those repeat a slow launch.
    """

    pairs: list[Pair]
    decision: SuiteDecision
    outcomes: dict[str, dict[SideName, Outcome]]
    launches: int
    repeated: int


class LaunchStore:
    """The launches of one session, in a file of its own until the session is finished; others' files stay.

    Attributes:
        path: The file of the unfinished session.

    Args:
        path: ``launches.jsonl``, the name of the finished file.
        key: Identifies revisions and settings: only an unfinished session with the same key is resumed.
        fresh: Discard what is there of this session.
        began_with: Prior knowledge of the noise; a resumed session keeps its own.
    """

    def __init__(self, path: Path, key: str, *, fresh: bool = False, began_with: EarlierNoise | None = None) -> None:
        self._final, self.path = path, path.with_name(f"{path.stem}-{key}{path.suffix}")
        self.began_with = began_with or EarlierNoise()
        self._known: dict[tuple[str, SideName, int, int], Outcome] = {}
        if not fresh and self._load(key):
            self.resumed = len(self._known)
            return
        self.resumed = 0
        self._known.clear()
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            text = f"cannot replace {self.path}: {error.strerror}; name another folder with --out"
            raise RocattnError(text) from error
        append_line(self.path, msgspec.json.encode(LaunchLine(kind="session", key=key, began_with=self.began_with)))

    def _load(self, key: str) -> bool:
        """Read an unfinished session with this key; return False without one."""
        decoder = msgspec.json.Decoder(LaunchLine)
        matches, began_with = False, EarlierNoise()
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise RocattnError(f"cannot read {self.path}: {error.strerror}; name another folder with --out") from error
        for text in raw.splitlines():
            try:
                line = decoder.decode(text)
            except msgspec.DecodeError:
                continue  # cut off by a kill
            if line.kind == "session":
                matches = line.key == key
                began_with = line.began_with or EarlierNoise()
            elif line.outcome is not None:
                self._known[line.label, line.side, line.round, line.repeat] = line.outcome
        if matches:
            self.began_with = began_with
        return matches

    def get(self, case: Case, side: SideName, round_: int, repeat: int = 0) -> Outcome | None:
        """Return a finished launch."""
        return self._known.get((case.label, side, round_, repeat))

    def put(self, case: Case, side: SideName, round_: int, outcome: Outcome, repeat: int = 0) -> None:
        """Store a finished launch, on disk first."""
        line = LaunchLine(kind="launch", label=case.label, side=side, round=round_, repeat=repeat, outcome=outcome)
        append_line(self.path, msgspec.json.encode(line))
        self._known[case.label, side, round_, repeat] = outcome

    def finish(self) -> None:
        """Replace the last finished session's launches by these; the next run then measures anew."""
        try:
            self.path.replace(self._final)
        except OSError as error:
            raise RocattnError(f"cannot write {self._final}: {error.strerror}") from error


class PairedSession:
    """Measures cases on two sides until they are decided or out of rounds.

    Args:
        launchers: Start processes in the sides' environments.
        design: What to measure, and how.
        store: Keeps the launches.
        on_step: Called after every launch.
    """

    def __init__(
        self,
        launchers: Mapping[SideName, CaseLauncher],
        design: Design,
        store: LaunchStore,
        on_step: Callable[[Step], None],
    ) -> None:
        self.launchers, self.design, self.store, self.on_step = launchers, design, store, on_step
        self._outcomes: dict[str, dict[SideName, Outcome]] = {}
        self._sampling: dict[str, Request] = {}
        self._kept: dict[tuple[str, SideName], dict[int, Outcome]] = defaultdict(dict)  # round -> the one that counts
        # By build of Python and benchmark ("" for all benchmarks), in the order of launches.
        self._canaries: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._done = self._total = self._repeated = 0

    def run(self) -> SessionResult:
        """Measure everything."""
        design, looks = self.design, self.design.looks
        self._total = 2 * len(design.cases) * (1 + looks[0])
        running = [case for case in design.cases if self._probe(case)]
        self._total = self._done + 2 * len(running) * looks[0]
        active, first = list(running), 0
        decision = decide_suite([], design.policy)
        for look in looks:
            for round_ in range(first, look):
                self._round(active, round_, look)
            first = look
            running = [case for case in running if not self._failed(case)]
            decision = decide_suite([self._pair(case) for case in running], design.policy, design.policies)
            undecided = set(decision.undecided)
            active = [case for case in running if self._goes_on(case, look, case.label in undecided, case in active)]
            if not active:
                break
            following = [later for later in looks if later > look]
            self._total = self._done + (2 * len(active) * (following[0] - look) if following else 0)
        return SessionResult(
            pairs=[self._pair(case) for case in running],
            decision=decision,
            outcomes=self._outcomes,
            launches=self._done,
            repeated=self._repeated,
        )

    def _goes_on(self, case: Case, look: int, undecided: bool, active: bool) -> bool:
        """Whether to measure a case further. A look that is not in its own policy does not end it."""
        own = self.design.policy_of(case).looks
        return look < own[-1] and (undecided if look in own else active)

    def _probe(self, case: Case) -> bool:
        """Try both sides once; the first that runs chooses the sampling for both. Return whether both ran."""
        sampling = self.design.request
        outcomes = {}
        for side in SIDES:
            outcome = self._launch(case, side, PROBE, sampling)
            outcomes[side] = outcome
            if outcome.launch is not None and not sampling.number:
                chosen = outcome.launch
                sampling = Request(number=chosen.number, count=len(chosen.samples_ns))
        self._outcomes[case.label] = outcomes
        self._sampling[case.label] = sampling
        return all(outcome.status == "ok" for outcome in outcomes.values())

    def _round(self, active: Sequence[Case], round_: int, look: int) -> None:
        order = list(active)
        random.Random(_number(self.design.seed, "round", round_)).shuffle(order)  # noqa: S311 - an order, not a secret
        to_do = [(case, side) for case in order for side in order_of(self.design.seed, case.label, round_)]
        what = f"round {round_ + 1} of {look}, {len(active)} undecided"
        for repeat in range(1 + REPEATS):
            for case, side in to_do:
                if self._failed(case):
                    continue
                outcome = self._launch(case, side, round_, self._sampling[case.label], what, repeat)
                if outcome.status != "ok":
                    self._lose(case, side, round_, outcome)
            to_do = [(case, side) for case, side in to_do if self._met_slow_spell(case, side, round_)]
            self._total += len(to_do) if repeat < REPEATS else 0

    def _met_slow_spell(self, case: Case, side: SideName, round_: int) -> bool:
        """Whether the canary was slow. Values other than times do not depend on the machine's speed."""
        outcome = self._kept[case.label, side].get(round_)
        if outcome is None or self._failed(case) or case.benchmark.type != "time" or not outcome.canary_ns:
            return False
        # A benchmark may slow the canary itself (wide vectors lower some clocks): that is usual for it.
        by_all, by_case = (self._canaries[outcome.canary_of, label] for label in ("", case.label))
        usual = max(usual_canary(by_all), usual_canary(by_case)) if len(by_all) >= _KNOWN else math.inf
        return outcome.canary_ns > SLOW * usual

    def _lose(self, case: Case, side: SideName, round_: int, outcome: Outcome) -> None:
        """Give up a case that ran before: a failure on head is the change's, one on base means it is unreliable."""
        reason = f"{side}, round {round_ + 1}: {outcome.reason}"
        failure = msgspec.structs.replace(outcome, status="failed", reason=reason)
        self._outcomes[case.label]["head"] = failure
        if side == "base":
            self._outcomes[case.label]["base"] = failure

    def _failed(self, case: Case) -> bool:
        return any(outcome.status != "ok" for outcome in self._outcomes[case.label].values())

    def _launch(
        self, case: Case, side: SideName, round_: int, sampling: Request, what: str = "first try", repeat: int = 0
    ) -> Outcome:
        outcome = self.store.get(case, side, round_, repeat)
        if outcome is None:
            pos = 0 if round_ == PROBE else order_of(self.design.seed, case.label, round_).index(side)
            hash_seed = _number(self.design.seed, "hash", case.label, round_) % 2**32
            layout = _number(self.design.seed, "layout", case.label) + round_
            launcher = self.launchers[side]
            outcome = _with_ratio(launcher.run(case, sampling, pos=pos, seed=hash_seed, layout=layout))
            self.store.put(case, side, round_, outcome, repeat)
        self._done += 1
        self._repeated += repeat > 0
        self._keep(case, side, round_, outcome)
        self.on_step(Step(done=self._done, total=max(self._total, self._done), what=f"{what}: {case.label}"))
        return outcome

    def _keep(self, case: Case, side: SideName, round_: int, outcome: Outcome) -> None:
        """Let a launch count unless an earlier one of the same round and side had a faster canary."""
        if outcome.launch is None:
            return
        if outcome.canary_ns > 0:
            for label in ("", case.label):
                self._canaries[outcome.canary_of, label].append(outcome.canary_ns)
        before = self._kept[case.label, side].get(round_)
        if before is None or outcome.canary_ns < before.canary_ns:
            self._kept[case.label, side][round_] = outcome

    def _pair(self, case: Case) -> Pair:
        sides = {}
        rounds = range(self.design.policy_of(case).looks[-1])
        kept = {side: {r: o for r, o in self._kept[case.label, side].items() if r in rounds} for side in SIDES}
        # Canaries of two builds of Python are not comparable.
        one_build = len({o.canary_of for outcomes in kept.values() for o in outcomes.values()}) <= 1
        for side, outcomes in kept.items():
            launches = [_pair_launch(r, o, case, comparable=one_build) for r, o in outcomes.items()]
            number = self._sampling[case.label].number or 1
            unit = TIME_UNITS.get(case.benchmark.unit, case.benchmark.unit)
            sides[side] = Side(benchmark=case.label, side=side, unit=unit, number=number, launches=launches)
        history = self.store.began_with.history(case.label, self._sampling[case.label].count)
        return Pair(id=case.label, a=msgspec.structs.replace(sides["base"], history=history), b=sides["head"])


def _pair_launch(round_: int, outcome: Outcome, case: Case, *, comparable: bool = True) -> PairLaunch:
    launch = outcome.launch
    assert launch is not None
    timed = case.benchmark.type == "time"
    return PairLaunch(
        round=round_,
        pos=launch.pos,
        start_us=launch.start_ns / 1e3,
        samples=launch.samples_ns,
        cpu=launch.cpu_ns,
        nivcsw=launch.nivcsw,
        # Values other than times do not depend on the machine's speed.
        canary=outcome.canary_ns if timed and comparable else 0.0,
        load=launch.load,
        steal_pct=outcome.steal_pct,
        sclk_mhz=[state.sclk_mhz for state in outcome.gpu] if all(state.sclk_mhz for state in outcome.gpu) else [],
        **{name: _median([getattr(state, name) for state in outcome.gpu]) for name in _GPU_MEDIANS},
    )


def _median(values: Sequence[float]) -> float:
    """Return the median of the known values; 0 if none is known."""
    return statistics.median([value for value in values if value] or [0.0])


def _with_ratio(outcome: Outcome) -> Outcome:
    """Turn a negative or absurd value (of a ``track_`` benchmark) into a failure, since it has no ratio."""
    values = outcome.launch.samples_ns if outcome.launch is not None else []
    wrong = next((value for value in values if no_measurement(value)), None)
    if wrong is None:
        return outcome
    kind = "a negative" if wrong < 0 else "so large a" if wrong > 1 else "so small a"
    reason = f"the benchmark returned {wrong:g}: {kind} value has no ratio to judge"
    return msgspec.structs.replace(outcome, status="failed", launch=None, reason=reason)


def order_of(seed: int, label: str, round_: int) -> tuple[SideName, SideName]:
    """Return the order of the sides: random in even rounds, reversed in the odd round that follows (ABBA)."""
    flip = (_number(seed, "order", label, round_ // 2) ^ round_) & 1
    return ("head", "base") if flip else ("base", "head")


def _number(*parts: object) -> int:
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
