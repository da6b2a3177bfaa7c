"""The backend registry: who can run a config, who cannot and why, and who is chosen."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rocattn.errors import ConfigError, NoBackendError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from rocattn.config import AttentionConfig
    from rocattn.layouts import Operands

    Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Support:
    """A backend's answer: yes, or no with its reason."""

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok


YES = Support(ok=True)


class Backend(ABC):
    """One implementation of attention.

    Attributes:
        name: What users pass as ``backend=``.
        priority: Higher is chosen first among the able ones.
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
        """Return the memory the backend allocates at its peak beside inputs and outputs, in bytes."""

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


class BackendRegistry:
    """Backends by name, with an optional default; safe to use from several threads."""

    def __init__(self) -> None:
        self._backends: dict[str, Backend] = {}
        self._default: str | None = None
        self._lock = threading.Lock()

    def register(self, backend: Backend) -> Backend:
        """Add a backend, or raise ConfigError if its name is taken; returns it."""
        with self._lock:
            if backend.name in self._backends:
                raise ConfigError(f"a backend named {backend.name!r} is registered already")
            self._backends[backend.name] = backend
        return backend

    def unregister(self, name: str) -> None:
        """Remove a backend, and the default if it was that one."""
        with self._lock:
            self._backends.pop(name, None)
            self._default = None if self._default == name else self._default

    def __iter__(self) -> Iterator[Backend]:
        """Go through the backends, highest priority first."""
        return iter(sorted(self._backends.values(), key=lambda b: (-b.priority, b.name)))

    def get(self, name: str) -> Backend:
        """Return the backend of that name.

        Raises:
            NoBackendError: When there is none; the message lists the names.
        """
        try:
            return self._backends[name]
        except KeyError:
            known = ", ".join(b.name for b in self) or "none"
            raise NoBackendError(f"no backend is named {name!r}; registered: {known}", {name: "unknown"}) from None

    @property
    def default(self) -> str | None:
        """The name `select` tries first, or None."""
        return self._default

    def set_default(self, name: str | None) -> None:
        """Make `select` try this backend first; None goes back to the fastest."""
        if name is not None:
            self.get(name)
        self._default = name

    def supports(self, backend: Backend, config: AttentionConfig) -> Support:
        """Say whether a backend is available here and supports the config."""
        return backend.available() and backend.supports(config)

    def select(self, config: AttentionConfig, name: str | None = None) -> Backend:
        """Return the backend for a config: the named one, else the default if able, else the fastest able one.

        Raises:
            NoBackendError: When the named one, or every one, is unable; the message gives each one's reason.
        """
        if name is not None:
            backend = self.get(name)
            answer = self.supports(backend, config)
            if not answer:
                message = f"backend {name!r} cannot run {config.label}: {answer.reason}"
                raise NoBackendError(message, {name: answer.reason})
            return backend
        order = sorted(self, key=lambda b: b.name != self._default)
        reasons: dict[str, str] = {}
        for backend in order:
            answer = self.supports(backend, config)
            if answer:
                return backend
            reasons[backend.name] = answer.reason
        listed = "; ".join(f"{k}: {v}" for k, v in reasons.items()) or "no backend is registered"
        raise NoBackendError(f"no backend can run {config.label}: {listed}", reasons)


BACKENDS = BackendRegistry()
"""The process-wide registry that `rocattn.attention` selects from; importing `rocattn.backends` fills it."""
