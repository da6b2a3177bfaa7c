"""Run a case on a backend, with the case's memory layout and outputs prefilled with NaN.

NaN reveals elements that a backend does not write and, around the arrays, out-of-bounds reads and writes. Cases of the
family "determinism" run repeatedly, with several numbers of threads, and from several threads at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rocattn.layouts import heads_view, stored_shape
from rocattn_profiling.measure.records import written_into
from rocattn_profiling.workloads.inputs import numpy_dtype, rows_view

if TYPE_CHECKING:
    from rocattn.backend import Array, Backend
    from rocattn.config import AttentionConfig
    from rocattn_profiling.workloads.inputs import Inputs


_MARGIN = 3  # elements of NaN before and after an array, along each axis
THREADS = (1, 2, 3, 8)
"""Values of ``ROCATTN_NUM_THREADS`` to run with."""
CONCURRENT = 4
_REPEATS = 3
_FILL = 7.0  # later runs start from this instead of NaN: elements not written, or added to, then differ


class Spilled(Exception):  # noqa: N818 - named after what the backend did
    """Raised when a backend wrote outside an output or into an input; the message names the tensor."""


def laid_out(inputs: Inputs, storage: str) -> Inputs:
    """Copy arrays into the memory layout ``storage`` (see `cases.STORAGES`)."""
    if storage == "plain":
        return inputs
    given = {name: getattr(inputs, name) for name in ("q", "k", "v", "dout")}
    placed: dict[str, Any] = {n: _placed(array, storage) for n, array in given.items() if array is not None}
    return replace(inputs, **placed)


def compute(
    config: AttentionConfig, inputs: Inputs, backend: Backend, *, storage: str = "plain", fill: float = np.nan
) -> dict[str, Array]:
    """Run a backend; return "out" and "lse", plus "dq", "dk" and "dv" if the direction is backward.

    Args:
        config: The problem. The LSE is requested unless the direction is forward and ``return_lse`` is off.
        inputs: Its inputs.
        backend: The backend.
        storage: Memory layout of the outputs.
        fill: Initial value of the outputs.

    Raises:
        Spilled: When the backend wrote outside an output, or into an input, which is then restored.
    """
    operands = inputs.operands(config)
    given = inputs.arrays()
    before = {name: array.copy() for name, array in given.items()}
    wants_lse = config.return_lse or config.direction == "backward"
    rooms = {"out": _room(config, "out", storage, fill)}
    outputs = {"out": rooms["out"][1]}
    lse = None
    if wants_lse:
        rows = (config.batch, config.num_heads, config.seq_q)
        shape = rows if config.varlen is None else (config.num_heads, config.rows_q)
        outputs["lse"] = lse = np.full(shape, fill, np.float32)
    if inputs.sequences is not None:
        _compute_varlen(config.replace(return_lse=wants_lse), inputs, backend, outputs, rooms, storage, fill)
        _restore(given, before)
        return outputs
    out_view = heads_view(outputs["out"], config.layout, config.num_heads, "out")
    backend.forward(config.replace(direction="forward", return_lse=wants_lse), operands, out_view, lse)
    if config.direction == "backward":
        assert inputs.dout is not None
        assert lse is not None
        rooms |= {name: _room(config, name[1], storage, fill) for name in ("dq", "dk", "dv")}
        outputs |= {name: rooms[name][1] for name in ("dq", "dk", "dv")}
        heads = {"dq": config.num_heads, "dk": config.num_kv_heads, "dv": config.num_kv_heads}
        views = [heads_view(outputs[name], config.layout, count, name) for name, count in heads.items()]
        dout = heads_view(inputs.dout, config.layout, config.num_heads, "dout")
        given |= {"out": outputs["out"], "lse": lse}  # inputs of the backward pass
        before |= {"out": outputs["out"].copy(), "lse": lse.copy()}
        backend.backward(config, operands, dout, out_view, lse, *views)
    _restore(given, before)
    for name, (buffer, inner) in rooms.items():
        if buffer is not inner and not _intact(buffer, inner, fill):
            raise Spilled(f"the backend wrote outside {name}")
    return outputs


def _compute_varlen(
    config: AttentionConfig, inputs: Inputs, backend: Backend, outputs: dict[str, Array],
    rooms: dict[str, tuple[Array, Array]], storage: str, fill: float,
) -> None:  # fmt: skip
    """Like `compute` for sequences of different lengths: fill ``outputs`` and add to them."""
    assert inputs.sequences is not None
    operands, out, lse = inputs.operands(config), rows_view(outputs["out"]), outputs.get("lse")
    logs = None if lse is None else lse[None]
    backend.forward_varlen(config.replace(direction="forward"), operands, inputs.sequences, out, logs)
    if config.direction == "forward":
        return
    assert inputs.dout is not None
    assert logs is not None
    rooms |= {name: _room(config, name[1], storage, fill) for name in ("dq", "dk", "dv")}
    outputs |= {name: rooms[name][1] for name in ("dq", "dk", "dv")}
    views = [rows_view(outputs[name]) for name in ("dq", "dk", "dv")]
    backend.backward_varlen(config, operands, inputs.sequences, rows_view(inputs.dout), out, logs, *views)


def _restore(given: dict[str, Array], before: dict[str, Array]) -> None:
    """Restore inputs that the backend changed, since the check and the next backend also use them.

    Raises:
        Spilled: When it changed any.
    """
    written = [name for name, array in given.items() if _bits(array) != _bits(before[name])]
    for name in written:
        given[name][...] = before[name]
    if written:
        raise Spilled(written_into(written))


def _bits(array: Array) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def _room(config: AttentionConfig, tensor: str, storage: str, fill: float) -> tuple[Array, Array]:
    """Return a buffer and the output inside it; the same array twice without a margin."""
    plain = np.full(stored_shape(config, tensor), fill, numpy_dtype(config.dtype))
    return _surrounded(plain, fill) if storage == "moat" else (plain, plain)


def _surrounded(array: Array, fill: float) -> tuple[Array, Array]:
    buffer = np.full([n + 2 * _MARGIN for n in array.shape], fill, array.dtype)
    inner = buffer[tuple(slice(_MARGIN, _MARGIN + n) for n in array.shape)]
    inner[...] = array
    return buffer, inner


def _intact(buffer: Array, inner: Array, fill: float) -> bool:
    """Return whether the memory around an output is unchanged (NaN is not equal to itself)."""
    outside = buffer.copy()
    outside[tuple(slice(_MARGIN, _MARGIN + n) for n in inner.shape)] = fill
    wide = outside.astype(np.float64)
    return bool(np.isnan(wide).all() if np.isnan(fill) else (wide == float(np.asarray(fill, buffer.dtype))).all())


def _placed(array: Array, storage: str) -> Array:
    if storage == "moat":
        return _surrounded(array, np.nan)[1]
    if storage == "reversed":  # the sequence is axis 1 or 2: reverse both
        return array[:, ::-1, ::-1].copy()[:, ::-1, ::-1]
    spread = np.full((*array.shape[:-1], 2 * array.shape[-1]), np.nan, array.dtype)
    spread[..., ::2] = array
    return spread[..., ::2]


class LaterRuns(NamedTuple):
    """How later runs differ from the first: one of `DIFFERENCES`, and a sentence with the numbers."""

    cause: str
    sentence: str


def differing(config: AttentionConfig, inputs: Inputs, backend: Backend) -> tuple[dict[str, Array], LaterRuns | None]:
    """Return the first run's outputs, and how later runs differ from them, or None."""
    first = compute(config, inputs, backend)

    def difference(cause: str, other: dict[str, Array], when: str, to: dict[str, Array] = first) -> LaterRuns | None:
        text = _difference(to, other)
        return LaterRuns(cause, f"{text} {when}") if text else None

    for _ in range(_REPEATS):
        if found := difference("again", compute(config, inputs, backend), "when it runs again"):
            return first, found
    filled = compute(config, inputs, backend, fill=_FILL)
    if found := difference("filled", filled, "when its output buffer holds other numbers before the call"):
        return first, found
    if found := difference("refilled", *_refilled(config, inputs, backend)):
        return first, found
    for count in THREADS:
        with _threads(count):
            again = compute(config, inputs, backend)
        if found := difference("threads", again, f"on {count} thread{'s' * (count > 1)}"):
            return first, found
    with ThreadPoolExecutor(CONCURRENT) as pool:
        runs = list(pool.map(lambda _: compute(config, inputs, backend), range(2 * CONCURRENT)))
    for run in runs:
        if found := difference("at once", run, f"when {CONCURRENT} threads call it at once"):
            return first, found
    return first, None


def _refilled(
    config: AttentionConfig, inputs: Inputs, backend: Backend
) -> tuple[dict[str, Array], str, dict[str, Array]]:
    """Return the outputs after refilling K and V in place, a description, and the outputs for new arrays."""
    before = {name: getattr(inputs, name).copy() for name in ("k", "v")}
    refilled: dict[str, Any] = {name: array[..., ::-1].copy() for name, array in before.items()}
    try:
        for name, array in refilled.items():
            getattr(inputs, name)[...] = array
        mine = compute(config, inputs, backend)
        fresh = compute(config, replace(inputs, **refilled), backend)
    finally:
        for name, array in before.items():
            getattr(inputs, name)[...] = array
    return mine, "when K and V are refilled in place, compared with new arrays of the same numbers", fresh


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = os.environ.get("ROCATTN_NUM_THREADS")
    os.environ["ROCATTN_NUM_THREADS"] = str(count)
    try:
        yield
    finally:
        if before is None:
            del os.environ["ROCATTN_NUM_THREADS"]
        else:
            os.environ["ROCATTN_NUM_THREADS"] = before


def _difference(first: dict[str, Array], other: dict[str, Array]) -> str:
    """Describe which tensor differs bitwise, in how many elements, and by how much; "" if none does."""
    for name, array in first.items():
        mine, theirs = (np.ascontiguousarray(x).view(f"u{x.itemsize}") for x in (array, other[name]))
        if (wrong := mine != theirs).any():
            with np.errstate(all="ignore"):
                gap = np.abs(array[wrong].astype(np.float64) - other[name][wrong].astype(np.float64))
            largest = float(np.max(gap, initial=0, where=np.isfinite(gap)))
            return f"{name} differs in {int(wrong.sum())} of {wrong.size} elements (up to {largest:.1e} apart)"
    return ""
