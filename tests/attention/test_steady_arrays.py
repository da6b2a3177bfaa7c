"""Calls on arrays that are like one before: nothing is missed that a check would see, and little Python is left."""

import sys
import threading

import ml_dtypes
import numpy as np
import pytest

import rocattn
from rocattn import steady
from rocattn.backends import BACKENDS
from rocattn.backends.cpu_flash import CpuFlashBackend, PlainCall


@pytest.fixture(autouse=True)
def nothing_kept(cpu_flash):
    """The kernels are there, and no earlier test's calls."""
    steady._KEPT.clear()
    yield
    steady._KEPT.clear()


@pytest.fixture
def again(monkeypatch):
    """How many calls were computed by what was kept."""
    counts, real = [0], PlainCall.run

    def run(self, *given):
        result = real(self, *given)
        counts[0] += result is not None
        return result

    monkeypatch.setattr(PlainCall, "run", run)
    return lambda: counts[0]


def normal(*shape, dtype=np.float32):
    """Normal numbers, which depend on the shape alone."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def said(*arrays, **options):
    """What a call gives or says, as bytes and text that can be compared."""
    try:
        result = rocattn.attention(*arrays, **options)
    except rocattn.RocattnError as error:
        return f"{type(error).__name__}: {error}"
    results = result if isinstance(result, tuple) else (result,)
    return [(x.tobytes(), x.dtype.name, x.shape, x.strides) for x in results]


Q, K, V = normal(2, 9, 4, 16), normal(2, 11, 2, 16), normal(2, 11, 2, 8)


def misaligned(array):
    """The same numbers, two bytes beside where they may lie."""
    memory = np.zeros(array.nbytes + 8, np.uint8)
    view = memory[2 : 2 + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


class Labelled(np.ndarray):
    """An array of a class of its own."""


ATTEMPTS = {
    "plain": ((Q, K, V), {}), "LSE": ((Q, K, V), {"return_lse": True}), "causal": ((Q, K, V), {"causal": True}),
    "causal by number": ((Q, K, V), {"causal": 1}), "not causal by number": ((Q, K, V), {"causal": 0}),
    "causal of numpy": ((Q, K, V), {"causal": np.True_}), "LSE by number": ((Q, K, V), {"return_lse": 1}),
    "window": ((Q, K, V), {"window": (3, 2)}), "a list": ((Q, K, V), {"window": [3, 2]}),
    "window of floats": ((Q, K, V), {"window": (3.0, 2)}), "window by flags": ((Q, K, V), {"window": (True, 2)}),
    "window of ones": ((Q, K, V), {"window": (1, 2)}),
    "scale": ((Q, K, V), {"scale": 1.0}), "scale by flag": ((Q, K, V), {"scale": True}),
    "scale by number": ((Q, K, V), {"scale": 1}), "softcap": ((Q, K, V), {"softcap": 2.0}),
    "heads": ((Q, K, V), {"num_heads": 4, "num_kv_heads": 2}), "wrong heads": ((Q, K, V), {"num_heads": 2}),
    "heads by float": ((Q, K, V), {"num_heads": 4.0}), "layout": ((Q, Q, Q), {"layout": "BHSD"}),
    "square": ((Q, Q, Q), {}), "no such layout": ((Q, K, V), {"layout": "SBHD"}),
    "out_dtype": ((Q, K, V), {"out_dtype": "float32"}), "wrong out_dtype": ((Q, K, V), {"out_dtype": "float16"}),
    "misaligned": ((misaligned(Q), K, V), {}), "misaligned keys": ((Q, misaligned(K), V), {}),
    "rows backwards": ((Q[:, ::-1], K, V), {}), "one row for all": ((np.broadcast_to(Q[:, :1], Q.shape), K, V), {}),
    "strided last axis": ((normal(2, 9, 4, 32)[..., ::2], K, V), {}), "fewer keys": ((Q, K[:, :7], V[:, :7]), {}),
    "keys and values disagree": ((Q, K[:, :7], V), {}), "float16": ((*(x.astype(np.float16) for x in (Q, K, V)),), {}),
    "bfloat16": ((*(x.astype(ml_dtypes.bfloat16) for x in (Q, K, V)),), {}),
    "one of 16 bits": ((Q, K.astype(np.float16), V), {}), "float64": ((*(x.astype(float) for x in (Q, K, V)),), {}),
    "other byte order": ((Q.astype(Q.dtype.newbyteorder()), K, V), {}), "of a class": ((Q.view(Labelled), K, V), {}),
    "keys of a class": ((Q, K.view(Labelled), V), {}), "masked": ((np.ma.masked_array(Q), K, V), {}),
    "masked keys": ((Q, np.ma.masked_array(K), V), {}),
    "no array": ((Q.tolist(), K, V), {}), "keys are no array": ((Q, K.tolist(), V), {}),
    "mask": ((Q, K, V), {"mask": np.tri(9, 11, dtype=bool)}), "sinks": ((Q, K, V), {"sinks": np.ones(4, np.float32)}),
    "wrong sinks": ((Q, K, V), {"sinks": np.full(4, np.nan, np.float32)}),
    "slopes by number": ((Q, K, V), {"alibi_slopes": 1}),
    "scale of 8 bits": ((Q, K, V), {"k_scale": 2.0}),
    "seed without dropout": ((Q, K, V), {"dropout_seed": 7}), "wrong seed": ((Q, K, V), {"dropout_seed": -7}),
    "dropout": ((Q, K, V), {"dropout_p": 0.5, "dropout_seed": 7}),
    "another seed": ((Q, K, V), {"dropout_p": 0.5, "dropout_seed": 8}),
    "this backend": ((Q, K, V), {"backend": "cpu-flash"}), "another backend": ((Q, K, V), {"backend": "cpu"}),
    "no such backend": ((Q, K, V), {"backend": "none"}), "backends": ((Q, K, V), {"backend": ["cpu"]}),
    "no keys": ((Q, K[:, :0], V[:, :0]), {}), "no rows": ((Q[:, :0], K, V), {}),
}  # fmt: skip


def test_what_differs_is_looked_at_anew(again):
    """Right after plain calls of the same shapes, each other call gives what it gives where nothing is kept."""
    differ, refused = {}, set()
    for name, (arrays, options) in ATTEMPTS.items():
        for others in ({}, {"causal": True}, {"scale": 1.0}, {"window": (3, 2)}, {"window": (1, 2)}):
            rocattn.attention(Q, K, V, **others)
            rocattn.attention(Q, K, V, return_lse=True, **others)
        results = [said(*arrays, **options) for _ in range(2)]
        steady._KEPT.clear()
        fresh = said(*arrays, **options)
        if results != [fresh, fresh]:
            differ[name] = results, fresh
        refused |= {name} if isinstance(fresh, str) else set()
    assert differ == {}
    assert refused == {
        "causal by number", "not causal by number", "LSE by number", "window of floats", "scale by flag",
        "wrong heads", "heads by float", "no such layout", "wrong out_dtype", "keys and values disagree",
        "one of 16 bits", "other byte order", "masked", "masked keys", "no array", "keys are no array", "wrong sinks",
        "slopes by number", "scale of 8 bits", "wrong seed", "no such backend", "backends",
    }  # fmt: skip
    assert again() > 30
    rocattn.attention(Q, K, V)
    before = again()
    rocattn.attention(misaligned(Q), K, V)
    assert again() == before


@pytest.mark.parametrize("layout", ["BSHD", "BHSD", "BSE"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_bits_and_memory_are_those_of_the_first_call(layout, dtype, again):
    """Small outputs and ones past the caches, which begin at a cache line."""
    for rows in (7, 700):
        shapes = {"BSHD": (2, rows, 6, 64), "BHSD": (2, 6, rows, 64), "BSE": (2, rows, 6 * 64)}
        x = normal(*shapes[layout], dtype=dtype)
        options = {"layout": layout, "num_heads": 6, "return_lse": True}
        results = [said(x, x, x, **options) for _ in range(3)]
        assert results[0] == results[1] == results[2]
        assert rocattn.attention(x, x, x, **options)[0].ctypes.data % (64 if rows == 700 else 4) == 0
    assert again() == 6


def test_what_is_set_later_is_obeyed(monkeypatch, again):
    """Threads, backends that go, come or are made the default, and one of another name with a higher priority."""

    class Zeros(CpuFlashBackend):
        name, priority = "zeros", 99

        def forward(self, *given):
            given[2][...] = 0

    plain = rocattn.attention(Q, K, V)
    assert (rocattn.attention(Q, K, V) == plain).all()
    for count in ("1", "3"):
        monkeypatch.setenv("ROCATTN_NUM_THREADS", count)
        assert (rocattn.attention(Q, K, V) == plain).all()
    assert again() == 1
    monkeypatch.setenv("ROCATTN_NUM_THREADS", "many")
    with pytest.raises(rocattn.SettingError, match="ROCATTN_NUM_THREADS is 'many'"):
        rocattn.attention(Q, K, V)
    monkeypatch.undo()
    BACKENDS.register(Zeros())
    try:
        assert not rocattn.attention(Q, K, V).any()
        assert not rocattn.attention(Q, K, V).any()
    finally:
        BACKENDS.unregister("zeros")
    BACKENDS.set_default("cpu")
    try:
        assert (rocattn.attention(Q, K, V) == rocattn.attention(Q, K, V, backend="cpu")).all()
    finally:
        BACKENDS.set_default(None)
    assert (rocattn.attention(Q, K, V) == plain).all()


def test_four_threads_at_once_get_the_same(again):
    """Several kinds in turn, from several Python threads."""
    kinds = [{"causal": True}, {"window": (2, 2)}, {"scale": 0.3}, {}]
    right = [rocattn.attention(Q, K, V, **kind) for kind in kinds]
    wrong = []

    def work(first):
        for turn in range(200):
            at = (first + turn) % len(kinds)
            if not (rocattn.attention(Q, K, V, **kinds[at]) == right[at]).all():
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert again() == 800


def test_a_steady_call_is_little_python():
    """Python and C functions that the product's code calls, or that are the product's."""
    ours, found = rocattn.__file__.rpartition("/")[0], [0]

    def note(frame, event, _):
        found[0] += event in {"call", "c_call"} and frame.f_code.co_filename.startswith(ours)

    for _ in range(2):
        rocattn.attention(Q, K, V, causal=True)
    before = sys.getprofile()
    sys.setprofile(note)
    rocattn.attention(Q, K, V, causal=True)
    sys.setprofile(before)
    assert 0 < found[0] <= 48
