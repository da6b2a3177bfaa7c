"""Run cases on backends, check every output, and identify faults if possible.

Every output is compared with float64, with limits from the error of a naive program of the same dtype
(`rocattn_profiling.workloads.accuracy`). This yardstick shares code with the `cpu` backend, so both could be wrong in
the same way: small cases compare the yardstick itself with `rocattn_profiling.verify.contract`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from rocattn.backend import support
from rocattn.layouts import heads_view
from rocattn_profiling.verify.cases import VerifyCase
from rocattn_profiling.verify.contract import TOLERANCE, attend, finite_differences, visible_pairs
from rocattn_profiling.verify.execution import Spilled, compute, differing, laid_out
from rocattn_profiling.verify.inputs import make_case_inputs, poisoned_keys
from rocattn_profiling.verify.outcomes import (
    YARDSTICK,
    CaseOutcome,
    FinishedCase,
    Verification,
    tensor_errors,
    with_symptoms,
)
from rocattn_profiling.verify.symptoms import DIFFERENCES, KnownMistake, fitting, gradient_mistakes, same_forward
from rocattn_profiling.workloads.accuracy import judge_gradients, judge_output
from rocattn_profiling.workloads.naive import all_gradients

if TYPE_CHECKING:
    from rocattn.backend import Array, Backend
    from rocattn.config import AttentionConfig
    from rocattn_profiling.base.journal import Journal
    from rocattn_profiling.workloads.accuracy import Judgement
    from rocattn_profiling.workloads.inputs import Inputs


# Families small enough for the contract.
_CONTRACT = ("visibility", "positions", "stability", "containment", "edges", "fp8")
_SEARCHED = 3
"""Failing cases per family and backend on which all known mistakes are tried; later ones try only those that fit."""
_CLOSE = 1e-9


def verify(
    chosen: Sequence[VerifyCase], backends: Sequence[Backend], on_step: Callable[[str], None] = lambda _: None, *,
    on_start: Callable[[str, str], None] = lambda _case, _backend: None, seed: int = 0,
    result: Verification | None = None, journal: Journal[FinishedCase] | None = None,
) -> Verification:  # fmt: skip
    """Run every case on every backend.

    Args:
        chosen: The cases.
        backends: The backends.
        on_step: Called with a line after each case on each backend.
        on_start: Called with the case's label and the backend's name before each.
        seed: Seed of the inputs.
        result: Extended and returned; passing it keeps the results after an interrupt.
        journal: Stores finished cases, including those of a terminated run.
    """
    result = Verification() if result is None else result
    searches = {backend.name: _Search() for backend in backends}
    try:
        _verify(chosen, backends, result, searches, on_step, on_start, seed, journal)
    finally:
        result.outcomes[:] = with_symptoms(result.outcomes)
    return result


def _verify(
    chosen: Sequence[VerifyCase], backends: Sequence[Backend], result: Verification, searches: Mapping[str, _Search],
    on_step: Callable[[str], None], on_start: Callable[[str, str], None], seed: int,
    journal: Journal[FinishedCase] | None,
) -> None:  # fmt: skip
    finished = {of_case.case: of_case for of_case in (journal.found if journal else [])}
    for case in chosen:
        if case.label in finished:
            result.take(finished[case.label])
            for backend in backends:
                on_step(f"{backend.name} {case.label}")
            continue
        before = len(result.outcomes)
        inputs = laid_out(make_case_inputs(case.config, case.data, seed), case.storage)
        runner = _Runner(case, inputs)
        outputs: dict[str, dict[str, Array]] = {}
        for backend in backends:
            on_start(case.label, backend.name)
            outcome, arrays = runner.run(backend)
            if not outcome.ok and arrays and outcome.fits is None:
                fits = searches[backend.name].fits(case, inputs, arrays, outcome)
                outcome = msgspec.structs.replace(outcome, fits=fits)
            result.outcomes.append(outcome)
            if outcome.ran and not outcome.error:
                outputs[backend.name] = arrays
            on_step(f"{backend.name} {case.label}")
        if runner.yardstick:
            result.outcomes.append(_of(case, YARDSTICK, problem=runner.yardstick))
        result.compare(case, outputs)
        if journal:
            agreements = list(result.agreements.values())
            journal.append(FinishedCase(case=case.label, outcomes=result.outcomes[before:], agreements=agreements))


def _of(case: VerifyCase, backend: str, **more: Any) -> CaseOutcome:
    more |= {"options": case.options, "head_dim": case.config.head_dim}
    return CaseOutcome(case=case.label, family=case.family, backend=backend, **more)


class _Runner:
    """A case: results shared by all backends, and the check of each backend."""

    def __init__(self, case: VerifyCase, inputs: Inputs) -> None:
        self.case, self.inputs, self.yardstick = case, inputs, ""
        self._differences: dict[str, Array] | None = None
        self._checked = False

    def run(self, backend: Backend) -> tuple[CaseOutcome, dict[str, Array]]:
        """Return the outcome of the case on a backend, and its outputs."""
        case, arrays = self.case, dict[str, "Array"]()
        started, problem, fits = time.perf_counter(), "", None
        try:
            if not (answer := support(backend, case.config)):
                return _of(case, backend.name, skipped=answer.reason), arrays
            if case.family == "determinism":
                arrays, difference = differing(case.config, self.inputs, backend)
                if difference is not None:
                    problem = difference.sentence
                    fits = [KnownMistake(mistake=DIFFERENCES[difference.cause], proven=True)]
            else:
                arrays = compute(case.config, self.inputs, backend, storage=case.storage)
            judged = self._judged(arrays)
            problem = problem or self._problem(arrays)
        except Spilled as error:
            fits = [KnownMistake(mistake=str(error), proven=True)]
            return _of(case, backend.name, error=str(error), fits=fits, seconds=_since(started)), arrays
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a backend's exception is a result
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return _of(case, backend.name, error=text, seconds=_since(started)), arrays
        self._check_yardstick(judged)
        more = {"check": judged.as_check(), "seconds": _since(started), "problem": problem, "fits": fits}
        tensors = [tensor_errors(verdict, case.config.dtype) for verdict in judged.verdicts]
        return _of(case, backend.name, tensors=tensors, **more), arrays

    def _judged(self, arrays: Mapping[str, Array]) -> Judgement:
        config = self.case.config
        if config.direction == "forward":
            return judge_output(config, self.inputs, arrays["out"], arrays.get("lse"))
        if self.case.family == "gradients" and self._differences is None:
            self._differences = finite_differences(config, self.inputs)
        tensors = arrays["dq"], arrays["dk"], arrays["dv"]
        stable = self.case.family == "stability"
        return judge_gradients(config, self.inputs, *tensors, exact=self._differences, exact_scores=stable)

    def _problem(self, arrays: Mapping[str, Array]) -> str:
        """Return a fault of a case with poisoned keys that no error rule can find, or ""."""
        config = self.case.config
        if self.case.family != "containment":
            return ""
        marked = poisoned_keys(config, self.inputs)
        if config.direction == "backward":
            for name in ("dk", "dv"):
                view = heads_view(arrays[name], config.layout, config.num_kv_heads, name).astype(np.float64)
                if view[marked].any():
                    return f"{name} of keys that no row sees is not 0"
            return ""
        if not self.case.data.endswith("nan"):
            return ""
        group = config.num_heads // config.num_kv_heads
        sees_poison = visible_pairs(config, self.inputs.mask) & np.repeat(marked, group, axis=1)[:, :, None]
        out = heads_view(arrays["out"], config.layout, config.num_heads, "out").astype(np.float64)
        swallowed = sees_poison.any(axis=-1) & np.isfinite(out).all(axis=-1)
        return f"{int(swallowed.sum())} rows that see a NaN key have no NaN" if swallowed.any() else ""

    def _check_yardstick(self, judged: Judgement) -> None:
        """Compare the float64 reference with the contract, once per case."""
        if self._checked:
            return
        self._checked, config = True, self.case.config
        if self._differences is not None:
            self.yardstick = gradient_problem(config, self.inputs, self._differences)
        elif self.case.family in _CONTRACT and config.direction == "forward":
            self.yardstick = forward_problem(config, self.inputs, judged)


def _since(started: float) -> float:
    return round(time.perf_counter() - started, 4)


class _Search:
    """Tries known mistakes on a backend's failing cases: all on the first of a family, then only those that fit one."""

    def __init__(self) -> None:
        self._live: set[str] = set()
        self._searched: Counter[str] = Counter()

    def fits(
        self, case: VerifyCase, inputs: Inputs, arrays: Mapping[str, Array], outcome: CaseOutcome
    ) -> list[KnownMistake] | None:
        """Return the mistakes that fit a case; None if none can be tried."""
        if case.config.varlen is not None:  # mistakes are computed for a single length
            return None
        forward = case.config.replace(direction="forward")
        what = outcome.check.what if outcome.check else "out"
        lse = arrays.get("lse")
        if (
            what.startswith("d")
            and same_forward(forward, inputs, arrays["out"], lse)  # else the forward pass caused the wrong gradients
            and (own := gradient_mistakes(case.config, inputs, arrays))
        ):
            return own
        fits = fitting(forward, inputs, arrays["out"], lse, what=what, only=self._live)
        if fits is None or any(not fit.unsure for fit in fits) or self._searched[case.family] >= _SEARCHED:
            return fits
        self._searched[case.family] += 1
        more = fitting(forward, inputs, arrays["out"], lse, what=what) or []
        self._live |= {fit.mistake for fit in more}
        return more + fits


def forward_problem(config: AttentionConfig, inputs: Inputs, judged: Judgement) -> str:
    """Return where the reference for an output deviates from the contract, or "".

    Large outputs with sampled rows are not compared, since the contract needs all scores in memory at once, nor are
    sequences of different lengths, which it does not support.
    """
    if judged.rows_checked < judged.rows or config.varlen is not None:
        return ""
    for verdict, wanted in zip(judged.verdicts, attend(config, inputs), strict=False):
        exact = verdict.exact.reshape(config.batch, config.num_heads, config.seq_q, -1)
        worst = _apart(exact, wanted.reshape(exact.shape))
        if worst > _CLOSE:
            return f"{verdict.what} of the float64 reference deviates from the contract by {worst:.1e}"
    return ""


def gradient_problem(config: AttentionConfig, inputs: Inputs, differences: Mapping[str, Array]) -> str:
    """Return which analytic gradient of the reference deviates from finite differences, or ""."""
    assert inputs.dout is not None
    dout = heads_view(inputs.dout, config.layout, config.num_heads, "dout")
    exact = all_gradients(config, inputs.operands(config), dout)
    for name, wanted in differences.items():
        worst = _apart(exact[name], wanted)
        if worst > TOLERANCE:
            return f"{name} of the float64 reference deviates from finite differences by {worst:.1e}"
    return ""


def _apart(exact: Array, wanted: Array) -> float:
    """Return the largest distance over 1 + the largest number; inf if only the reference is not finite."""
    if (np.isfinite(wanted) & ~np.isfinite(exact)).any():
        return np.inf
    both = np.isfinite(wanted) & np.isfinite(exact)
    distance = np.abs(np.where(both, exact, 0) - np.where(both, wanted, 0))
    return float(distance.max(initial=0) / (1 + np.max(np.abs(wanted), initial=0, where=both)))
