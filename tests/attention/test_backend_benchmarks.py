"""pytest-benchmark: one group a mask kind, one entry a backend. Off by default; ``pytest --benchmark-only`` runs it."""

import numpy as np
import pytest

import rocattn
from rocattn.config import AttentionConfig
from rocattn_profiling.measure.data import make_inputs
from rocattn_profiling.measure.evaluation import check_output

from .problems import BACKENDS

SIZES = {"batch": 1, "num_heads": 8, "seq_q": 512, "seq_k": 512, "head_dim": 64}
MASKS = {
    "none": {},
    "causal": {"causal": True},
    "window": {"window": (128, 0)},
    "bool": {"mask": "bool", "mask_shape": (1, 1, 512, 512)},
    "additive": {"mask": "additive", "mask_shape": (1, 1, 512, 512)},
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", MASKS)
def test_forward(benchmark, kind, backend):
    """Forward at 512 x 512, 8 heads, D 64, float32; the timed output is checked against float64."""
    config = AttentionConfig(**SIZES, **MASKS[kind])
    inputs = make_inputs(config)
    benchmark.group = f"forward, mask {kind}"
    benchmark.extra_info["config"] = config.label
    out = benchmark(
        rocattn.attention, inputs.q, inputs.k, inputs.v, backend=backend, **inputs.options(config)
    )  # fmt: skip
    check = check_output(config, inputs, np.asarray(out))
    benchmark.extra_info["max_abs_error"] = check.max_abs_error
    assert check.ok
