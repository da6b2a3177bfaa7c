"""Backends keep no state: calls from several threads at once give what calls in turn give."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import rocattn

from .problems import BACKENDS, make, option_sets


@pytest.mark.parametrize("backend", BACKENDS)
def test_concurrent_calls_equal_serial_ones(backend):
    """Thirty-two calls of different problems on four threads return exactly the serial results."""

    def solve(seed):
        q, k, v = make(B=1, H=4, Hkv=2, Sq=20 + seed, Sk=90 - seed, seed=seed)
        options = option_sets(1, 4, 20 + seed, 90 - seed, seed)["all"] | {"layout": "BHSD", "backend": backend}
        out, lse = rocattn.attention(q, k, v, return_lse=True, **options)
        return out, lse, *rocattn.attention_backward(out, q, k, v, out, lse, **options)

    serial = [solve(seed) for seed in range(32)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(solve, range(32)))
    for one, other in zip(serial, together, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_warning_and_no_error_state_leaks(backend):
    """Rows without keys raise no floating-point warning, even where the caller turned them into errors."""
    q, k, v = make(Sq=9, Sk=4)
    with np.errstate(all="raise"):
        out, lse = rocattn.attention(q, k, v, layout="BHSD", causal=True, return_lse=True, backend=backend)
        rocattn.attention_backward(out, q, k, v, out, lse, layout="BHSD", causal=True, backend=backend)
        assert np.geterr()["divide"] == "raise"
