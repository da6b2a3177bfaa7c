"""Memory layouts as strided views: callers' arrays become [B, H, S, D] without a copy.

=======  ===================  ==========================================================
layout   shape of q           view [B, H, S, D]
=======  ===================  ==========================================================
BSHD     [B, Sq, H, D]        axes 1 and 2 exchanged
BHSD     [B, H, Sq, D]        as it is
BSE      [B, Sq, H * D]       last axis split in two, then as BSHD; needs the head counts
=======  ===================  ==========================================================

Read-only, non-contiguous, negatively strided and broadcast (0-stride) arrays are supported, since a view only
rearranges strides.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rocattn.config import AttentionConfig
from rocattn.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike

    from rocattn.backend import Array

_LINE = 64  # bytes
_LARGE = 1 << 20  # bytes: larger outputs bypass the caches (kNear in kernels/cpu/problem.h)
_AXES = {"BSHD": "[B, S, H, D]", "BHSD": "[B, H, S, D]", "BSE": "[B, S, H*D]"}


class Output(NamedTuple):
    """An output of a call: shape, strides in elements, and numpy's name of its dtype."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, array: Array) -> Output:
        """Describe an array."""
        return cls(array.shape, tuple(step // array.itemsize for step in array.strides), array.dtype.name)


def heads_view(array: Array, layout: str, num_heads: int | None, name: str) -> Array:
    """Return an array in any layout as a [B, heads, S, D] view of the same memory.

    Args:
        array: What the caller passed as ``name``.
        layout: "BSHD", "BHSD" or "BSE".
        num_heads: The number of heads; required for BSE, otherwise checked against the shape if given.
        name: The array's name in errors.

    Raises:
        ConfigError: When the shape does not match the layout.
    """
    if not isinstance(layout, str) or layout not in _AXES:
        raise ConfigError(f"layout {layout!r} is unknown: use one of {', '.join(_AXES)}")
    ndim = 3 if layout == "BSE" else 4
    if array.ndim != ndim:
        raise ConfigError(
            f"{name} has shape {array.shape}, but layout {layout} is {_AXES[layout]}: {ndim} dimensions are needed"
        )
    if layout == "BSE":
        return _split_heads(array, num_heads, name)
    view = array.swapaxes(1, 2) if layout == "BSHD" else array
    if num_heads is not None and view.shape[1] != num_heads:
        raise ConfigError(
            f"{name} has {view.shape[1]} heads (shape {array.shape}, {layout}), not the {num_heads} given"
        )
    return view


def _split_heads(array: Array, num_heads: int | None, name: str) -> Array:
    if not isinstance(num_heads, int | np.integer) or num_heads <= 0:
        needed = f"layout BSE needs num_heads (and num_kv_heads if it differs) to split {name}'s last axis"
        raise ConfigError(needed if num_heads is None else f"{needed}: a whole number, not {num_heads!r}")
    batch, seq, width = array.shape
    if width % num_heads:
        raise ConfigError(f"{name} has a last axis of {width}, which {num_heads} heads do not divide")
    step, dim = array.strides[2], width // num_heads
    # Splitting one axis never needs a copy; as_strided never copies, while reshape would copy a broadcast axis.
    shape = (batch, num_heads, seq, dim)
    strides = (array.strides[0], dim * step, array.strides[1], step)
    return np.lib.stride_tricks.as_strided(array, shape, strides, writeable=array.flags.writeable)


def empty_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Allocate an array; large ones are cache-line aligned, unlike numpy's, so that kernels can write whole lines.

    Raises:
        MemoryError: When there is not enough memory.
    """
    size = math.prod(shape) * dtype.itemsize
    if size >= 1 << 62:  # numpy raises ValueError
        raise MemoryError(f"no memory for an output of shape {list(shape)}")
    if size < _LARGE:
        return np.empty(shape, dtype)
    memory = np.empty(size + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + size].view(dtype).reshape(shape)


def empty_in_layout(
    shape: Sequence[int], layout: str, dtype: DTypeLike, *, fill: float | None = None
) -> tuple[Array, Array]:
    """Allocate a [B, H, S, D] array in a layout.

    Args:
        shape: (B, H, S, D).
        layout: "BSHD", "BHSD" or "BSE".
        dtype: Its dtype.
        fill: The fill value; None leaves it uninitialized.

    Returns:
        The array as the caller sees it, and its [B, H, S, D] view.
    """
    batch, heads, seq, dim = shape
    stored = (batch, heads, seq, dim) if layout == "BHSD" else (batch, seq, heads, dim)
    array = empty_array(stored, np.dtype(dtype))
    if fill is not None:
        array.fill(fill)
    view = array if layout == "BHSD" else array.swapaxes(1, 2)
    return (array.reshape(batch, seq, heads * dim) if layout == "BSE" else array), view


def stored_shape(config: AttentionConfig, tensor: str) -> tuple[int, ...]:
    """Return the shape of "q", "k", "v" or "out" in this config's layout."""
    if (varlen := config.varlen) is not None:
        dim = config.head_dim_v if tensor in {"v", "out"} else config.head_dim
        if tensor in {"q", "out"}:
            return varlen.total_q, config.num_heads, dim
        rows = (varlen.num_pages, varlen.page_size) if varlen.paged else (varlen.total_k,)
        return *rows, config.num_kv_heads, dim
    seq = config.seq_k if tensor in {"k", "v"} else config.seq_q
    heads = config.num_kv_heads if tensor in {"k", "v"} else config.num_heads
    dim = config.head_dim_v if tensor in {"v", "out"} else config.head_dim
    if config.layout == "BSE":
        return config.batch, seq, heads * dim
    return (config.batch, heads, seq, dim) if config.layout == "BHSD" else (config.batch, seq, heads, dim)


def mask_view(mask: Array, full: tuple[int, int, int, int]) -> Array:
    """Return a mask as a 4-d view that broadcasts to ``full`` = [B, H, Sq, Sk].

    A mask has 4 dimensions, each 1 or full (16 combinations); or 3, [B, Sq, Sk], each 1 or full, for all heads; or 2:
    [Sq, Sk], for all batches and heads, or, if the shape does not match that, [B, Sk], for all heads and rows.

    Raises:
        ConfigError: When its number of dimensions is different, or a size does not broadcast.
    """
    if mask.ndim == 2:
        of_batch = len(mask) not in {1, full[2]} and len(mask) == full[0]
        mask = mask[:, None, None] if of_batch else mask[None, None]
    elif mask.ndim == 3:
        mask = mask[:, None]
    if mask.ndim != 4:
        raise ConfigError(
            f"mask has shape {mask.shape}: give it 2 dimensions [Sq, Sk] or [B, Sk], 3 [B, Sq, Sk] or 4 that broadcast "
            "to [B, H, Sq, Sk]"
        )
    if any(have not in {1, want} for have, want in zip(mask.shape, full, strict=True)):
        raise ConfigError(f"a mask of shape {mask.shape} does not broadcast to [B, H, Sq, Sk] = {list(full)}")
    return mask
