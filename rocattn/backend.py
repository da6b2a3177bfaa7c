"""The interface of a backend: its operands, the methods it implements, and its answers to "can you compute this?"."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rocattn.config import AttentionConfig
from rocattn.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a backend, or one of its kernels, computes a config, with the reason if not.

    Attributes:
        ok: Yes or no.
        reason: Why not, with the remedy.
        broken: Not available although this machine has the hardware for it (a GPU, for example):
            `BackendRegistry.select` warns if it has to skip the backend.
    """

    ok: bool
    reason: str = ""
    broken: bool = False

    def __bool__(self) -> bool:
        return self.ok


YES = Support(ok=True)
_ROWS_AT_ONCE = 1 << 15  # limits the copies of a batch of equally long sequences
MAX_POSITION = 1 << 30
"""Sequences are shorter than this: kernels compute positions and their differences in 32 bits."""


def length_problem(config: AttentionConfig) -> str:
    """Return why sequences are too long for 32-bit positions, or ""."""
    too_long = max(config.seq_q, config.seq_k) >= MAX_POSITION
    return "positions are 32-bit: seq_q and seq_k must be below 2^30" if too_long else ""


class Operands(NamedTuple):
    """The inputs of a backend: views of the caller's arrays, and the options with data.

    Attributes:
        q: [B, H, Sq, D].
        k: [B, Hkv, Sk, D].
        v: [B, Hkv, Sk, Dv].
        mask: [B or 1, H or 1, Sq or 1, Sk or 1], bool (True = may attend) or floating (added to the scaled scores);
            None without one.
        alibi_slopes: [B, H], float32 (float64 if q is); None without them.
        sinks: [H], float32 (float64 if q is): an additional logit per head; None without them.
        k_scale: [B, Hkv], float32 (float64 if q is), with any strides: factor of 8-bit k; None for 1.
        v_scale: The same for v.
        q_scale: The same for 8-bit q, shared by all query heads of a KV head.
        dlse: Backward: the gradient of the LSE, float32 [B, H, Sq]; None for none.
        dropout_key: uint32 [2], from `rocattn.dropout.dropout_key`; None without dropout.
    """

    q: Array
    k: Array
    v: Array
    mask: Array | None = None
    alibi_slopes: Array | None = None
    sinks: Array | None = None
    k_scale: Array | None = None
    v_scale: Array | None = None
    q_scale: Array | None = None
    dlse: Array | None = None
    dropout_key: Array | None = None


@dataclass(frozen=True, slots=True)
class Sequences:
    """Where the sequences of `rocattn.attention_varlen` are, for operands whose batch axis is 1 or the pages.

    The `Operands` are then q [1, H, total_q, D], k and v [1, Hkv, total_k, D], or with pages
    [num_pages, Hkv, page_size, D]; out and lse are [1, H, total_q, Dv] and [1, H, total_q].

    Attributes:
        cu_seqlens_q: int32 [B + 1], contiguous: sequence b has rows cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1 of q.
        cu_seqlens_k: The same for k and v; None with pages.
        seqlens_k: int32 [B], contiguous: number of keys per sequence; None: all rows up to the next sequence.
        block_table: int32 [B, max_pages], contiguous: key j of sequence b is row j % page_size of page
            block_table[b, j // page_size]; None without pages.
    """

    cu_seqlens_q: Array
    cu_seqlens_k: Array | None = None
    seqlens_k: Array | None = None
    block_table: Array | None = None

    @property
    def count(self) -> int:
        """B."""
        return len(self.cu_seqlens_q) - 1

    def queries(self, index: int) -> slice:
        """Return a sequence's rows of q."""
        return slice(int(self.cu_seqlens_q[index]), int(self.cu_seqlens_q[index + 1]))

    def keys(self, index: int) -> slice:
        """Return a sequence's rows of k and v; with pages, as if its pages were consecutive."""
        first = 0 if self.cu_seqlens_k is None else int(self.cu_seqlens_k[index])
        if self.seqlens_k is not None:
            return slice(first, first + int(self.seqlens_k[index]))
        return slice(first, 0 if self.cu_seqlens_k is None else int(self.cu_seqlens_k[index + 1]))

    def alike(self) -> Iterator[tuple[Array, Array, Array]]:
        """Yield groups of equally long sequences with query rows: indices of their rows and keys, and their numbers.

        Not for pages. A group of several sequences has at most `_ROWS_AT_ONCE` rows or keys: ([B, Sq], [B, Sk], [B]).
        """
        assert self.cu_seqlens_k is not None
        counts_k = np.diff(self.cu_seqlens_k) if self.seqlens_k is None else self.seqlens_k
        lengths = np.stack([np.diff(self.cu_seqlens_q), counts_k], axis=1)
        different, which = np.unique(lengths, axis=0, return_inverse=True)
        order = np.argsort(which.ravel(), kind="stable")
        ends = np.cumsum(np.bincount(which.ravel(), minlength=len(different)))
        for (seq_q, seq_k), group in zip(different.tolist(), np.split(order, ends[:-1]), strict=True):
            some = max(1, _ROWS_AT_ONCE // max(seq_q, seq_k, 1))
            for first in range(0, len(group) if seq_q else 0, some):
                part = group[first : first + some]
                yield (
                    self.cu_seqlens_q[part, None] + np.arange(seq_q), self.cu_seqlens_k[part, None] + np.arange(seq_k),
                    part,
                )  # fmt: skip

    def alone(self, config: AttentionConfig, operands: Operands, index: int) -> tuple[AttentionConfig, Operands]:
        """Return one sequence's problem as `Backend.forward` takes it: views, except for pages, which are copied."""
        rows, keys = self.queries(index), self.keys(index)
        k, v = operands.k, operands.v
        if self.block_table is not None:
            size = k.shape[2]
            pages = self.block_table[index, : -(-keys.stop // size)]
            k, v = (x[pages].swapaxes(0, 1).reshape(1, x.shape[1], len(pages) * size, x.shape[3]) for x in (k, v))
        per_sequence = (operands.alibi_slopes, operands.k_scale, operands.v_scale, operands.q_scale)
        slopes, *scales = (None if x is None else x[index : index + 1] for x in per_sequence)
        single = config.replace(batch=1, seq_q=rows.stop - rows.start, seq_k=keys.stop - keys.start, varlen=None)
        q = operands.q[:, :, rows]
        alone = Operands(q, k[:, :, keys], v[:, :, keys], None, slopes, operands.sinks, *scales)
        return single, alone if operands.dlse is None else alone._replace(dlse=operands.dlse[:, :, rows])


class Backend(ABC):
    """An implementation of attention.

    Attributes:
        name: What users pass as ``backend=``.
        priority: The supporting backend with the highest priority is chosen; read when an order is first needed.
        is_stand_in: Whether it runs on a substitute for its hardware, so that its times mean nothing.
        takes_lse_gradient: Whether `supports` handles configs with `AttentionConfig.lse_gradient`.
        takes_dropout: Whether `supports` handles configs with `AttentionConfig.dropout_p`.
        takes_fp8: Whether `supports` handles configs with 8-bit q, k or v (`AttentionConfig.kv_dtype`).
        cost: Short description of the cost of falling back to it from a broken faster backend; "" for none.
    """

    name: str
    priority: int = 0
    is_stand_in: bool = False
    takes_dropout: bool = False
    takes_fp8: bool = False
    takes_lse_gradient: bool = False
    cost: str = ""

    def available(self) -> Support:
        """Return whether this machine can run the backend at all.

        Raises:
            SettingError: When one of the backend's environment variables is invalid.
        """
        return YES

    @abstractmethod
    def supports(self, config: AttentionConfig) -> Support:
        """Return whether the backend computes this config exactly as specified."""

    @abstractmethod
    def workspace_bytes(self, config: AttentionConfig) -> int:
        """Return the backend's peak allocation in bytes, without inputs and outputs."""

    def score_bytes(self, config: AttentionConfig) -> int:  # noqa: ARG002 - for overrides
        """Return the workspace's bytes for scores or weights [.., Sq, Sk]; 0 unless overridden."""
        return 0

    def expect(self, kv_bytes: int) -> None:  # noqa: B027 - most have nothing to prepare
        """Prepare for a forward call whose arguments are still being checked; the call may never come.

        Args:
            kv_bytes: The size of K in bytes, unchecked.
        """

    @abstractmethod
    def forward(self, config: AttentionConfig, operands: Operands, out: Array, lse: Array | None) -> None:
        """Write attention into ``out`` ([B, H, Sq, Dv] view) and, unless None, ``lse`` (float32 [B, H, Sq])."""

    def supports_varlen(self, config: AttentionConfig) -> Support:
        """Return whether the backend computes a config with ``varlen``; by default, whether its longest sequence."""
        return self.supports(config.replace(batch=1, varlen=None))

    def forward_varlen(
        self, config: AttentionConfig, operands: Operands, sequences: Sequences, out: Array, lse: Array | None
    ) -> None:
        """Like `forward`, for sequences in packed rows or pages; one at a time unless overridden."""
        for index in range(sequences.count):
            rows = sequences.queries(index)
            if rows.start < rows.stop:
                single, inputs = sequences.alone(config, operands, index)
                self.forward(single, inputs, out[:, :, rows], None if lse is None else lse[:, :, rows])

    def backward_varlen(
        self, config: AttentionConfig, operands: Operands, sequences: Sequences,
        dout: Array, out: Array, lse: Array, dq: Array, dk: Array, dv: Array,
    ) -> None:  # fmt: skip
        """Like `backward`, for sequences in packed rows, never pages; equally long ones form a batch."""
        dk[...], dv[...] = 0, 0  # for rows that no query sees
        for rows, keys, group in sequences.alike():
            if len(group) == 1:  # views are sufficient
                index = int(group[0])
                own, seen = sequences.queries(index), sequences.keys(index)
                single, inputs = sequences.alone(config, operands, index)
                self.backward(
                    single, inputs, dout[:, :, own], out[:, :, own], lse[:, :, own], dq[:, :, own], dk[:, :, seen],
                    dv[:, :, seen],
                )  # fmt: skip
                continue
            several = config.replace(batch=len(group), seq_q=rows.shape[1], seq_k=keys.shape[1], varlen=None)
            slopes = None if operands.alibi_slopes is None else operands.alibi_slopes[group]
            dlse = None if operands.dlse is None else _batched(operands.dlse, rows)
            q, k, v = (_batched(x, at) for x, at in zip(operands[:3], (rows, keys, keys), strict=True))
            inputs = Operands(q, k, v, None, slopes, operands.sinks, dlse=dlse)
            gradients = [np.empty_like(x) for x in (q, k, v)]
            self.backward(several, inputs, *(_batched(x, rows) for x in (dout, out, lse)), *gradients)
            for packed, at, gradient in zip((dq, dk, dv), (rows, keys, keys), gradients, strict=True):
                packed[0].swapaxes(0, 1)[at] = gradient.swapaxes(1, 2)

    @abstractmethod
    def backward(
        self,
        config: AttentionConfig,
        operands: Operands,
        dout: Array,
        out: Array,
        lse: Array,
        dq: Array,
        dk: Array,
        dv: Array,
    ) -> None:
        """Write the gradients into ``dq``, ``dk``, ``dv`` ([B, H or Hkv, S, D or Dv] views)."""


def _batched(packed: Array, at: Array) -> Array:
    """Copy rows of a packed array, [1, H, total, …], into a batch of sequences, [B, H, S, …].

    Args:
        packed: The array.
        at: Indices of the rows, [B, S].
    """
    rows: Array = packed[0].swapaxes(0, 1)[at]
    return rows.swapaxes(1, 2)


def support(backend: Backend, config: AttentionConfig) -> Support:
    """Return a backend's answer for a config, with or without ``varlen``.

    Raises:
        ConfigError: When the answer is not a `Support`.
    """
    if config.kv_dtype is not None and not backend.takes_fp8:
        return Support(ok=False, reason=f"{backend.name} takes no 8-bit keys and values, here {config.kv_dtype}")
    if config.lse_gradient and not backend.takes_lse_gradient:
        return Support(ok=False, reason=f"{backend.name} has no gradient of the LSE: use cpu or cpu-flash")
    if config.dropout_p and not backend.takes_dropout:
        return Support(ok=False, reason=f"{backend.name} has no dropout: use cpu, cpu-flash or gpu")
    return checked(backend, (backend.supports if config.varlen is None else backend.supports_varlen)(config))


def checked(backend: Backend, answer: Any) -> Support:
    """Return a backend's answer, or raise ConfigError if it is not a `Support`: a bare False gives no reason."""
    if not isinstance(answer, Support):
        raise ConfigError(f"backend {backend.name!r} answers {answer!r}: it must answer a rocattn.Support")
    return answer
