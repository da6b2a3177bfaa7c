"""Layouts are views: nothing is copied for their sake, and any strides will do."""

import numpy as np
import pytest

import rocattn
from rocattn.backend import YES, Backend
from rocattn.backends import BACKENDS
from rocattn.errors import ConfigError
from rocattn.functional import describe
from rocattn.layouts import empty_in_layout, heads_view
from rocattn_profiling.workloads.inputs import numpy_dtype

from .problems import BACKENDS as NAMES
from .problems import LAYOUTS, head_counts, heads_first, make, option_sets, stored


class Spy(Backend):
    """Keeps what it is given and answers zeros."""

    name = "spy"

    def supports(self, _config):
        """Everything."""
        return YES

    def workspace_bytes(self, _config):
        """Nothing."""
        return 0

    def forward(self, _config, operands, out, _lse):
        """Keep the operands."""
        self.operands = operands
        out[...] = 0

    def backward(self, _config, operands, dout, out, _lse, dq, dk, dv):
        """Keep the operands."""
        self.operands, self.dout, self.given_out = operands, dout, out
        for gradient in (dq, dk, dv):
            gradient[...] = 0


@pytest.fixture
def spy():
    """A registered spy."""
    yield BACKENDS.register(Spy())
    BACKENDS.unregister("spy")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_backend_gets_views_of_the_callers_memory(spy, layout):
    """q, k, v, mask, dout and out reach the backend as [B, H, S, D] views, without a copy."""
    arrays = [stored(x, layout) for x in make(Sq=5, Sk=7, D=6, Dv=3)]
    mask = np.ones((5, 7), bool)
    options = {"layout": layout, "backend": "spy", "mask": mask, **head_counts(layout, 4, 2)}
    out, lse = rocattn.attention(*arrays, return_lse=True, **options)
    seen = spy.operands
    for given, view in zip(arrays, (seen.q, seen.k, seen.v), strict=True):
        assert np.shares_memory(given, view)
        assert given.size == view.size
    assert np.shares_memory(mask, seen.mask)
    assert [x.shape for x in (seen.q, seen.k, seen.v)] == [(2, 4, 5, 6), (2, 2, 7, 6), (2, 2, 7, 3)]
    rocattn.attention_backward(out, *arrays, out, lse, **options)
    assert np.shares_memory(out, spy.dout)
    assert np.shares_memory(out, spy.given_out)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_view_holds_the_same_values(layout):
    """Element [b, h, s, d] of the view is the head's element in the stored array."""
    array = make(B=2, H=3, Hkv=3, Sq=5, D=7)[0]
    np.testing.assert_array_equal(heads_view(stored(array, layout), layout, 3, "q"), array)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_come_in_the_callers_layout(layout):
    """The output and the gradients have the layout's shapes, and are contiguous in it."""
    q, k, v = (stored(x, layout) for x in make(Sq=5, Sk=7, D=6, Dv=3))
    options = {"layout": layout, **head_counts(layout, 4, 2)}
    out, lse = rocattn.attention(q, k, v, return_lse=True, **options)
    gradients = rocattn.attention_backward(out, q, k, v, out, lse, **options)
    assert out.shape == {"BSHD": (2, 5, 4, 3), "BHSD": (2, 4, 5, 3), "BSE": (2, 5, 12)}[layout]
    for gradient, array in zip(gradients, (q, k, v), strict=True):
        assert gradient.shape == array.shape
        assert gradient.flags.c_contiguous
    assert out.flags.c_contiguous


def strided(array, kind):
    """The same values behind unusual strides."""
    if kind == "read-only":
        array.flags.writeable = False
        return array
    if kind == "fortran":
        return np.asfortranarray(array)
    if kind == "negative":
        return array[..., ::-1].copy()[..., ::-1]
    if kind == "reversed":
        return array[:, ::-1].copy()[:, ::-1]
    wide = np.full((*array.shape[:-1], 2 * array.shape[-1]), np.nan, array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["read-only", "fortran", "negative", "reversed", "every-other"])
def test_any_strides_give_the_same_result(kind, layout, backend):
    """Read-only, Fortran-ordered, negative and gapped strides change nothing, forward or backward."""
    q, k, v = (stored(x, layout) for x in make(Sq=13, Sk=17, D=6, Dv=5))
    options = option_sets(2, 4, 13, 17)["all"] | {"layout": layout, "backend": backend, **head_counts(layout, 4, 2)}
    out, lse = rocattn.attention(q, k, v, return_lse=True, **options)
    dout = np.random.default_rng(0).standard_normal(out.shape).astype(np.float32)
    gradients = rocattn.attention_backward(dout, q, k, v, out, lse, **options)
    odd = [strided(x, kind) for x in (q, k, v)]
    other_out, other_lse = rocattn.attention(*odd, return_lse=True, **options)
    np.testing.assert_allclose(other_out, out, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(other_lse, lse, rtol=1e-5, atol=1e-6)
    others = rocattn.attention_backward(strided(dout, kind), *odd, strided(out, kind), lse, **options)
    for mine, theirs in zip(others, gradients, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_broadcast_inputs_work(layout, backend):
    """0-stride arrays (one head's data for all batches, or one number for all) are read as what they show."""
    q, k, v = (stored(x, layout) for x in make(B=1, Sq=13, Sk=17))
    spread = [np.broadcast_to(x, (3, *x.shape[1:])) for x in (q, k, v)]
    spread[2] = np.broadcast_to(np.float32(0.5), spread[2].shape)
    options = {"layout": layout, "backend": backend, "causal": True, **head_counts(layout, 4, 2)}
    out = rocattn.attention(*spread, **options)
    np.testing.assert_allclose(out, rocattn.attention(*(x.copy() for x in spread), **options), rtol=1e-6)
    np.testing.assert_allclose(heads_first(out, layout, 4)[:, :, 0], 0.5, rtol=1e-6)


@pytest.mark.parametrize("backend", NAMES)
def test_inputs_are_not_changed(backend):
    """No backend writes to what it is given."""
    q, k, v = make(Sq=13, Sk=17)
    options = option_sets(2, 4, 13, 17)["all"] | {"layout": "BHSD", "backend": backend}
    kept = [x.copy() for x in (q, k, v)]
    out, lse = rocattn.attention(q, k, v, return_lse=True, **options)
    kept += [out.copy(), lse.copy()]
    rocattn.attention_backward(out, q, k, v, out, lse, **options)
    for before, after in zip(kept, (q, k, v, out, lse), strict=True):
        np.testing.assert_array_equal(before, after)


def test_bse_of_one_number_has_heads():
    """A 0-stride last axis splits into heads without a copy."""
    array = np.broadcast_to(np.float32(2), (1, 3, 8))
    view = heads_view(array, "BSE", 2, "q")
    assert view.shape == (1, 2, 3, 4)
    assert not view.flags.writeable
    assert np.shares_memory(view, array)


def test_empty_in_layout_fills_every_element():
    """The stored array and its view are one memory, filled as asked."""
    for layout in LAYOUTS:
        array, view = empty_in_layout((2, 3, 5, 4), layout, np.float32, fill=np.nan)
        assert np.isnan(array).all()
        view[...] = 1
        assert (array == 1).all()


def test_a_large_array_begins_at_a_cache_line():
    """Where it begins is all that is different: shape, order and room to write are those of a small one."""
    for layout in LAYOUTS:
        for dtype in (np.float32, np.float64, numpy_dtype("bfloat16")):
            array, view = empty_in_layout((2, 70, 501, 33), layout, dtype)
            assert array.ctypes.data % 64 == 0
            assert (array.flags.c_contiguous, array.flags.writeable, array.dtype) == (True, True, np.dtype(dtype))
            assert view.shape == (2, 70, 501, 33)


@pytest.mark.parametrize("dim", [64, 80, 50])
def test_a_large_output_is_the_same_wherever_it_begins(dim, cpu_flash):
    """It goes past the caches where it is written in whole lines, and stays within its bounds in either case."""
    q, k, v = (np.random.default_rng(n).standard_normal((2, 601, 8, dim)).astype(np.float32) for n in range(3))
    config, operands = describe(q, k, v, causal=True)
    given = []
    for beyond in (0, 16, 64):
        memory = np.full(q.nbytes + 256, 0xA5, np.uint8)
        first = beyond + -memory.ctypes.data % 64
        out = memory[first : first + q.nbytes].view(np.float32).reshape(q.shape)
        cpu_flash.forward(config, operands, out.swapaxes(1, 2), None)
        assert (memory[:first] == 0xA5).all()
        assert (memory[first + q.nbytes :] == 0xA5).all()
        given.append(out)
    assert given[0].tobytes() == given[1].tobytes() == given[2].tobytes()
    assert np.isfinite(given[0]).all()


def test_bse_names_what_it_needs():
    """BSE without head counts, or with ones that do not divide, says so."""
    array = np.ones((1, 3, 8), np.float32)
    with pytest.raises(ConfigError, match="needs num_heads"):
        heads_view(array, "BSE", None, "q")
    with pytest.raises(ConfigError, match="a whole number, not 2"):
        heads_view(array, "BSE", 2.0, "q")
    with pytest.raises(ConfigError, match="last axis of 8, which 3 heads do not divide"):
        heads_view(array, "BSE", 3, "q")
