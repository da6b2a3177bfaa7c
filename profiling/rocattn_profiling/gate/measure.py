"""Measure base and head side by side: rounds of fresh processes, with more rounds only for undecided benchmarks.

`PairedSession` implements the protocol, from top to bottom: first rounds, what they settle, further rounds up to the
planned looks, and the decisions. Every finished launch is stored. The order of launches derives from the seed and the
round, not from a generator's state: with the same timings, a resumed run ends like an uninterrupted one.

A launch during a slow spell of the machine is repeated after its round. Only the canary (fixed work in the launch's
process) detects such spells, never the measured value. Slow launches carry little information, and on a busy host a
quarter of all launches are slow (docs/gate-measured.md).

A benchmark's first launch chooses the sampling for all its launches. Under a time limit every benchmark first gets one
round, if there is time for that; then those that the change can reach are measured until they are decided, then the
others. Only "decided or not" affects this order, never a measured value, and launches are analyzed at planned looks
only. So a time limit cannot add false alarms.

After its first round every benchmark is traced in one more call on each side. If it runs no code that differs, it
passes, is not measured further, and does not count in the family that Holm corrects for. A value that its suite
declares deterministic is also decided by its first round.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from rocattn_profiling.asv.launch import OutOfTimeError
from rocattn_profiling.base.console import Step
from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.gate.model import SIDES, CaseLauncher, Design, SessionResult, SideName
from rocattn_profiling.gate.planning.pace import SHARED_IMPORT_S, UNDECIDED_SHARE
from rocattn_profiling.gate.rule.constants import SLOW
from rocattn_profiling.gate.rule.interim import Code
from rocattn_profiling.gate.rule.launches import location, usual_canary
from rocattn_profiling.gate.rule.pairs import Decision, Pair, Side
from rocattn_profiling.gate.rule.suite import SuiteDecision, decide_suite, decide_value, untouched
from rocattn_profiling.gate.session.state import CaseState, with_ratio
from rocattn_profiling.gate.session.store import LaunchStore

REPEATS = 2  # maximum repeats of one slow launch
_KNOWN = 6  # launches needed to estimate the usual canary time
_FIRST_SHARE = 0.5  # of the time limit: if all first rounds take more, benchmarks that the change can reach go first
_BATCH_SHARE = 3  # only a third of the remaining time is planned at once, since estimates may be wrong
_TRACED_ROUNDS = 2  # cost of a benchmark's first round plus its traced calls, in rounds


class _TimeUpError(Exception):
    """Raised to stop measuring when there is no time for the next launch."""


class PairedSession:
    """Measures cases on two sides until they are decided or out of rounds.

    Args:
        launchers: Each side's launcher, which starts processes in its environment.
        design: What to measure, and how.
        store: Stores the launches.
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
        self._pace, self._limit, self._looks = design.pace, design.limit, design.looks
        self._states = [
            CaseState(case, design.policy_of(case), design.pace.shared_module(case), design.request)
            for case in design.cases
        ]
        may_run = (design.tracing.fewest, design.tracing.most) if design.tracing else (design.cases, design.cases)
        self._likely, self._possible = ({case.label for case in cases} for cases in may_run)
        # Whether tracing needs calls: not if both sides have the same code.
        self._calls = design.runs_change is not None and (design.tracing is None or design.tracing.calls)
        self._canaries: dict[str, list[float]] = defaultdict(list)  # of all cases in order, by Python build
        self._done = self._repeated = 0
        self._untraced: Sequence[CaseState] = ()  # cases about to be traced
        self._share = UNDECIDED_SHARE[0]  # of benchmarks that the last look left undecided
        self._current: tuple[Sequence[CaseState], int, int] = (), 0, 0  # cases of the round, its number, the next look
        self._finished = 0  # how many of these cases are done

    def run(self) -> SessionResult:
        """Measure everything, or as much as time allows."""
        try:
            with suppress(_TimeUpError):
                self._measure()
            self._settle(self._states)  # in case the time limit came first; takes no time
        finally:
            if any(state.module for state in self._states):
                for launcher in self.launchers.values():
                    launcher.end_server()
        running = [state for state in self._states if state.stage in {"open", "settled"}]
        decision, open_ = self._concluded(running)
        return SessionResult(
            pairs=[self._pair(state) for state in running],
            decision=decision,
            outcomes={state.case.label: state.first for state in self._states},
            launches=self._done,
            repeated=self._repeated,
            unreached=[state.case.label for state in self._states if state.stage == "unreached"],
            open=open_,
        )

    # Order of the cases

    def _measure(self) -> None:
        steps, looks = self.design.steps, self._looks
        order = list(self._states)
        self._shuffle(order, 0)
        order.sort(key=lambda state: steps.get(state.case.label, math.inf))  # nearest to the change first
        if not self._limit.limited:
            self._advance(order, 0, looks)
            return
        near = [state for state in order if state.case.label in steps]
        far = [state for state in order if state.case.label not in steps]
        if self._round_s(order) > _FIRST_SHARE * self._limit.launches_left_s():
            done = 0  # a round of all cases would take most of the time
            far.sort(key=self._launch_s)
        else:
            done = 1
            self._round(order, 0, looks[0])
            # Benchmarks that the sources do not link to the change can still be slower. Every p-value is corrected for
            # all benchmarks, whichever are measured further, so choosing by the first round adds no false alarms.
            near, far = _open(near), sorted(_open(far), key=_slowdown, reverse=True)
        self._in_batches(near, done, looks)
        rest = self._in_batches(far, done, looks[:1])
        self._in_batches(rest, looks[0], looks[1:])

    def _in_batches(self, states: Sequence[CaseState], done: int, looks: Sequence[int]) -> list[CaseState]:
        """Measure as many cases as time allows; return those that continue after the last look.

        Args:
            states: The cases, most important first.
            done: The number of rounds they already have.
            looks: See `_advance`.
        """
        pending, rest = list(states), list[CaseState]()
        while looks and (pending := [state for state in pending if state.stage != "failed"]):
            left = self._limit.launches_left_s()
            batch, needed, modules = list[CaseState](), 0.0, {""}
            for state in pending:
                imported = state.module in modules
                seconds = self._round_s([state]) - (2 * self._pace.import_s(state.module) if imported else 0.0)
                # Cases that the change cannot reach take one round and the traced calls.
                takes = (looks[0] - done if done or state.case.label in self._possible else _TRACED_ROUNDS) * seconds
                shares = imported and self._imports_long(state)  # stay with the first of that import
                if needed + takes <= (left if shares or not batch else left / _BATCH_SHARE):
                    batch, needed, modules = [*batch, state], needed + takes, modules | {state.module}
            if not batch:
                raise _TimeUpError
            rest += self._advance(batch, done, looks)
            pending = [state for state in pending if state not in batch]
        return rest

    def _advance(self, states: Sequence[CaseState], done: int, looks: Sequence[int]) -> list[CaseState]:
        """Measure cases until they are decided; return those that continue after the last look.

        Args:
            states: The cases.
            done: The number of rounds they already have.
            looks: The numbers of rounds after which to look.
        """
        active = list(states)
        if not done:
            self._round(active, 0, looks[0])
            done, active = 1, _open(active)
        for look in looks:
            for round_ in range(done, look):
                self._round(active, round_, look)
            before, labels = _open(active), set(self._decided(_open(states)).undecided)
            done, active = look, []
            for state in before:
                undecided, own = state.case.label in labels, state.policy.looks
                state.decided |= not undecided
                if look < own[-1] and (undecided or look not in own):  # only its own policy's looks end a case
                    active.append(state)
            self._share = len(active) / len(before) if before else self._share
            if not active:
                break
        return active

    # One round

    def _round(self, states: Sequence[CaseState], round_: int, look: int) -> None:
        """Measure one round, each case on both sides in turn, and repeat the launches that met a slow spell.

        The first round also settles the cases that need no other.
        """
        order = list(states)
        if round_:
            self._shuffle(order, round_)
        else:
            self._untraced = states if self._calls else ()
        order = _by_import(order)
        self._current = order, round_, look
        to_do = [(state, side) for state in order for side in order_of(self.design.seed, state.case.label, round_)]
        what = self._what(round_)
        for repeat in range(1 + REPEATS):
            if repeat and not self._fits_repeat(to_do, order, look - round_ - 1):
                break
            for index, (state, side) in enumerate(to_do):
                done, total = (index, len(to_do)) if repeat else (index // 2, len(order))
                self._finished = len(order) if repeat else done
                # If a case's first launches do not fit, a shorter case's may.
                goes_on = state.stage == "open" if round_ or repeat else state.first or self._fits(state)
                if goes_on:
                    step = Step(done=done, total=total, what=what, left_s=self._left_s(), of=state.case.label)
                    self.on_step(step)
                    self._launch(state, side, round_, repeat)
            if not round_ and not repeat:
                self._settle(states)  # settled cases need no repeats
            to_do = [(state, side) for state, side in to_do if self._met_slow_spell(state, side, round_)]
            what = f"{self._what(round_)}, repeating what met a slow spell"

    def _launch(self, state: CaseState, side: SideName, round_: int, repeat: int) -> None:
        case, seed = state.case, self.design.seed
        outcome = self.store.get(case, side, round_, repeat)
        if outcome is None:
            if round_ and self._launch_s(state) > self._limit.launches_left_s():
                raise _TimeUpError
            within = {"within_s": self._limit.cut_s()} if self._limit.limited else {}
            try:
                outcome = self.launchers[side].run(
                    case,
                    msgspec.structs.replace(state.sampling, module=state.module),
                    pos=order_of(seed, case.label, round_).index(side),
                    seed=_number(seed, "hash", state.importing, round_) % 2**32,
                    layout=_number(seed, "layout", state.importing) + round_,
                    **within,
                )
            except OutOfTimeError as error:
                raise _TimeUpError from error
            outcome = with_ratio(outcome)
            self.store.put(case, side, round_, outcome, repeat)
        self._pace.saw(case, outcome.seconds)
        self._done += 1
        self._repeated += repeat > 0
        state.add(side, round_, outcome)
        if outcome.launch is not None and outcome.canary_ns > 0:
            self._canaries[outcome.canary_of].append(outcome.canary_ns)

    def _met_slow_spell(self, state: CaseState, side: SideName, round_: int) -> bool:
        """Whether the canary was slow; False for values other than times, which do not depend on machine speed."""
        outcome = state.kept[side].get(round_)
        if outcome is None or state.stage != "open" or state.case.benchmark.type != "time" or not outcome.canary_ns:
            return False
        if self._imports_long(state):  # a repeat would cost another import
            return False
        # A benchmark may itself slow the canary (wide vectors lower some clocks): then a slow canary is normal for it.
        by_all, by_case = self._canaries[outcome.canary_of], state.canaries[outcome.canary_of]
        usual = max(usual_canary(by_all), usual_canary(by_case)) if len(by_all) >= _KNOWN else math.inf
        return outcome.canary_ns > SLOW * usual

    def _settle(self, states: Sequence[CaseState]) -> None:
        """Settle what one round decides: deterministic values, and cases that run no code that differs."""
        for state in states:
            if state.case.benchmark.deterministic and state.stage == "open":
                state.settled = decide_value(self._pair(state), state.policy)
        runs_change, traced, imported = self.design.runs_change, self.store.traced, ""
        left = _by_import(_open(states)) if runs_change else []
        for done, state in enumerate(left):
            label = state.case.label
            if self._calls and label not in traced:
                import_s = self._pace.import_s(state.module) if state.module != imported else 0.0
                if len(SIDES) * (self._launch_s(state) + import_s) > self._limit.launches_left_s():
                    continue  # a case with a shorter import may fit
                imported, self._untraced = state.module, left[done:]
                what = "tracing which benchmarks run the change"
                self.on_step(Step(done=done, total=len(left), what=what, left_s=self._left_s(), of=label))
            if runs_change and label not in traced:
                self.store.put_trace(state.case, runs_change(state.case))
            if traced[label] is False:
                state.settled = untouched(label, traced=self._calls)
        self._untraced = ()

    # Time estimates

    def _launch_s(self, state: CaseState) -> float:
        return self._pace.launch_s(state.case)

    def _round_s(self, states: Sequence[CaseState]) -> float:
        return self._pace.round_s(state.case for state in states)

    def _imports_long(self, state: CaseState) -> bool:
        """Whether the case's import is so long that planning must share it between launches."""
        return self._pace.import_s(state.module) >= SHARED_IMPORT_S

    def _fits(self, state: CaseState) -> bool:
        """Whether there is time for a first launch on both sides, or they are already measured."""
        if any(self.store.get(state.case, side, 0) for side in SIDES):
            return True
        return self._round_s([state]) <= self._limit.launches_left_s()

    def _fits_repeat(
        self, launches: Sequence[tuple[CaseState, SideName]], states: Sequence[CaseState], rounds: int
    ) -> bool:
        """Whether there is time for the repeats and the rounds up to the next look; repeats alone decide nothing."""
        needed = math.fsum(self._launch_s(state) for state, _ in launches) + rounds * self._round_s(states)
        return needed <= self._limit.launches_left_s()

    def _left_s(self) -> float:
        """Return the expected seconds for these cases, including the share that continues after the next look."""
        states, round_, look = self._current
        looks = [later for later in self._looks if later >= look]
        further, done, left = states, round_, 0.0
        if not round_ and self.design.runs_change is not None:
            further, done = [state for state in states if state.case.label in self._likely and state.settled is None], 1
            left = self._round_s(states) + self._round_s(self._untraced)
        left += self._pace.rest_s((state.case for state in further), done, looks, self._share)
        left -= self._round_s(states[: self._finished])
        return max(0.0, min(left, self._limit.launches_left_s()))

    def _what(self, round_: int) -> str:
        """Describe what is being measured."""
        if not round_:
            return "first try"
        undecided = sum(not state.decided and state.settled is None for state in self._states)
        return f"round {round_ + 1} of at most {self._looks[-1]}, {undecided} of {len(self._states)} undecided"

    def _shuffle(self, states: list[CaseState], round_: int) -> None:
        random.Random(_number(self.design.seed, "round", round_)).shuffle(states)  # noqa: S311 - an order, not a secret

    # Decisions

    def _pair(self, state: CaseState) -> Pair:
        return state.pair(self.store.began_with)

    def _decided(self, states: Sequence[CaseState], *, alone: bool = False) -> SuiteDecision:
        """Decide some cases.

        Args:
            states: The cases to decide.
            alone: The other cases were not measured and will not be. Otherwise they count as unchanged so far, so
                Holm's correction still covers them.
        """
        pairs, chosen = [], set(states)
        for state in self._states:
            if state in chosen:
                pair = self._pair(state)
                # Only launches up to the last planned look count; later ones wait for the next look.
                pairs.append(pair.first(max((look for look in self._looks if look <= pair.rounds), default=0)))
            elif not alone and state.stage in {"unreached", "open"}:
                pairs.append(Pair(id=state.case.label, a=Side(launches=[]), b=Side(launches=[])))
        return decide_suite(pairs, self.design.policy, self.design.policies)

    def _concluded(self, running: Sequence[CaseState]) -> tuple[SuiteDecision, list[str]]:
        """Return the decisions on the cases that ran, and which of them are undecided for lack of time."""
        # Cases that a limit left unmeasured are not part of the family that Holm corrects for: only the order and
        # duration of launches determine what is reached. Undecided benchmarks take longer, but that adds no false
        # alarms: with simulated p-values of equal code, limits that reach 5, 6, 10 and 25 of 300 benchmarks make 11,
        # 11, 14 and 16 % of runs red; whole suites of 4, 6, 10 and 25 benchmarks 13, 14, 15 and 15 %. (The rule's
        # actual p-values are far more conservative.)
        decision = self._decided([state for state in running if state.settled is None], alone=True)
        verdicts = {each.id: each for each in decision.decisions}
        levels, decisions, open_ = dict(decision.levels), [], []
        for state in running:
            label, own, pair = state.case.label, state.policy.looks, self._pair(state)
            verdict = state.settled or verdicts[label]
            stopped = label in decision.undecided and verdict.rounds_used < own[-1]
            open_ += [label] if stopped else []
            decisions.append(_out_of_time(verdict, pair.rounds, own) if stopped else verdict)
            a, b = (location(side.launches) for side in (pair.a, pair.b))
            if a is not None and b is not None:
                levels.setdefault(label, (a, b))
        return decision._replace(decisions=decisions, levels=levels), open_


def _slowdown(state: CaseState) -> float:
    """Return head / base of the fastest samples in the first round; 1 if it has none."""
    base, head = (
        min(outcome.launch.samples_ns, default=0.0) if outcome.launch else 0.0
        for outcome in (state.first[side] for side in SIDES)
    )
    return head / base if base and head else 1.0


def _open(states: Sequence[CaseState]) -> list[CaseState]:
    """Return the cases that ran on both sides and are not settled."""
    return [state for state in states if state.stage == "open"]


def _by_import(states: Sequence[CaseState]) -> list[CaseState]:
    """Return cases in the same order, except that those sharing an import follow the first of them."""
    first: dict[str, int] = {}
    for index, state in enumerate(states):
        first.setdefault(state.importing, index)
    return sorted(states, key=lambda state: first[state.importing])


def _out_of_time(decision: Decision, rounds: int, looks: Sequence[int]) -> Decision:
    """Return a decision that is only open for lack of time."""
    done = f"{rounds} round{'' if rounds == 1 else 's'}"
    following = next((look for look in looks if look > rounds), looks[-1])
    why: Reason[Code] = Reason(
        "no_time", f"time ran out after {done}; the next look is after {following}", "give it more time"
    )
    so_far = f" (so far {decision.reason})" if decision.rounds_used else ""
    return msgspec.structs.replace(decision, reason=f"{why.line}{so_far}", undecided=why, rounds_needed=0)


def order_of(seed: int, label: str, round_: int) -> tuple[SideName, SideName]:
    """Return the order of the sides: random in even rounds, reversed in the following odd round (ABBA)."""
    flip = (_number(seed, "order", label, round_ // 2) ^ round_) & 1
    return ("head", "base") if flip else ("base", "head")


def _number(*parts: object) -> int:
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
