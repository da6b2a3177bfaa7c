"""Gradients by central finite differences of the contract, in float64: they know nothing of any backward pass."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rocattn.layouts import heads_view
from rocattn_profiling.verify.contract import attend

if TYPE_CHECKING:
    from rocattn.backend import Array
    from rocattn.config import AttentionConfig
    from rocattn_profiling.workloads.inputs import Inputs

STEP = 1e-5
"""Of a central difference: its own error (STEP^2 / 6 times a third derivative) and cancellation are about 1e-10."""
TOLERANCE = 1e-7
_BATCH = 128  # perturbed problems solved at once


def finite_differences(config: AttentionConfig, inputs: Inputs) -> dict[str, Array]:
    """Return "dq", "dk" and "dv" as [1, heads, S, D] in float64, element by element: for small problems of one batch.

    d sum(out * dout) / dx is (f(x + h) - f(x - h)) / 2 h with h = `STEP`; inputs are those given, exactly.
    """
    assert inputs.dout is not None
    assert config.batch == 1
    heads = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
    views = {
        name: np.ascontiguousarray(heads_view(getattr(inputs, name), config.layout, count, name).astype(np.float64))
        for name, count in heads.items()
    }
    dout = heads_view(inputs.dout, config.layout, config.num_heads, "dout").astype(np.float64)
    plain = config.replace(layout="BHSD", dtype="float64", direction="forward")
    found = {}
    for name, view in views.items():
        gradient = np.zeros(view.size)
        for start in range(0, view.size, _BATCH):
            moved = np.arange(start, min(start + _BATCH, view.size))
            ends = [_sums(plain, inputs, views, dout, (name, moved, sign * STEP)) for sign in (1, -1)]
            gradient[moved] = (ends[0] - ends[1]) / (2 * STEP)
        found[f"d{name}"] = gradient.reshape(view.shape)
    return found


def _sums(
    config: AttentionConfig, inputs: Inputs, views: dict[str, Array], dout: Array, move: tuple[str, Array, float]
) -> Array:  # fmt: skip
    """Return sum(out * dout) of many copies of the problem, in each of which one element of one tensor is moved."""
    name, moved, step = move
    count = len(moved)
    copies = {key: np.repeat(view, count, axis=0) for key, view in views.items()}
    copies[name].reshape(count, -1)[np.arange(count), moved] += step
    out, _ = attend(config.replace(batch=count), replace(inputs, **copies))
    return np.asarray((out * dout).sum(axis=(1, 2, 3)))
