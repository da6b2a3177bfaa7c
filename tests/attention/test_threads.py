"""Backends keep no state: calls from several threads at once give what calls in turn give."""

import ctypes
import ctypes.util
import platform
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


@pytest.mark.skipif(platform.machine() != "x86_64", reason="sets the register of x86-64")
@pytest.mark.parametrize("threads", ["1", "2"])
def test_bits_are_equal_where_the_caller_flushes_subnormals(threads, monkeypatch):
    """A library linked with -ffast-math flushes them in the calling thread alone; it does so after the call, too."""
    if "cpu-flash" not in BACKENDS:
        pytest.skip("cpu-flash is not available here")
    monkeypatch.setenv("ROCATTN_NUM_THREADS", threads)
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((1, 300, 1, 64)).astype(np.float32) for _ in range(3))
    v *= np.float32(2e-38)
    right = rocattn.attention(q, k, v, backend="cpu-flash")
    math, kept, flushing = ctypes.CDLL(ctypes.util.find_library("m")), (ctypes.c_uint32 * 8)(), (ctypes.c_uint32 * 8)()
    math.fegetenv(kept)
    flushing[:] = kept[:]
    flushing[7] |= 0x8040  # MXCSR's flush-to-zero and denormals-are-zero, in glibc's and musl's fenv_t
    math.fesetenv(flushing)
    try:
        outs = [rocattn.attention(q, k, v, backend="cpu-flash") for _ in range(10)]
        after = (ctypes.c_uint32 * 8)()
        math.fegetenv(after)
    finally:
        math.fesetenv(kept)
    assert after[7] & 0x8040 == 0x8040
    assert (np.abs(right) < np.finfo(np.float32).tiny).any()
    for out in outs:
        np.testing.assert_array_equal(out.view(np.uint32), right.view(np.uint32))
