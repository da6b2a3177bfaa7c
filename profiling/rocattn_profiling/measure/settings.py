"""The settings of a bench, and when two runs count as the same measurement."""

from __future__ import annotations

import hashlib
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

import rocattn
from rocattn.errors import RocattnError, ToolchainError
from rocattn.sources import kernel_root
from rocattn_profiling.base.files import DocumentError, decoded
from rocattn_profiling.measure.records import Commit, Machine


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How to measure.

    Attributes:
        launches: Fresh processes per config.
        min_samples, max_samples: A backend's samples per launch.
        warmup_s, budget_s: A backend's time for warm-up and for samples per launch, in seconds.
        time_limit_s: A config estimated to take longer is skipped; a launch that takes over twice this is killed.
        threads: Threads for BLAS and kernels; 0 is all available cores.
        data, seed: How inputs are made.
        backend_module: Module that registers further backends when imported; "" for none.
        warm: Keep a call's inputs in the caches, also with few queries (`Record.caches`).
        quick: Measure the machine's ceilings in about a second.
    """

    launches: int = 3
    min_samples: int = 5
    max_samples: int = 50
    warmup_s: float = 0.1
    budget_s: float = 1.0
    time_limit_s: float = 60.0
    threads: int = 0
    data: str = "normal"
    seed: int = 0
    backend_module: str = ""
    warm: bool = False
    quick: bool = False

    @classmethod
    def for_quick(cls, **changes: Any) -> Settings:
        """Return the settings of ``--quick``: as many launches (the unit of every interval), but short ones."""
        values = {"min_samples": 2, "max_samples": 20, "warmup_s": 0.03, "budget_s": 0.2}
        return cls(**{**values, "quick": True, **changes})


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The properties that all records of a file share.

    Attributes:
        commit, machine: As in the records; no machine for a fleet, whose records are from many.
        code: Hash of the measured source text, which distinguishes two states of a dirty tree.
        settings: The part of `Settings` that determines the meaning of a sample.
    """

    commit: Commit | None
    code: str
    machine: Machine | None
    settings: dict[str, Any]

    @classmethod
    def of(cls, commit: Commit | None, machine: Machine | None, settings: Settings) -> Identity:
        """Return the identity of a run that starts now."""
        values = msgspec.to_builtins(settings)
        for name in ("time_limit_s", "quick"):  # they select what is measured, not the meaning of a sample
            del values[name]
        return cls(commit=commit, code=code_hash(settings.backend_module), machine=machine, settings=values)

    @classmethod
    def load(cls, path: Path) -> Identity | None:
        """Read an identity; None if there is none, or it is unreadable."""
        try:
            return decoded(path.read_bytes(), cls)
        except (OSError, DocumentError):
            return None

    def difference(self, old: Identity | None) -> str:
        """Return how an older run's records differ from this run; "" if they do not."""
        if old is None:
            return "an unknown commit and machine"
        if self.machine != old.machine:
            m = old.machine
            if m is None:
                return "a fleet"
            return (
                f"another machine ({m.name}, {m.os}, Python {m.python}, numpy {m.numpy}, {m.compiler or 'no compiler'})"
            )
        if (self.commit and self.commit.sha) != (old.commit and old.commit.sha):
            return f"commit {old.commit.sha[:9]}" if old.commit else "a tree outside git"
        if self.code != old.code:
            return "another state of the source"
        changed = [f"{k} {v!r}" for k, v in old.settings.items() if self.settings.get(k) != v]
        return f"other settings ({', '.join(changed)})" if changed else ""


def import_backends(module: str) -> list[str]:
    """Import rocattn's backends and, if named, a module that registers more; return the names it added.

    The module may be in the working directory, as for ``python -m`` (a console script's search path starts with bin/).
    It may also be given as a file.

    Raises:
        RocattnError: The module cannot be imported; the message is one line.
    """
    from rocattn.backends import BACKENDS

    before = {backend.name for backend in BACKENDS}
    if module:
        try:
            _imported(module)
        except (Exception, SystemExit) as error:  # a script may exit when it is imported, with its own status
            text = " ".join(str(error).split())
            raise RocattnError(
                f"cannot import the backend module {module!r}: {type(error).__name__}: {text}"
            ) from error
    return sorted(backend.name for backend in BACKENDS if backend.name not in before)


def _imported(module: str) -> ModuleType:
    path = Path(module).resolve()
    folder, name = (path.parent, path.stem) if module.endswith(".py") else (Path.cwd(), module)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    found = import_module(name)
    file = getattr(found, "__file__", None)  # built-in modules have none
    if module.endswith(".py") and Path(file or "").resolve() != path:
        raise ImportError(f"{path.name} is hidden by {file or 'a built-in module'}: rename it")
    return found


def code_hash(module: str = "") -> str:
    """Return a hash of the library's and the kernels' files, and of one more module's file."""
    files = [Path(file)] if module and (file := _imported(module).__file__) else []
    files.append(Path(__file__).parents[1] / "workloads/modules.py")  # timed, like the library
    roots = [Path(str(rocattn.__file__)).parent]
    with suppress(ToolchainError):  # without kernel sources, backends that need none can still be benched
        roots.append(kernel_root())
    for root in roots:
        files += [path for path in sorted(root.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
