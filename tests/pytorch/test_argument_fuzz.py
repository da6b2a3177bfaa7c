"""Random invalid arguments to every public function: each call ends with a value or our error, which names one.

By hand, for longer than the test: ``python -m tests.pytorch.test_argument_fuzz --minutes 10 [--seed 0]``; with
PyTorch on the path rocattn.torch, too. Exit status 1: some call ended otherwise, or not within a minute.
"""

import argparse
import contextlib
import fractions
import inspect
import re
import signal
import sys
import time
import warnings

import ml_dtypes
import numpy as np
import pytest

import rocattn
from rocattn.errors import RocattnError

SECONDS = 60  # of the calls of a seed, at most
SCALARS = (
    None, True, np.bool_(False), -1, 0, 1, 3, 2**31, 2**62, 2**64, 2**70, -(2**70), 0.5, -0.0, 1e300, float("inf"),
    float("nan"), 1j, "", "x", "cpu", "BHSD", b"x", (), [], {}, (1,), (1, 2), [3, -1], (1, 2, 3), (2**70, -1), ("a", 1),
    (None, None), object(), int, len, Ellipsis, np.float32(2), np.int64(-5), np.uint64(2**64 - 1), np.array(2),
    np.array([2, 2]), np.array([1.5]), np.array("x"), fractions.Fraction(1, 3), np.datetime64("2020-01-01"), range(2),
    memoryview(b"abcd"), slice(2), "float32", "float16", np.float16, "float8_e4m3fn",
)  # fmt: skip
DTYPES = (
    "?", "i1", "u1", "i2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "g", "F", "D", "O", "S3", "U2", "M8[s]", "V5",
    "f4,i4", ">f4", ">i4", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4,
)  # fmt: skip
NUMBERS = (0, -1, 1, 2, 5, 127, -128, 2**15, 2**31 - 1, -(2**31), 2**29, 2**63 - 1, -(2**63))


class Outcome(Exception):  # noqa: N818 - what a call should not end with
    """A foreign exception, a message that names no argument, or a call that does not end."""


def resized(rng, array):
    """Another extent, often of none or more than can be computed, in no memory."""
    if not array.ndim:
        return array[None]
    shape = list(array.shape)
    shape[rng.integers(array.ndim)] = int(rng.choice([0, 1, 2, 3, 7, 2**45, 2**58]))
    if max(shape) < 2**45:
        return np.resize(array, shape)
    with contextlib.suppress(ValueError):
        return np.broadcast_to(np.zeros((), array.dtype), shape)
    return array[:0]


def cast(rng, array):
    """Another dtype, or the same bytes in the other order."""
    dtype = np.dtype(DTYPES[rng.integers(len(DTYPES))])
    with contextlib.suppress(TypeError, ValueError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return array.astype(dtype)
    return np.zeros(array.shape, dtype)


def frozen(_, array):
    """Read-only."""
    array = array.copy()
    array.flags.writeable = False
    return array


def misaligned(_, array):
    """One byte off."""
    odd = np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:]
    return odd.view(array.dtype).reshape(array.shape) if array.nbytes else array


def renumbered(rng, array):
    """Other whole numbers, up to the ends of what the dtype holds; of others every second element."""
    if array.dtype.kind not in "iu" or not array.size:
        return array[..., ::2] if array.ndim else array
    array = array.copy()
    for _ in range(rng.integers(1, 4)):
        at = tuple(rng.integers(n) for n in array.shape)
        array[at] = np.array(NUMBERS[rng.integers(len(NUMBERS))]).astype(array.dtype)
    return array


CHANGES = (
    resized, cast, frozen, misaligned, renumbered, renumbered, renumbered,
    lambda _, array: array[None],
    lambda _, array: array[0] if array.ndim and len(array) else array[None, None],
    lambda rng, array: np.flip(array, rng.integers(array.ndim)) if array.ndim else array,
    lambda _, array: array.T,
    lambda rng, array: np.ma.masked_array(array, mask=rng.random(array.shape) < 0.5),
)  # fmt: skip


def corrupted(rng, given, most=3):
    """One to three arguments changed."""
    given = dict(given)
    for name in rng.choice(list(given), min(rng.integers(1, most + 1), len(given)), replace=False):
        value = given[name]
        array = isinstance(value, np.ndarray) and value.size < 1 << 20 and rng.random() < 0.8
        given[name] = CHANGES[rng.integers(len(CHANGES))](rng, value) if array else SCALARS[rng.integers(len(SCALARS))]
    return given


def problem(rng):
    """Valid arguments of `attention`."""
    kind = (np.float32, np.float16, ml_dtypes.bfloat16)[rng.integers(3)]
    q, k, v = (rng.standard_normal((2, rows, heads, 8)).astype(kind) for rows, heads in ((5, 4), (7, 2), (7, 2)))
    given = {"q": q, "k": k, "v": v, "backend": ("cpu", "cpu-flash", None)[rng.integers(3)]}
    options = {
        "causal": True, "mask": rng.random((2, 1, 5, 7)) < 0.7, "window": (2, 1), "softcap": 3.0,
        "alibi_slopes": np.ones(4, np.float32), "sinks": np.ones(4, np.float32), "scale": 0.3, "layout": "BSHD",
        "num_heads": 4, "num_kv_heads": 2, "dropout_p": 0.1, "dropout_seed": 5, "dropout_offset": 1,
    }  # fmt: skip
    return given | {name: value for name, value in options.items() if rng.random() < 0.5}


def upstream(given, rows):
    """What a backward pass takes beside them."""
    out = given["q"].copy()
    return {"dout": out, "out": out.copy(), "lse": np.zeros(rows, np.float32), "dlse": np.ones(rows, np.float32)}


def packed(rng, *, backward):
    """Valid arguments of `attention_varlen`, or of its gradients; in pages or not."""
    given = {name: value for name, value in problem(rng).items() if name not in {"mask", "layout", "num_heads"}}
    given = {name: value for name, value in given.items() if "dropout" not in name and name != "num_kv_heads"}
    q, k, v = (given[name][0] for name in "qkv")
    starts = {"cu_seqlens_q": np.array([0, 2, 5], np.int32), "cu_seqlens_k": np.array([0, 3, 7], np.int32)}
    given |= {"q": q, "k": k, "v": v} | starts
    if backward:
        return given | upstream(given, (4, 5))
    if rng.random() < 0.5:
        given |= {"k": k[None].repeat(3, 0), "v": v[None].repeat(3, 0), "seqlens_k": np.array([3, 9], np.int32)}
        given |= {"block_table": np.array([[0, -1], [1, 2]], np.int32), "cu_seqlens_k": None}
    return given | {"max_seqlen_q": 3, "max_seqlen_k": 9}


def cache_calls(rng):
    """A cache of some arguments, then a few calls of it."""
    kind = (rocattn.KVCache, rocattn.PagedKVCache)[rng.integers(2)]
    sizes = {"capacity": 20} if kind is rocattn.KVCache else {"num_blocks": 9, "block_size": 4}
    made = {"batch": 2, "num_kv_heads": 2, "head_dim": 8, "head_dim_v": 8, "dtype": np.float32, **sizes}
    yield kind, (made := corrupted(rng, made, 1)) if rng.random() < 0.4 else made
    tokens = rng.standard_normal((2, 3, 2, 8)).astype(np.float32)
    calls = {"append": {"k": tokens, "v": tokens}, "truncate": {"length": 2}}
    calls["attend"] = {"q": rng.standard_normal((2, 1, 4, 8)).astype(np.float32), "causal": True, "scale": 0.5}
    if kind is rocattn.PagedKVCache:
        calls |= {"fork": {"sequence": 1}, "reorder": {"indices": np.array([1, 0])}}
        calls["append"]["sequence"] = calls["truncate"]["sequence"] = None
    for name in rng.choice(list(calls), 5):
        given = calls[str(name)]
        yield str(name), corrupted(rng, given) if rng.random() < 0.6 else given


def torch_calls(rng):
    """Functions of rocattn.torch with tensors, or what no tensor is; [] without PyTorch."""
    if "torch" not in sys.modules:
        return []
    import torch

    import rocattn.torch as ours

    def tensor(value):
        if not isinstance(value, np.ndarray):
            return value
        with contextlib.suppress(TypeError, ValueError):
            return torch.from_numpy(np.array(value)) if value.nbytes < 1 << 20 else value
        return value

    q, k = (rng.standard_normal((2, heads, rows, 8)).astype(np.float32) for heads, rows in ((4, 5), (2, 7)))
    dense = {"query": q, "key": k, "value": k, "attn_mask": None, "dropout_p": 0.1, "is_causal": False, "scale": 0.3,
             "enable_gqa": True}  # fmt: skip
    rows = packed(rng, backward=False)
    for name in ("q", "k", "v"):
        rows[name] = rows[name].astype(np.float32)
    rows = {
        {"q": "query", "k": "key", "v": "value"}.get(name, name): x for name, x in rows.items() if name != "backend"
    }
    calls = [(ours.scaled_dot_product_attention, dense), (ours.attention_varlen, rows)]
    return [(call, {name: tensor(value) for name, value in corrupted(rng, given).items()}) for call, given in calls]


def judge(call, given, names):
    """Make a call; raises Outcome unless it ends as it should. Returns whether it gave a value."""
    named = [*names, "q", "k", "v", "mask", "heads", "tensors", "backend", "memory", "tokens"]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            return call(**given), True
    except Outcome:
        raise
    except RocattnError as error:
        text = str(error)
        if "\n" in text or not any(re.search(rf"\b{re.escape(name)}\b", text) for name in named):
            raise Outcome(f"names no argument: {text}") from error
    except MemoryError as error:
        if not str(error):
            raise Outcome("MemoryError without a word") from error
    except BaseException as error:
        raise Outcome(f"{type(error).__name__}: {error}") from error
    return None, False


def draw(seed):
    """Make the calls of a seed; returns how many there were, and how many gave values."""
    rng, count, values = np.random.default_rng(seed), 0, 0
    plain = problem(rng)
    functions = [
        (rocattn.attention, plain), (rocattn.attention_backward, plain | upstream(plain, (2, 4, 5))),
        (rocattn.attention_varlen, packed(rng, backward=False)),
        (rocattn.attention_varlen_backward, packed(rng, backward=True)),
    ]  # fmt: skip
    calls = [(call, corrupted(rng, given)) for call, given in functions] + torch_calls(rng)
    for call, given in calls:
        count, values = count + 1, values + judge(call, given, inspect.signature(call).parameters)[1]
    cache = None
    for call, given in cache_calls(rng):
        function = call if isinstance(call, type) else getattr(cache, call)
        result, worked = judge(
            function, given, {*given, "q", "out_dtype", "capacity", "cache", "block", "blocks", "sequence"}
        )
        count, values = count + 1, values + worked
        if isinstance(call, type):
            cache = result
        if cache is None:
            break
    return count, values


def prepare():
    """Import what a first call imports, before the clock runs."""
    with contextlib.suppress(ImportError):
        import rocattn.torch as ours

        ours.scaled_dot_product_attention(*(ours.torch.zeros(1, 1, 2, 4),) * 3)


def _too_long(*_):
    raise Outcome(f"does not end within {SECONDS} s")


def fuzz(seeds):
    """Yield (seed, calls, values, what went wrong or "")."""
    before = signal.signal(signal.SIGALRM, _too_long)
    try:
        for seed in seeds:
            signal.alarm(SECONDS)
            try:
                yield seed, *draw(seed), ""
            except Outcome as outcome:
                yield seed, 1, 0, str(outcome)
            finally:
                signal.alarm(0)
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="there is no SIGALRM here")
def test_bad_arguments_end_in_errors_of_ours(cpu_flash):
    """Some hundred calls, both outcomes among them."""
    prepare()
    results = list(fuzz(range(60)))
    assert [f"seed {seed}: {wrong}" for seed, _, _, wrong in results if wrong] == []
    count, values = (sum(result[at] for result in results) for at in (1, 2))
    assert count > 300
    assert 0.05 < values / count < 0.8


def main():
    """Fuzz for some minutes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    prepare()
    end, count, values, wrong = time.monotonic() + 60 * chosen.minutes, 0, 0, 0
    for seed, calls, good, what in fuzz(range(chosen.seed, 1 << 60)):
        count, values, wrong = count + calls, values + good, wrong + bool(what)
        if what:
            print(f"seed {seed}: {what}", flush=True)
        if time.monotonic() > end:
            break
    print(f"seeds {chosen.seed} to {seed}: {count} calls, {values} values, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
