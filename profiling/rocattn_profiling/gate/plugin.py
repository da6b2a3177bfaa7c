"""Plug-ins extend the gate for one project: exact metrics, causes, and preparation before the launches.

A project's plug-in is the class ``Plugin`` in the gated repository's file ``.rocattn/gate.py`` or package
``.rocattn/gate/``, derived from the class here. Head's is used. docs/gate-your-project.md shows one of ten lines.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn.errors import RocattnError
from rocattn_profiling.gate.context import Context
from rocattn_profiling.gate.model import Cause, Entry, Status, decision_of

if TYPE_CHECKING:
    from rocattn_profiling.asv.launch import Case
    from rocattn_profiling.base.reasons import Reason

FILE, PACKAGE = ".rocattn/gate.py", ".rocattn/gate/__init__.py"
_MODULE = "rocattn_gate_plugin"


class PluginError(RocattnError):
    """Raised if a project's plug-in cannot be loaded or fails; the message is one line."""


class Plugin:
    """Base class of plug-ins; adds nothing to the gate.

    Args:
        context: Both sides, checked out and built; ``context.changes`` are the files that differ.
    """

    def __init__(self, context: Context) -> None:
        self.context = context

    @classmethod
    def unmeasurable(cls, patterns: Sequence[str]) -> Reason[str] | None:  # noqa: ARG003 - as in `causes`
        """Return why a run with these ``--bench`` patterns could measure nothing; called before anything is built."""
        return None

    def prepare(self, cases: Sequence[Case]) -> None:
        """Prepare these cases outside the timed launches; called before the first launch."""

    def entries(self) -> list[Entry]:
        """Return the entries of exact metrics, which are computed for both sides and not timed."""
        return []

    def causes(self, entry: Entry) -> list[Cause]:  # noqa: ARG002 - for those who derive from this
        """Return the differences on a worse entry's path, likeliest cause first."""
        return []


def load_plugin(tree: Path) -> type[Plugin]:
    """Return a checkout's plug-in; `Plugin` if it has none.

    Modules of a plug-in package use relative imports: ``from .sizes import compare``.

    Raises:
        PluginError: It cannot be loaded.
    """
    file = next((name for name in (FILE, PACKAGE) if (tree / name).is_file()), None)
    if file is None:
        return Plugin
    for name in [name for name in sys.modules if name.partition(".")[0] == _MODULE]:
        del sys.modules[name]  # another checkout's
    spec = importlib.util.spec_from_file_location(_MODULE, tree / file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[_MODULE] = module = importlib.util.module_from_spec(spec)
    with _one_line(file):
        spec.loader.exec_module(module)
        plugin = module.Plugin
    if not (isinstance(plugin, type) and issubclass(plugin, Plugin)):
        raise PluginError(f"{file}: its class Plugin must be derived from rocattn_profiling.gate.plugin.Plugin")
    return plugin


@contextmanager
def plugin_errors(plugin: Plugin | type[Plugin]) -> Iterator[None]:
    """Turn any exception from a project's plug-in into a one-line error.

    Raises:
        PluginError: Names the file and the exception.
    """
    if plugin.__module__.partition(".")[0] != _MODULE:
        yield
        return
    with _one_line(PACKAGE if hasattr(sys.modules[_MODULE], "__path__") else FILE):
        yield


@contextmanager
def _one_line(file: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise PluginError(f"{file} cannot be used: {type(error).__name__}: {error}") from error


def exact_entry(
    label: str,
    status: Status,
    base: float,
    head: float,
    *,
    reason: str,
    metric: str = "exact",
    unit: str = "",
    arch: str = "",
    causes: Sequence[Cause] = (),
) -> Entry:
    """Return the entry of a number that is known exactly for both sides.

    Args:
        label: Identifies the number; must be the same in every run, since waivers refer to it.
        status: "regression", "improvement" or "pass", or why it is not judged; see `Entry`.
        base: The number on base.
        head: The number on head.
        reason: Why it has this status, one sentence.
        metric: "exact", "audit", "plan" or "workspace".
        unit: The numbers' unit.
        arch: The gfx target, if the number is specific to one.
        causes: The differences; `Plugin.causes` can add more.
    """
    decision = decision_of(label, status, head / base, reason) if base and head else None
    return Entry(
        label=label, name=label, metric=metric, arch=arch, status=status, unit=unit, base=base, head=head,
        reason=reason, decision=decision, causes=list(causes),
    )  # fmt: skip
