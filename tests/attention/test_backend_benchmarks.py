"""pytest-benchmark: one group a mask kind, one entry a backend. Off by default; ``pytest --benchmark-only`` runs it.

What would be timed is checked in every run: a benchmark that is switched off asserts nothing.
"""

import numpy as np
import pytest

import rocattn
from rocattn.config import AttentionConfig
from rocattn_profiling.workloads.accuracy import check_output
from rocattn_profiling.workloads.inputs import make_inputs

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
    benchmark.group = f"forward, mask {kind}"
    benchmark.extra_info["config"] = config.label
    benchmark.extra_info["max_abs_error"] = checked(config, backend, benchmark).max_abs_error


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", MASKS)
def test_what_would_be_timed_is_right(kind, backend):
    """The same calls, each once."""
    checked(AttentionConfig(**SIZES, **MASKS[kind]), backend, lambda call, *args, **options: call(*args, **options))


def checked(config, backend, run):
    """Run a forward call by ``run(call, arguments…)`` and return the check of its output, which holds."""
    inputs = make_inputs(config)
    out = run(rocattn.attention, inputs.q, inputs.k, inputs.v, backend=backend, **inputs.options(config))
    check = check_output(config, inputs, np.asarray(out))
    assert check.ok
    return check
