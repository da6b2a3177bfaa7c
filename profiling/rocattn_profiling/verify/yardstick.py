"""Is the yardstick right? The float64 reference shares code with the `cpu` backend, so both could be wrong together.

Small cases compare it with the contract written out again, and its gradients with finite differences of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rocattn.layouts import heads_view
from rocattn_profiling.verify.contract import attend
from rocattn_profiling.verify.gradients import TOLERANCE
from rocattn_profiling.workloads.naive import exact_gradients, one_kv_head

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocattn.backend import Array
    from rocattn.config import AttentionConfig
    from rocattn_profiling.workloads.inputs import Inputs
    from rocattn_profiling.workloads.verdicts import Judgement

_CLOSE = 1e-9


def forward_problem(config: AttentionConfig, inputs: Inputs, judged: Judgement) -> str:
    """Say where the reference that judged an output is not what the contract says; "" if nowhere.

    A large output, of which rows were sampled, is not compared: the contract's scores would all be there at once.
    """
    if judged.rows_checked < judged.rows:
        return ""
    for verdict, wanted in zip(judged.verdicts, attend(config, inputs), strict=False):
        exact = verdict.exact.reshape(config.batch, config.num_heads, config.seq_q, -1)
        worst = _apart(exact, wanted.reshape(exact.shape))
        if worst > _CLOSE:
            return f"{verdict.what} of the float64 reference is off the contract by {worst:.1e}"
    return ""


def gradient_problem(config: AttentionConfig, inputs: Inputs, differences: Mapping[str, Array]) -> str:
    """Say which analytic gradient of the reference is not what finite differences say; "" if none."""
    exact = analytic_gradients(config, inputs)
    for name, wanted in differences.items():
        worst = _apart(exact[name], wanted)
        if worst > TOLERANCE:
            return f"{name} of the float64 reference is off finite differences by {worst:.1e}"
    return ""


def analytic_gradients(config: AttentionConfig, inputs: Inputs) -> dict[str, Array]:
    """Return the reference's gradients of a problem of one batch as [1, heads, S, D]."""
    assert inputs.dout is not None
    dout = heads_view(inputs.dout, config.layout, config.num_heads, "dout")
    with np.errstate(all="ignore"):
        made = [
            exact_gradients(config, inputs.operands(config), dout, one_kv_head(config, 0, head))
            for head in range(config.num_kv_heads)
        ]
    shapes = {
        "dq": (config.num_heads, config.seq_q, config.head_dim),
        "dk": (config.num_kv_heads, config.seq_k, config.head_dim),
        "dv": (config.num_kv_heads, config.seq_k, config.head_dim_v),
    }
    return {
        name: np.concatenate([getattr(part, name).reshape(-1, shape[-1]) for part in made]).reshape(1, *shape)
        for name, shape in shapes.items()
    }


def _apart(exact: Array, wanted: Array) -> float:
    """Return the largest distance over 1 + the largest number; inf where the reference alone is not finite."""
    if (np.isfinite(wanted) & ~np.isfinite(exact)).any():
        return np.inf
    both = np.isfinite(wanted) & np.isfinite(exact)
    distance = np.abs(np.where(both, exact, 0) - np.where(both, wanted, 0))
    return float(distance.max(initial=0) / (1 + np.max(np.abs(wanted), initial=0, where=both)))
