"""The backend registry: which backends can run a config, why others cannot, and which is selected."""

from __future__ import annotations

import sys
import threading
import warnings
from typing import TYPE_CHECKING

from rocattn import settings
from rocattn.backend import Backend, Support, checked, support
from rocattn.config import AttentionConfig
from rocattn.errors import BackendWarning, ConfigError, NoBackendError, RocattnError
from rocattn.notices import quiet

if TYPE_CHECKING:
    from collections.abc import Iterator


class BackendRegistry:
    """Backends by name, with an optional default; safe to use from several threads."""

    def __init__(self) -> None:
        self._backends: dict[str, Backend] = {}
        self._order: tuple[Backend, ...] | None = None  # by priority; None until needed
        self._default: str | None = None
        self._said: set[str] = set()  # names of broken backends already warned about
        self._last: str | None = None  # name of the backend that `select` last returned
        self._lock = threading.Lock()

    def register(self, backend: Backend) -> Backend:
        """Add a backend and return it; raise ConfigError if its name is taken."""
        with self._lock:
            if backend.name in self._backends:
                raise ConfigError(f"a backend named {backend.name!r} is registered already")
            self._backends[backend.name] = backend
            self._order = None
        return backend

    def unregister(self, name: str) -> None:
        """Remove a backend, and clear the default if it was this one."""
        with self._lock:
            self._backends.pop(name, None)
            self._order = None
            self._default = None if self._default == name else self._default

    @property
    def state(self) -> tuple[tuple[Backend, ...], str | None] | None:
        """The state that `select` depends on: all backends in order, and the default; None before there is an order."""
        return None if self._order is None else (self._order, self._default)

    def _by_priority(self) -> tuple[Backend, ...]:
        if (order := self._order) is not None:
            return order
        with self._lock:
            backends = tuple(self._backends.values())
        # Only when needed, and not under the lock: a priority may have to look for a GPU.
        order = tuple(sorted(backends, key=lambda b: (-b.priority, b.name)))
        with self._lock:
            if backends == tuple(self._backends.values()):
                self._order = order
        return order

    def __iter__(self) -> Iterator[Backend]:
        """Iterate over the backends, highest priority first."""
        return iter(self._by_priority())

    def get(self, name: str) -> Backend:
        """Return the backend with this name.

        Raises:
            NoBackendError: When there is none; the message lists the names.
        """
        backend = self._backends.get(name) if isinstance(name, str) else None
        if backend is None:
            known = ", ".join(b.name for b in self) or "none"
            raise NoBackendError(f"no backend is named {name!r}; registered: {known}", {str(name): "unknown"})
        return backend

    def peek(self, name: str) -> Backend | None:
        """Return the backend with this name, or None."""
        return self._backends.get(name)

    @property
    def default(self) -> str | None:
        """The name `select` tries first, or None."""
        return self._default

    def set_default(self, name: str | None) -> None:
        """Make `select` try this backend first; None restores the priorities."""
        if name is not None:
            self.get(name)
        self._default = name

    def supports(self, backend: Backend, config: AttentionConfig) -> Support:
        """Return whether a backend is available here and supports the config.

        Raises:
            ConfigError: When its answer is not a `Support`.
            SettingError: When one of the backend's variables is invalid.
        """
        return checked(backend, backend.available() and support(backend, config))

    def expect(self, name: str | None, kv_bytes: int) -> None:
        """Let the named backend, or else that of the last call, prepare for a call (`Backend.expect`)."""
        backend = self.peek(name if isinstance(name, str) else self._last or "")
        if backend is not None:
            backend.expect(kv_bytes)

    def select(self, config: AttentionConfig, name: str | None = None) -> Backend:
        """Return the backend for a config: the named one, else the default or the first by priority that can run it.

        A broken backend that would have been selected causes one `BackendWarning` per process.

        Raises:
            NoBackendError: When the named one, or every one, cannot run it; the message gives each one's reason.
            SettingError: When an environment variable is invalid; for a named backend, one of its own.
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
        settings.check()
        order = self._by_priority()
        if self._default is not None:
            order = tuple(sorted(order, key=lambda b: b.name != self._default))
        reasons: dict[str, str] = {}
        broken: list[Backend] = []
        for backend in order:
            answer = self.supports(backend, config)
            if answer:
                for other in broken:
                    self._warn(other, reasons[other.name], backend)
                return backend
            if answer.broken and backend.name not in self._said and _computes(backend, config):
                broken.append(backend)
            reasons[backend.name] = answer.reason
        listed = "; ".join(f"{k}: {v}" for k, v in reasons.items()) or "no backend is registered"
        raise NoBackendError(f"no backend can run {config.label}: {listed}", reasons)

    def _warn(self, broken: Backend, reason: str, chosen: Backend) -> None:
        """Warn once that a different backend computes than the one that would have been selected."""
        cost = f", {chosen.cost}" if chosen.cost else ""
        text = f"the backend {broken.name} does not work here, so {chosen.name} computes{cost}: {reason}"
        if not quiet():
            warnings.warn(f"{text} (ROCATTN_QUIET=1 silences this)", BackendWarning, stacklevel=_users_level())
        self._said.add(broken.name)  # afterwards: if the warning is turned into an error, every call raises it


def _computes(backend: Backend, config: AttentionConfig) -> bool:
    """Return whether a backend that does not work here would otherwise compute a config."""
    try:
        return bool(support(backend, config))
    except RocattnError:  # it queries the missing device
        return True


def _users_level() -> int:
    """Return the stack level, for the caller's warning, of the first line outside this package."""
    level, frame = 1, sys._getframe(1)  # noqa: SLF001 - like `warnings`
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "rocattn":
        level, frame = level + 1, frame.f_back
    return level


BACKENDS = BackendRegistry()
"""The process-wide registry that `rocattn.attention` selects from; importing `rocattn.backends` fills it."""
