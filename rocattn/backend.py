"""The interface of a backend: its operands, the methods it implements, and its answers to "can you compute this?"."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rocattn.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rocattn.config import AttentionConfig

    Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a backend, or one of its kernels, computes a config: yes, or no with its reason."""

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok


YES = Support(ok=True)
MAX_POSITION = 1 << 30
"""Sequences are shorter: kernels count positions, and the differences of two, in 32 bits."""


def length_problem(config: AttentionConfig) -> str:
    """Return why sequences are too long for 32-bit positions; "" if they are not."""
    too_long = max(config.seq_q, config.seq_k) >= MAX_POSITION
    return "positions are 32-bit: seq_q and seq_k must be below 2^30" if too_long else ""


class Operands(NamedTuple):
    """The inputs of a backend: views of the caller's arrays, and the options that carry data.

    Attributes:
        q: [B, H, Sq, D].
        k: [B, Hkv, Sk, D].
        v: [B, Hkv, Sk, Dv].
        mask: [B or 1, H or 1, Sq or 1, Sk or 1], bool (True = may attend) or floating (added to the scaled scores);
            None without one.
        alibi_slopes: [B, H], float32 (float64 if q is); None without them.
        sinks: [H], float32 (float64 if q is): one more logit per head; None without them.
    """

    q: Array
    k: Array
    v: Array
    mask: Array | None = None
    alibi_slopes: Array | None = None
    sinks: Array | None = None


class Backend(ABC):
    """One implementation of attention.

    Attributes:
        name: What users pass as ``backend=``.
        priority: Higher is chosen first among the able ones; read when an order is first needed.
        is_stand_in: Whether it runs on something in place of the hardware it is for, so that its times mean nothing.
    """

    name: str
    priority: int = 0
    is_stand_in: bool = False

    def available(self) -> Support:
        """Whether this machine can run the backend at all."""
        return YES

    @abstractmethod
    def supports(self, config: AttentionConfig) -> Support:
        """Whether the backend computes this config exactly as the contract says."""

    @abstractmethod
    def workspace_bytes(self, config: AttentionConfig) -> int:
        """Return the backend's peak allocation in bytes, inputs and outputs excluded."""

    def score_bytes(self, config: AttentionConfig) -> int:  # noqa: ARG002 - of a backend that never holds scores
        """Return the bytes of the workspace that hold scores or weights [.., Sq, Sk]; 0 unless overridden."""
        return 0

    def expect(self, kv_bytes: int) -> None:  # noqa: B027 - most have nothing to get ready
        """Prepare for a forward call whose arguments are still being checked; it may follow at once or not at all.

        Args:
            kv_bytes: The size of K in bytes, unchecked.
        """

    @abstractmethod
    def forward(self, config: AttentionConfig, operands: Operands, out: Array, lse: Array | None) -> None:
        """Write attention into ``out`` ([B, H, Sq, Dv] view) and, unless None, ``lse`` (float32 [B, H, Sq])."""

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


def checked(backend: Backend, answer: Any) -> Support:
    """Return a backend's answer, or raise ConfigError if it is not a `Support`: a bare False carries no reason."""
    if not isinstance(answer, Support):
        raise ConfigError(f"backend {backend.name!r} answers {answer!r}: it must answer a rocattn.Support")
    return answer
