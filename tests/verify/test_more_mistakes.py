"""Mistakes of kinds that a whole backend makes: of other heads, of backward passes, of state, of narrow sums."""

import itertools
import os
import threading
import time

import numpy as np
import pytest

from rocattn.backend import YES, Backend
from rocattn.backends import BACKENDS
from rocattn.config import AttentionConfig
from rocattn_profiling.verify.cases import VerifyCase
from rocattn_profiling.verify.outcomes import mistakes_of, symptoms
from rocattn_profiling.verify.run import verify
from rocattn_profiling.workloads.inputs import numpy_dtype


class Bent(Backend):
    """The reference, given bent operands, or whose results are bent."""

    name, priority = "bent", -100

    def __init__(self, *, operands=None, forward=None, backward=None):
        self._operands, self._forward, self._backward = operands, forward, backward

    def supports(self, _config):
        """Say yes to everything."""
        return YES

    def workspace_bytes(self, config):
        """Return what the reference takes."""
        return BACKENDS.get("cpu").workspace_bytes(config)

    def _given(self, config, operands):
        return operands if self._operands is None else self._operands(config, operands)

    def forward(self, config, operands, out, lse):
        """Compute with the mistake."""
        BACKENDS.get("cpu").forward(config, self._given(config, operands), out, lse)
        if self._forward is not None:
            self._forward(config, operands, out)

    def backward(self, config, operands, dout, out, lse, dq, dk, dv):
        """Differentiate with the mistake."""
        given = self._given(config, operands)
        BACKENDS.get("cpu").backward(config, given, dout, out, lse, dq, dk, dv)
        if self._backward is not None:
            self._backward(config, dq, dk, dv)


def bent(name, place):
    """Return a bend of one operand, if it is there."""

    def bend(config, operands):
        value = getattr(operands, name)
        return operands if value is None else operands._replace(**{name: place(config, value)})

    return bend


def of_kv_head(config, value):
    """Number h // (H / Hkv) in the place of h, along the axis of heads."""
    picked = np.arange(config.num_heads) // (config.num_heads // config.num_kv_heads)
    return value[..., picked]


def of(**options):
    """Return a forward and a backward case with these options: two batches of heads that share KV heads."""
    sizes = {"batch": 2, "num_heads": 6, "num_kv_heads": 3, "seq_q": 37, "seq_k": 53, "head_dim": 16, "head_dim_v": 16}
    config = AttentionConfig(**{**sizes, **options})
    return [
        VerifyCase(config.replace(direction=way, return_lse=way == "forward")) for way in
        ("forward", "backward")
    ]  # fmt: skip


HEADS = {
    "every head uses the first head's mask": (
        of(mask="bool", mask_shape=(2, 6, 37, 53)) + of(mask="additive", mask_shape=(1, 6, 37, 53)),
        bent("mask", lambda _, mask: np.broadcast_to(mask[:, :1], mask.shape)),
    ),
    "every batch uses the first batch's mask": (
        of(mask="bool", mask_shape=(2, 1, 37, 53)), bent("mask", lambda _, mask: np.broadcast_to(mask[:1], mask.shape)),
    ),
    "every head uses the first head's ALiBi slope": (
        of(alibi=True) + of(alibi=True, causal=True),
        bent("alibi_slopes", lambda _, slopes: np.broadcast_to(slopes[:, :1], slopes.shape)),
    ),
    "a head uses its KV head's index to look up the ALiBi slope": (of(alibi=True), bent("alibi_slopes", of_kv_head)),
    "every head uses the first head's sink": (
        of(sinks=True), bent("sinks", lambda _, sinks: np.broadcast_to(sinks[:1], sinks.shape)),
    ),
    "a head uses its KV head's index to look up the sink": (of(sinks=True, softcap=9.0), bent("sinks", of_kv_head)),
}  # fmt: skip


@pytest.mark.parametrize("words", HEADS)
def test_options_of_another_head_are_named(words):
    """In both directions: the gradients of a wrong forward pass are wrong for the same reason."""
    chosen, bend = HEADS[words]
    assert named(Bent(operands=bend), chosen) == [words]


def times(**factors):
    """Return a bend of gradients by factors of the scale to a power."""

    def bend(config, dq, dk, dv):
        for name, array in (("dq", dq), ("dk", dk), ("dv", dv)):
            array[...] = array * array.dtype.type(config.softmax_scale ** factors.get(name, 0))

    return bend


def swapped(_config, _dq, dk, dv):
    """dk and dv in each other's place."""
    dk[...], dv[...] = dv.copy(), dk.copy()


def mean_of_group(config, _dq, dk, dv):
    """The mean over a group in the place of the sum."""
    for array in (dk, dv):
        array[...] = array / array.dtype.type(config.num_heads // config.num_kv_heads)


@pytest.mark.parametrize(
    ("bend", "words"),
    [
        (times(dq=-1), "dq is not scaled"), (times(dk=1), "dk is scaled twice"), (times(dq=1), "dq is scaled twice"),
        (swapped, "dk and dv are swapped"),
        (mean_of_group, "dk and dv are the mean over the query heads of a group, not the sum"),
    ],
)  # fmt: skip
def test_a_wrong_backward_pass_beside_a_right_forward_one(bend, words):
    """Of plain problems, and of one whose forward pass has every option."""
    chosen = of() + of(causal=True, softcap=9.0, alibi=True, sinks=True)
    assert named(Bent(backward=bend), chosen) == [words]


def test_two_mistakes_are_not_told_as_one():
    """dq unscaled and dv halved: no gradient mistake of the table makes both."""

    def bend(config, dq, dk, dv):
        times(dq=-1)(config, dq, dk, dv)
        dv /= 2

    found = verify(of(), [Bent(backward=bend)])
    assert mistakes_of([outcome for outcome in found.outcomes if not outcome.ok]) == []


def drifting():
    """Other bits in every run."""
    runs = itertools.count()
    return lambda _config, _operands, out: np.add(out, out.dtype.type(next(runs)), out=out)


class Adding(Bent):
    """Adds to what its output holds, if that is a number."""

    def forward(self, config, operands, out, lse):
        """Compute, and add."""
        held = np.nan_to_num(np.array(out, np.float64))
        super().forward(config, operands, out, lse)
        out += held.astype(out.dtype)


class Stale(Bent):
    """Keeps a copy of V by the address of its memory."""

    def __init__(self):
        super().__init__()
        self._kept = {}

    def forward(self, config, operands, out, lse):
        """Compute with the V that first lay there."""
        address = (operands.v.__array_interface__["data"][0], operands.v.shape)
        v = self._kept.setdefault(address, operands.v.copy())
        super().forward(config, operands._replace(v=v), out, lse)


class Shared(Bent):
    """Writes its result to one place for all threads, and copies it from there."""

    def __init__(self):
        super().__init__()
        self._owner = None

    def forward(self, config, operands, out, lse):
        """Compute; the result is another's if that came in between."""
        self._owner = threading.get_ident()
        super().forward(config, operands, out, lse)
        time.sleep(0.02)
        if self._owner != threading.get_ident():
            out += out.dtype.type(1)


def by_threads(_config, _operands, out):
    """The sum's order depends on the number of threads."""
    out += out.dtype.type(os.environ.get("ROCATTN_NUM_THREADS", "") == "3")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Bent(forward=drifting()), "its bits differ from run to run"),
        (lambda: Bent(forward=by_threads), "its bits depend on the number of threads"),
        (Adding, "it adds to the output's old contents, or leaves parts of the output unwritten"),
        (Stale, "K or V refilled in place is read with its old contents"),
        (Shared, "calls from several threads disturb each other"),
    ],
)
def test_mistakes_of_state_are_named_by_one_case(make, words):
    """They are seen, not inferred: one case proves them, whatever else fails."""
    case = VerifyCase(of()[0].config, family="determinism")
    (first, *_) = named(make(), [case])
    assert first.startswith(words)


def test_a_written_input_is_named():
    """In every case that wrote into it."""

    def write(config, operands):
        operands.q[...] = operands.q * operands.q.dtype.type(2)
        return operands

    assert named(Bent(operands=write), of()) == ["the backend wrote into q, which it is given to read"]


def summed(dtype, tile):
    """Return a bend of the output: sums of tiles of keys in a dtype, by values that are one key's each."""

    def bend(config, operands, out):
        wide = config.replace(head_dim_v=config.seq_k, dtype="float32")
        identity = np.broadcast_to(
            np.eye(config.seq_k, dtype=np.float32), (*operands.v.shape[:2], *2 * (config.seq_k,))
        )
        weights = np.empty((*out.shape[:3], config.seq_k), np.float32)
        q, k = operands.q.astype(np.float32), operands.k.astype(np.float32)
        BACKENDS.get("cpu").forward(wide, operands._replace(q=q, k=k, v=identity), weights, None)
        v = np.repeat(operands.v.astype(np.float32), config.num_heads // config.num_kv_heads, axis=1)
        total = np.zeros(out.shape, np.float32)
        for first in range(0, config.seq_k, tile):
            part = weights[..., first : first + tile] @ v[:, :, first : first + tile]
            total = (total + part).astype(numpy_dtype(dtype)).astype(np.float32)
        out[...] = total

    return bend


@pytest.mark.parametrize(
    ("dtype", "kept", "tile"),
    [("float16", "bfloat16", 16), ("float32", "float16", 32), ("float32", "bfloat16", 64), ("bfloat16", "bfloat16", 8)],
)
def test_sums_of_sixteen_bits_are_named(dtype, kept, tile):
    """By the size of their errors, which no wider sum has; of lengths that make several tiles."""
    chosen = [of(dtype=dtype, seq_k=length)[0] for length in (260, 517, 1031)]
    (words, *_) = named(Bent(forward=summed(kept, tile)), chosen)
    assert words == f"errors are as large as with the sums of an output kept in {kept}"


def named(backend, chosen):
    """Return the mistakes that are told of a backend that fails in each of the cases."""
    found = verify(chosen, [backend])
    failed = [outcome for outcome in found.outcomes if not outcome.ok]
    assert failed
    lines = symptoms(found.outcomes)[backend.name]
    words = mistakes_of(failed)
    assert [line for line, mistake in zip(lines, words, strict=False) if not line.startswith(mistake)] == []
    return words


class Textbook(Bent):
    """Attention in float64 as a textbook has it, with its own order of sums: repeated KV heads, whole rows."""

    def __init__(self, dtype=np.float64):
        super().__init__()
        self._dtype = dtype

    def forward(self, config, operands, out, lse):
        """Return softmax(scale q k^T) v, with softcap."""
        group = config.num_heads // config.num_kv_heads
        q, k, v = (heads.astype(self._dtype) for heads in (operands.q, operands.k, operands.v))
        k, v = (np.repeat(heads, group, axis=1) for heads in (k, v))
        scores = (q * self._dtype(config.softmax_scale)) @ k.swapaxes(-1, -2)
        if config.softcap:
            scores = config.softcap * np.tanh(scores / config.softcap)
        if config.causal:
            seen = np.tri(config.seq_q, config.seq_k, config.seq_k - config.seq_q, dtype=bool)
            scores = np.where(seen, scores, -np.inf)
        top = scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores - top)
        total = weights.sum(axis=-1, keepdims=True)
        out[...] = (weights / total) @ v
        if lse is not None:
            lse[...] = (top + np.log(total))[..., 0]


@pytest.mark.parametrize("scale", [None, 1.0, 8.0])
def test_a_textbook_in_float64_is_right_and_in_float32_wrong(scale):
    """Exact results are of float64, too, and are rounded at the size of the scores as a textbook's are."""
    chosen = [
        VerifyCase(of()[0].config.replace(dtype="float64", scale=scale, **options))
        for options in ({}, {"causal": True}, {"softcap": 9.0}, {"seq_q": 1, "seq_k": 2000})
    ]
    assert [o.fault for o in verify(chosen, [Textbook()]).outcomes if not o.ok] == []
    assert not any(outcome.ok for outcome in verify(chosen, [Textbook(np.float32)]).outcomes)
