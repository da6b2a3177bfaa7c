"""The backend registry: which backends can run a config, why others cannot, and which one is selected."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from rocattn.backend import checked, support
from rocattn.errors import ConfigError, NoBackendError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocattn.backend import Backend, Support
    from rocattn.config import AttentionConfig


class BackendRegistry:
    """Backends by name, with an optional default; safe to use from several threads."""

    def __init__(self) -> None:
        self._backends: dict[str, Backend] = {}
        self._order: tuple[Backend, ...] | None = None  # of their priorities; None until it is asked for
        self._default: str | None = None
        self._last: str | None = None  # the name of what `select` returned
        self._lock = threading.Lock()

    def register(self, backend: Backend) -> Backend:
        """Add a backend, or raise ConfigError if its name is taken; returns it."""
        with self._lock:
            if backend.name in self._backends:
                raise ConfigError(f"a backend named {backend.name!r} is registered already")
            self._backends[backend.name] = backend
            self._order = None
        return backend

    def unregister(self, name: str) -> None:
        """Remove a backend, and the default if it was that one."""
        with self._lock:
            self._backends.pop(name, None)
            self._order = None
            self._default = None if self._default == name else self._default

    def _by_priority(self) -> tuple[Backend, ...]:
        if (order := self._order) is not None:
            return order
        with self._lock:
            backends = tuple(self._backends.values())
        # Not before it is needed, nor under the lock: a priority may depend on a GPU being there, and looks for one.
        order = tuple(sorted(backends, key=lambda b: (-b.priority, b.name)))
        with self._lock:
            if backends == tuple(self._backends.values()):
                self._order = order
        return order

    def __iter__(self) -> Iterator[Backend]:
        """Go through the backends, highest priority first."""
        return iter(self._by_priority())

    def get(self, name: str) -> Backend:
        """Return the backend of that name.

        Raises:
            NoBackendError: When there is none; the message lists the names.
        """
        backend = self._backends.get(name) if isinstance(name, str) else None
        if backend is None:
            known = ", ".join(b.name for b in self) or "none"
            raise NoBackendError(f"no backend is named {name!r}; registered: {known}", {str(name): "unknown"})
        return backend

    @property
    def default(self) -> str | None:
        """The name `select` tries first, or None."""
        return self._default

    def set_default(self, name: str | None) -> None:
        """Make `select` try this backend first; None goes back to priorities."""
        if name is not None:
            self.get(name)
        self._default = name

    def supports(self, backend: Backend, config: AttentionConfig) -> Support:
        """Say whether a backend is available here and supports the config.

        Raises:
            ConfigError: When it answers something else than a `Support`.
        """
        return checked(backend, backend.available() and support(backend, config))

    def expect(self, name: str | None, kv_bytes: int) -> None:
        """Let the named backend, else the one of the last call, get ready for a call (`Backend.expect`)."""
        backend = self._backends.get(name if isinstance(name, str) else self._last or "")
        if backend is not None:
            backend.expect(kv_bytes)

    def select(self, config: AttentionConfig, name: str | None = None) -> Backend:
        """Return the backend for a config: the named one, else the default if able, else the first able by priority.

        Raises:
            NoBackendError: When the named one, or every one, is unable; the message gives each one's reason.
        """
        backend = self._first_able(config) if name is None else self._named(config, name)
        self._last = backend.name
        return backend

    def _named(self, config: AttentionConfig, name: str) -> Backend:
        backend = self.get(name)
        answer = self.supports(backend, config)
        if not answer:
            message = f"backend {name!r} cannot run {config.label}: {answer.reason}"
            raise NoBackendError(message, {name: answer.reason})
        return backend

    def _first_able(self, config: AttentionConfig) -> Backend:
        order = self._by_priority()
        if self._default is not None:
            order = tuple(sorted(order, key=lambda b: b.name != self._default))
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
