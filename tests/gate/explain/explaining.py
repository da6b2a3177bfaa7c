"""A small project on both sides, and worse benchmarks of it to explain."""

import sys

from rocattn_profiling.asv.launch import Launcher
from rocattn_profiling.gate.context import Context
from rocattn_profiling.gate.explain.causes import add_causes
from rocattn_profiling.gate.model import Entry
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.rule.pairs import Decision
from rocattn_profiling.gate.run import plugin_of

LIBRARY = {
    "tinylib/__init__.py": "from .work import work\n",
    "tinylib/work.py": "from tinylib.parts import part\n\n\ndef work(n):\n    for _ in range(2):\n        part(n)\n",
    "tinylib/parts.py": "def part(n):\n    return sum(range(n))\n\n\ndef unused():\n    return 1\n",
    "tinylib/apart.py": "def apart():\n    return 2\n",
}
SUITE = """\
import tinylib


class Suite:
    params = [[100, 20000]]
    param_names = ["n"]

    def setup(self, n):
        self.work = tinylib.work

    def time_work(self, n):
        self.work(n)


def time_needs_old():
    tinylib.old()


def setup_cache_made():
    return 7


class Cached:
    def setup_cache(self):
        return 20000

    def time_cached(self, n):
        tinylib.work(n)
"""
LABEL = "bench_work.Suite.time_work(20000)"


def projects(tmp_path):
    """Return a function that makes a context of two trees: the library, and it with some files changed in head."""

    def make(changed, differing=None, trees=True):
        for side, files in (("base", LIBRARY), ("head", LIBRARY | changed)):
            for path, text in files.items():
                if text is not None:
                    target = tmp_path / side / path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_text(text)
            (tmp_path / side / "benchmarks").mkdir()
            (tmp_path / side / "benchmarks/__init__.py").write_text("")
            (tmp_path / side / "benchmarks/bench_work.py").write_text(SUITE)
        sides = {side: tmp_path / side for side in ("base", "head")}
        launchers = {
            side: Launcher(
                sys.executable, sides["head"] / "benchmarks", tmp_path / "scratch" / side, {"PYTHONPATH": str(tree)}
            )
            for side, tree in sides.items()
        }
        return Context(
            repo=sides["head"], out=tmp_path / "out", trees=sides if trees else {}, revisions={}, launchers=launchers,
            differing=differing or {}, say=[].append, options=Options(quick=True),
        )  # fmt: skip

    return make


def worse(label=LABEL, status="regression", metric="time", **values):
    """A worse entry."""
    decision = Decision(id=label, verdict=status, ratio=2.0) if status == "regression" else None
    return Entry(
        label=label, name=label.partition("(")[0], unit="ns", metric=metric, status=status, decision=decision,
        base=1000, head=2000, **values,
    )  # fmt: skip


def explained(context, *entries):
    """The entries with their causes."""
    return add_causes(entries or (worse(),), context, plugin_of(context))


def places(entry):
    """The (path, line) of an entry's causes in sources."""
    return [(one.location.path, one.location.line) for one in entry.causes if one.kind == "source" and one.location]
