"""Running `rocattn verify`: cases on backends, each output judged, each fault named as far as it can be.

Every output is compared with float64 by the error of a naive program of the same dtype
(`rocattn_profiling.workloads.accuracy`). Where that yardstick shares code with a backend, small cases compare the
yardstick itself with the contract written out again (`rocattn_profiling.verify.contract`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from rocattn.backend import checked
from rocattn.layouts import heads_view
from rocattn_profiling.verify.arrays import compute, laid_out
from rocattn_profiling.verify.contract import visible_pairs
from rocattn_profiling.verify.determinism import differing
from rocattn_profiling.verify.gradients import finite_differences
from rocattn_profiling.verify.inputs import make_case_inputs, poisoned_keys
from rocattn_profiling.verify.outcomes import YARDSTICK, CaseOutcome, Verification
from rocattn_profiling.verify.symptoms import symptom
from rocattn_profiling.verify.ulps import tensor_errors
from rocattn_profiling.verify.yardstick import forward_problem, gradient_problem
from rocattn_profiling.workloads.accuracy import judge_gradients, judge_output

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rocattn.backend import Array, Backend
    from rocattn_profiling.verify.cases import VerifyCase
    from rocattn_profiling.workloads.inputs import Inputs
    from rocattn_profiling.workloads.verdicts import Judgement

_CONTRACT = ("visibility", "positions", "stability", "containment", "edges")  # families small enough to write out again
_NAMED = 3  # failing cases of a family and backend whose symptom is looked for


def verify(
    chosen: Sequence[VerifyCase], backends: Sequence[Backend], on_step: Callable[[str], None] = lambda _: None, *,
    on_start: Callable[[str, str], None] = lambda _case, _backend: None, seed: int = 0,
    found: Verification | None = None,
) -> Verification:  # fmt: skip
    """Run every case on every backend.

    Args:
        chosen: The cases.
        backends: The backends.
        on_step: Called with a line after each case on each backend.
        on_start: Called with the case's label and the backend's name before each.
        seed: Of the inputs.
        found: What to add to, so that a caller still has it after an interrupt; also what is returned.
    """
    found = Verification() if found is None else found
    named: dict[tuple[str, str], int] = {}
    for case in chosen:
        inputs = laid_out(make_case_inputs(case.config, case.data, seed), case.storage)
        runner = _Runner(case, inputs)
        outputs: dict[str, dict[str, Array]] = {}
        for backend in backends:
            on_start(case.label, backend.name)
            outcome, arrays = runner.run(backend)
            if not outcome.ok and arrays and named.setdefault((case.family, backend.name), 0) < _NAMED:
                named[case.family, backend.name] += 1
                outcome = msgspec.structs.replace(outcome, symptom=_symptom(case, inputs, arrays, outcome))
            found.outcomes.append(outcome)
            if outcome.ran and not outcome.error:
                outputs[backend.name] = arrays
            on_step(f"{backend.name} {case.label}")
        if runner.yardstick:
            found.outcomes.append(_of(case, YARDSTICK, problem=runner.yardstick))
        found.compare(case, outputs)
    return found


def _of(case: VerifyCase, backend: str, **more: Any) -> CaseOutcome:
    return CaseOutcome(case=case.label, family=case.family, backend=backend, options=case.options, **more)


class _Runner:
    """One case: what is computed once for all backends, and the judgement of each."""

    def __init__(self, case: VerifyCase, inputs: Inputs) -> None:
        self.case, self.inputs, self.yardstick = case, inputs, ""
        self._differences: dict[str, Array] | None = None
        self._checked = False

    def run(self, backend: Backend) -> tuple[CaseOutcome, dict[str, Array]]:
        """Return what became of the case on a backend, and its outputs."""
        case, arrays = self.case, dict[str, "Array"]()
        started, problem = time.perf_counter(), ""
        try:
            if not (answer := checked(backend, backend.supports(case.config))):
                return _of(case, backend.name, skipped=answer.reason), arrays
            if case.family == "determinism":
                arrays, problem = differing(case.config, self.inputs, backend)
            else:
                arrays = compute(case.config, self.inputs, backend, storage=case.storage)
            judged = self._judged(arrays)
            problem = problem or self._problem(arrays)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - what a backend raises is a finding, not the sweep's end
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return _of(case, backend.name, error=text, seconds=round(time.perf_counter() - started, 4)), arrays
        self._check_yardstick(judged)
        more = {"check": judged.as_check(), "seconds": round(time.perf_counter() - started, 4), "problem": problem}
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
        """Return what no error rule can say of the outputs of a case with poisoned keys."""
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
        seen = visible_pairs(config, self.inputs.mask) & np.repeat(marked, group, axis=1)[:, :, None]
        out = heads_view(arrays["out"], config.layout, config.num_heads, "out").astype(np.float64)
        swallowed = seen.any(axis=-1) & np.isfinite(out).all(axis=-1)
        return f"{int(swallowed.sum())} rows that see a key of NaN are numbers all the same" if swallowed.any() else ""

    def _check_yardstick(self, judged: Judgement) -> None:
        """Compare the float64 reference with what it should be, once a case."""
        if self._checked:
            return
        self._checked, config = True, self.case.config
        if self._differences is not None:
            self.yardstick = gradient_problem(config, self.inputs, self._differences)
        elif self.case.family in _CONTRACT and config.direction == "forward":
            self.yardstick = forward_problem(config, self.inputs, judged)


def _symptom(case: VerifyCase, inputs: Inputs, arrays: Mapping[str, Array], outcome: CaseOutcome) -> str:
    forward = case.config.replace(direction="forward")
    what = outcome.check.what if outcome.check else "out"
    return symptom(forward, inputs, arrays["out"], arrays.get("lse"), what=what)
