"""Measuring base and head side by side: rounds of fresh processes, with more rounds only for undecided benchmarks.

Every finished launch is appended to ``launches-KEY.jsonl``, which becomes ``launches.jsonl`` once there is a verdict. A
run that was killed resumes from it. Orders are derived from the seed and the round, not from a generator's state, so a
resumed run ends as an uninterrupted one would with the same timings.

A launch during a slow spell of the machine is repeated after its round. The canary (fixed work in its process) detects
such spells, never the measured value. Slow launches carry little information, and on a busy host a quarter of all
launches are slow (docs/gate-measured.md).

The first launch of a benchmark chooses the sampling of all. Under a time limit every benchmark first gets one round, if
there is time for that; then those that the change can reach are measured until they are decided, then the others.
Nothing that was measured decides this order but whether a benchmark is decided, and launches are looked at in planned
rounds only, so that a limit makes no false alarms.

After its first round every benchmark is called once more on both sides, traced: one that runs nothing that differs has
not changed. It passes, is measured no further, and is no part of the family that Holm corrects for. A value that its
suite declares deterministic is decided by its first round, too.
"""

from __future__ import annotations

import hashlib
import math
import random
import statistics
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.asv.launch import Case, Outcome, OutOfTimeError, Request
from rocattn_profiling.base.console import Step
from rocattn_profiling.base.files import append_line
from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.gate.model import SIDES, CaseLauncher, Design, EarlierNoise, SessionResult, SideName
from rocattn_profiling.gate.planning.pace import UNDECIDED_SHARE
from rocattn_profiling.gate.rule.constants import SLOW
from rocattn_profiling.gate.rule.interim import Code
from rocattn_profiling.gate.rule.launches import location, usual_canary
from rocattn_profiling.gate.rule.pairs import Decision, Pair, PairLaunch, Side, no_measurement
from rocattn_profiling.gate.rule.suite import SuiteDecision, decide_suite, decide_value, untouched

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

REPEATS = 2  # at most, of one slow launch
_KNOWN = 6  # launches that are needed to know the usual canary
TIME_UNITS = {"seconds": "ns"}
_FIRST_SHARE = 0.5  # of the time limit: if the first round of all takes more, the change's benchmarks go before it
_BATCH_SHARE = 3  # parts of the time left, one of which is planned at once: estimates may be wrong
_TRACED_ROUNDS = 2  # that the first round and the traced calls of a benchmark take
_GPU_MEDIANS = ("mclk_mhz", "power_w", "temperature_c")


class LaunchLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of ``launches.jsonl``: the session's key and its prior knowledge of noise, a launch, or a trace.

    ``runs_change`` is what traced calls of a benchmark showed.
    """

    kind: Literal["session", "launch", "trace"]
    key: str = ""
    label: str = ""
    side: SideName = "base"
    round: int = 0
    repeat: int = 0
    outcome: Outcome | None = None
    began_with: EarlierNoise | None = None
    runs_change: bool | None = None


class _TimeUpError(Exception):
    """Ends the measuring when there is no time for the next launch."""


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
        self._traced: dict[str, bool | None] = {}
        if not fresh and self._load(key):
            self.resumed = len(self._known)
            return
        self.resumed = 0
        self._known.clear()
        self._traced.clear()
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
            elif line.kind == "trace":
                self._traced[line.label] = line.runs_change
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

    def traced(self, case: Case, trace: Callable[[Case], bool | None]) -> bool | None:
        """Return what traced calls show of a case, which they are made for once a session."""
        if case.label not in self._traced:
            shown = self._traced[case.label] = trace(case)
            if shown is not None:  # else the time limit may have cut it off
                line = LaunchLine(kind="trace", label=case.label, runs_change=shown)
                append_line(self.path, msgspec.json.encode(line))
        return self._traced[case.label]

    def is_traced(self, case: Case) -> bool:
        """Whether a case has been traced."""
        return case.label in self._traced

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
        self._outcomes: dict[str, dict[SideName, Outcome]] = defaultdict(dict)
        self._sampling: dict[str, Request] = {}
        self._kept: dict[tuple[str, SideName], dict[int, Outcome]] = defaultdict(dict)  # round -> the one that counts
        # By build of Python and benchmark ("" for all benchmarks), in the order of launches.
        self._canaries: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._done = self._repeated = 0
        self._open: set[str] = {case.label for case in design.cases}  # undecided so far
        self._settled: dict[str, Decision] = {}  # by the first round
        self._untraced: Sequence[Case] = ()  # that are about to be
        may_run = (
            (design.cases, design.cases) if design.tracing is None else (design.tracing.fewest, design.tracing.most)
        )
        self._likely, self._possible = ({case.label for case in cases} for cases in may_run)
        self._share = UNDECIDED_SHARE[0]  # of the benchmarks, that the last look left undecided
        self._step = Step(done=0, total=0, what="")
        self._current: tuple[Sequence[Case], int, int] = (), 0, 0  # cases of the round, its number, the next look
        self._finished = 0  # of these cases

    def run(self) -> SessionResult:
        """Measure everything, or as much as there is time for."""
        try:
            with suppress(_TimeUpError):
                self._measure()
            self._settle(self.design.cases)  # where the limit came before that, and it takes no time
        finally:
            self._end_servers()
        cases = self.design.cases
        unreached = [case.label for case in cases if not self._reached(case)]
        running = [case for case in cases if case.label not in unreached and not self._failed(case)]
        decision, open_ = self._concluded(running)
        return SessionResult(
            pairs=[self._pair(case) for case in running],
            decision=decision,
            outcomes=dict(self._outcomes),
            launches=self._done,
            repeated=self._repeated,
            unreached=unreached,
            open=open_,
        )

    def _end_servers(self) -> None:
        if any(self.design.pace.shared_module(case) for case in self.design.cases):
            for launcher in self.launchers.values():
                launcher.end_server()

    def _measure(self) -> None:
        design, looks = self.design, self.design.looks
        order = self._ordered()
        if not design.limit.limited:
            self._advance(order, 0, looks)
            return
        near = [case for case in order if case.label in design.steps]
        far = [case for case in order if case.label not in design.steps]
        if design.pace.round_s(order) > _FIRST_SHARE * design.limit.launches_left_s():
            done = 0  # one round of all would take most of the time
            far.sort(key=design.pace.launch_s)
        else:
            done = 1
            self._first_round(order, looks[0])
            near, far = ([case for case in cases if self._is_open(case)] for cases in (near, far))
        self._in_batches(near, done, looks)
        rest = self._in_batches(far, done, looks[:1])
        self._in_batches(rest, looks[0], looks[1:])

    def _in_batches(self, cases: Sequence[Case], done: int, looks: Sequence[int]) -> list[Case]:
        """Measure as many cases as there is time for; return those that go on after the last look.

        Args:
            cases: In the order of their importance.
            done: The rounds that they have.
            looks: As of `_advance`.
        """
        pending, rest = list(cases), list[Case]()
        while looks and (pending := self._running(pending)):
            left = self.design.limit.launches_left_s()
            batch, needed, modules = list[Case](), 0.0, {""}
            for case in pending:
                module = self.design.pace.shared_module(case)
                seconds = self.design.pace.round_s([case])
                seconds -= 2 * self.design.pace.import_s(module) if module in modules else 0.0
                # What the change cannot reach has one round, and the traced calls.
                takes = (looks[0] - done if done or case.label in self._possible else _TRACED_ROUNDS) * seconds
                imported = bool(module) and module in modules  # whoever shares an import goes with the first
                if needed + takes <= (left if imported or not batch else left / _BATCH_SHARE):
                    batch, needed, modules = [*batch, case], needed + takes, modules | {module}
            if not batch:
                raise _TimeUpError
            rest += self._advance(batch, done, looks)
            pending = [case for case in pending if case not in batch]
        return rest

    def _advance(self, cases: Sequence[Case], done: int, looks: Sequence[int]) -> list[Case]:
        """Measure cases until they are decided; return those that go on after the last look.

        Args:
            cases: The cases.
            done: The rounds that they have.
            looks: The rounds after which to look.
        """
        active = list(cases)
        if not done:
            done, active = 1, self._first_round(active, looks[0])
        for look in looks:
            for round_ in range(done, look):
                self._round(active, round_, look)
            done, active = look, [case for case in active if self._is_open(case)]
            undecided = set(self._decided([case for case in cases if self._is_open(case)]).undecided)
            self._open -= {case.label for case in active} - undecided
            before, active = active, [case for case in active if self._goes_on(case, look, case.label in undecided)]
            self._share = len(active) / len(before) if before else self._share
            if not active:
                break
        return active

    def _goes_on(self, case: Case, look: int, undecided: bool) -> bool:
        """Whether to measure a case further. A look that is not in its own policy does not end it."""
        own = self.design.policy_of(case).looks
        return look < own[-1] and (undecided or look not in own)

    def _first_round(self, cases: Sequence[Case], look: int) -> list[Case]:
        """Measure the first round and settle what needs no other; return the rest."""
        self._untraced = cases if self._calls else ()
        self._round(cases, 0, look)
        return [case for case in cases if self._is_open(case)]

    def _settle(self, cases: Sequence[Case]) -> None:
        """Settle what one round decides: deterministic values, and what runs nothing that differs."""
        for case in cases:
            if case.benchmark.deterministic and self._is_open(case):
                self._close(case, decide_value(self._pair(case), self.design.policy_of(case)))
        self._trace([case for case in cases if self._is_open(case)])

    def _trace(self, cases: Sequence[Case]) -> None:
        """Settle the cases that run nothing that differs, by a traced call each, while there is time."""
        if self.design.runs_change is None:
            return
        left, pace, imported = self._by_import(cases), self.design.pace, ""
        for done, case in enumerate(left):
            module = pace.shared_module(case)
            needed = pace.launch_s(case) + (pace.import_s(module) if module != imported else 0.0)
            known = not self._calls or self.store.is_traced(case)
            if not known and len(SIDES) * needed > self.design.limit.launches_left_s():
                continue  # one that imports less may fit
            if not known:
                imported, self._untraced = module, left[done:]
                what = "tracing which benchmarks run the change"
                self.on_step(Step(done=done, total=len(left), what=what, left_s=self._left_s(), of=case.label))
            if self.store.traced(case, self.design.runs_change) is False:
                self._close(case, untouched(case.label, traced=self._calls))
        self._untraced = ()

    @property
    def _calls(self) -> bool:
        """Whether tracing takes calls: not where the sides have the same code."""
        return self.design.runs_change is not None and (self.design.tracing is None or self.design.tracing.calls)

    def _close(self, case: Case, decision: Decision) -> None:
        self._settled[case.label] = decision
        self._open.discard(case.label)

    def _is_open(self, case: Case) -> bool:
        """Whether a case ran on both sides and is not settled."""
        return self._reached(case) and not self._failed(case) and case.label not in self._settled

    def _running(self, cases: Sequence[Case]) -> list[Case]:
        """Return the cases that have not failed so far."""
        return [case for case in cases if not self._failed(case)]

    def _ordered(self) -> list[Case]:
        """Return all cases, the nearest to the change first, else in random order."""
        order = list(self.design.cases)
        self._shuffle(order, 0)
        return sorted(order, key=lambda case: self.design.steps.get(case.label, math.inf))

    def _shuffle(self, cases: list[Case], round_: int) -> None:
        random.Random(_number(self.design.seed, "round", round_)).shuffle(cases)  # noqa: S311 - an order, not a secret

    def _decided(self, cases: Sequence[Case], *, alone: bool = False) -> SuiteDecision:
        """Look at some cases.

        Args:
            cases: Those to decide.
            alone: The others were not measured and will not be. Else they count as unchanged so far, which takes
                nothing from Holm's correction.
        """
        looks, labels = self.design.looks, {case.label for case in cases}
        pairs = []
        for case in self.design.cases:
            if case.label in labels:
                pair = self._pair(case)
                # Between planned looks nothing is looked at: the launches after the last one wait for the next.
                pairs.append(pair.first(max((look for look in looks if look <= pair.rounds), default=0)))
            elif not alone and not self._failed(case) and case.label not in self._settled:
                pairs.append(Pair(id=case.label, a=Side(launches=[]), b=Side(launches=[])))
        return decide_suite(pairs, self.design.policy, self.design.policies)

    def _concluded(self, running: Sequence[Case]) -> tuple[SuiteDecision, list[str]]:
        """Return the decisions of the cases that ran, and which of them are undecided for lack of time."""
        # What a limit did not reach is no part of the family that Holm corrects for: order and times of launches decide
        # what is reached. That undecided benchmarks take longer adds no false alarms: by simulated p-values of equal
        # code, limits that reach 5, 6, 10 and 25 of 300 make 11, 11, 14 and 16 % of runs red, whole suites of 4, 6, 10
        # and 25 benchmarks 13, 14, 15 and 15 %. (The rule's own p-values are far more careful.)
        decision = self._decided([case for case in running if case.label not in self._settled], alone=True)
        verdicts = {each.id: each for each in decision.decisions} | self._settled
        levels, decisions, open_ = dict(decision.levels), [], []
        for case in running:
            own, pair, verdict = self.design.policy_of(case).looks, self._pair(case), verdicts[case.label]
            stopped = case.label in decision.undecided and verdict.rounds_used < own[-1]
            open_ += [case.label] if stopped else []
            decisions.append(_out_of_time(verdict, pair.rounds, own) if stopped else verdict)
            a, b = (location(side.launches) for side in (pair.a, pair.b))
            if a is not None and b is not None:
                levels.setdefault(case.label, (a, b))
        return decision._replace(decisions=decisions, levels=levels), open_

    def _round(self, cases: Sequence[Case], round_: int, look: int) -> None:
        """Measure one round, each case on both sides in turn, and repeat the launches that met a slow spell."""
        order = list(cases)
        if round_:
            self._shuffle(order, round_)
        order = self._by_import(order)
        self._current = order, round_, look
        to_do = [(case, side) for case in order for side in order_of(self.design.seed, case.label, round_)]
        what = self._what(round_)
        for repeat in range(1 + REPEATS):
            if repeat and not self._fits_repeat(to_do, order, look - round_ - 1):
                break
            for index, (case, side) in enumerate(to_do):
                total = len(to_do) if repeat else len(order)
                self._step = self._step._replace(done=index if repeat else index // 2, total=total)
                self._finished = len(order) if repeat else index // 2
                if round_ or repeat:
                    if self._reached(case) and not self._failed(case):
                        self._again(case, side, round_, what, repeat)
                elif self._outcomes[case.label] or self._fits(case):  # a shorter one may fit
                    self._begin(case, side, self._launch(case, side, 0, what))
            if not round_ and not repeat:
                self._settle(cases)  # of these no launch needs to be repeated
            to_do = [(case, side) for case, side in to_do if self._met_slow_spell(case, side, round_)]
            what = f"{self._what(round_)}, repeating what met a slow spell"

    def _by_import(self, cases: Sequence[Case]) -> list[Case]:
        """Return cases in the same order, but those that share an import together, at the place of the first."""
        first: dict[str, int] = {}
        for index, case in enumerate(cases):
            first.setdefault(self._importing(case), index)
        return sorted(cases, key=lambda case: first[self._importing(case)])

    def _importing(self, case: Case) -> str:
        """Return the module that a case shares its import of, or else its own label."""
        return self.design.pace.shared_module(case) or case.label

    def _again(self, case: Case, side: SideName, round_: int, what: str, repeat: int) -> None:
        outcome = self._launch(case, side, round_, what, repeat)
        if outcome.status != "ok":
            self._lose(case, side, round_, outcome)

    def _begin(self, case: Case, side: SideName, outcome: Outcome) -> None:
        """Keep the first launch of a side; the first that runs chooses the sampling of all others."""
        self._outcomes[case.label][side] = outcome
        if outcome.launch is not None and case.label not in self._sampling:
            chosen = outcome.launch
            self._sampling[case.label] = Request(
                number=chosen.number, count=len(chosen.samples_ns), primed=outcome.primed
            )

    def _fits(self, case: Case) -> bool:
        """Whether there is time for a first launch of both sides, or it is there already."""
        if any(self.store.get(case, side, 0) for side in SIDES):
            return True
        return self.design.pace.round_s([case]) <= self.design.limit.launches_left_s()

    def _fits_repeat(self, launches: Sequence[tuple[Case, SideName]], cases: Sequence[Case], rounds: int) -> bool:
        """Whether there is time to repeat launches: without the rounds that lead to the next look they tell nothing."""
        pace = self.design.pace
        needed = math.fsum(pace.launch_s(case) for case, _ in launches) + rounds * pace.round_s(cases)
        return needed <= self.design.limit.launches_left_s()

    def _what(self, round_: int) -> str:
        """Return in words what is being measured."""
        if not round_:
            return "first try"
        most = max(self.design.policy.looks[-1], *(policy.looks[-1] for policy in self.design.policies.values()), 0)
        return f"round {round_ + 1} of at most {most}, {len(self._open)} of {len(self.design.cases)} undecided"

    def _met_slow_spell(self, case: Case, side: SideName, round_: int) -> bool:
        """Whether the canary was slow. Values other than times do not depend on the machine's speed."""
        outcome = self._kept[case.label, side].get(round_)
        if outcome is None or not self._is_open(case) or case.benchmark.type != "time" or not outcome.canary_ns:
            return False
        if self.design.pace.shared_module(case):  # a repeat would cost another import
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

    def _reached(self, case: Case) -> bool:
        """Whether both sides were launched."""
        return len(self._outcomes[case.label]) == len(SIDES)

    def _failed(self, case: Case) -> bool:
        return self._reached(case) and any(outcome.status != "ok" for outcome in self._outcomes[case.label].values())

    def _launch(self, case: Case, side: SideName, round_: int, what: str, repeat: int = 0) -> Outcome:
        self.on_step(self._step._replace(what=what, left_s=self._left_s(), of=case.label))
        outcome = self.store.get(case, side, round_, repeat)
        if outcome is None:
            limit = self.design.limit
            if round_ and self.design.pace.launch_s(case) > limit.launches_left_s():
                raise _TimeUpError
            pos = order_of(self.design.seed, case.label, round_).index(side)
            module, importing = self.design.pace.shared_module(case), self._importing(case)
            hash_seed = _number(self.design.seed, "hash", importing, round_) % 2**32
            layout = _number(self.design.seed, "layout", importing) + round_
            sampling = msgspec.structs.replace(self._sampling.get(case.label, self.design.request), module=module)
            within = {"within_s": limit.cut_s()} if limit.limited else {}
            try:
                outcome = self.launchers[side].run(case, sampling, pos=pos, seed=hash_seed, layout=layout, **within)
            except OutOfTimeError as error:
                raise _TimeUpError from error
            outcome = _with_ratio(outcome)
            self.store.put(case, side, round_, outcome, repeat)
        self.design.pace.saw(case, outcome.seconds)
        self._done += 1
        self._repeated += repeat > 0
        self._keep(case, side, round_, outcome)
        return outcome

    def _left_s(self) -> float:
        """Return the expected seconds of these cases, and of the share of them that goes on after the next look."""
        pace, (cases, round_, look) = self.design.pace, self._current
        looks = [later for later in self.design.looks if later >= look]
        if round_ or self.design.runs_change is None:
            left = pace.rest_s(cases, round_, looks, self._share)
        else:
            labels = self._likely - self._settled.keys()
            likely = [case for case in cases if case.label in labels]
            left = pace.round_s(cases) + pace.round_s(self._untraced) + pace.rest_s(likely, 1, looks, self._share)
        left -= pace.round_s(cases[: self._finished])
        return max(0.0, min(left, self.design.limit.launches_left_s()))

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


def _out_of_time(decision: Decision, rounds: int, looks: Sequence[int]) -> Decision:
    """Return a decision that more time could still make."""
    done = f"{rounds} round{'' if rounds == 1 else 's'}"
    following = next((look for look in looks if look > rounds), looks[-1])
    why: Reason[Code] = Reason(
        "no_time", f"time ran out after {done}; the next look is after {following}", "give it more time"
    )
    so_far = f" (so far {decision.reason})" if decision.rounds_used else ""
    return msgspec.structs.replace(decision, reason=f"{why.line}{so_far}", undecided=why, rounds_needed=0)


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
