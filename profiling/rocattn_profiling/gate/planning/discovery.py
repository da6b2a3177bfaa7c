"""What a project has to measure where nobody names it: ``gate init``, ``run`` and ``selftest`` take the same."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rocattn_profiling.gate.planning.listing import from_source
from rocattn_profiling.revisions import git as revisions
from rocattn_profiling.revisions.asv_config import FILE, USUAL_FOLDERS, UnknownNameError, usual_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NAMED = 4  # folders in an error
# Before a file is parsed: what a benchmark of each kind cannot do without.
_MAY_HOLD = {"asv": re.compile(rb"def (time|timeraw|mem|peakmem|track)_"), "pytest": re.compile(rb"\bbenchmark\b")}
_TESTS = ("*test*.py", "*bench*.py")


class Discovery(NamedTuple):
    """What is measured.

    Attributes:
        suite: A folder of asv benchmarks, relative to the tree; None for the tree's asv.conf.json, and for tests.
        tests: Folders and files of tests with pytest-benchmark, likewise.
    """

    suite: str | None = None
    tests: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """The same in words; empty for an asv.conf.json."""
        if self.tests:
            return f"the pytest-benchmark tests in {' and '.join(self.tests)}"
        return f"the asv benchmarks in {self.suite}" if self.suite else ""

    @property
    def line(self) -> str:
        """What to tell who named nothing; empty for an asv.conf.json."""
        return f"no {FILE}: measuring {self.what}; --suite or --pytest names others" if self.what else ""


def discover(tree: Path) -> Discovery:
    """Return what a tree has: an asv.conf.json, else a usual folder of asv benchmarks, else pytest-benchmark tests.

    Raises:
        UnknownNameError: There is nothing of this.
    """
    if usual_files(tree):
        return Discovery()
    for folder in (name.rstrip("/") for name in USUAL_FOLDERS):
        if any(_holds(path, "asv") for path in _sources(tree, f"{folder}/*.py")):
            return Discovery(suite=folder)
    tests = [path.relative_to(tree) for path in _sources(tree, *_TESTS) if _holds(path, "pytest")]
    if tests:
        return Discovery(tests=tuple(_enclosing(tests)))
    folders = ", ".join(USUAL_FOLDERS[:_NAMED])
    raise UnknownNameError(
        f"nothing to measure: no {FILE}, no asv benchmarks in a usual folder ({folders}, …), and no test uses "
        "pytest-benchmark's fixture `benchmark`; name a suite with --suite, tests with --pytest, or a command with "
        "--command"
    )


def _sources(tree: Path, *patterns: str) -> Iterator[Path]:
    """Yield a tree's own files, in order: neither what git ignores nor, outside of a repository, anything."""
    try:
        listed = revisions.git(tree, "ls-files", "-z", "-co", "--exclude-standard", "--", *patterns)
    except revisions.RevisionError:
        return
    yield from (tree / name for name in sorted(filter(None, listed.split("\0"))))


def _holds(path: Path, kind: str) -> bool:
    """Whether a file's source shows benchmarks of a kind."""
    try:
        content = path.read_bytes()
    except OSError:  # removed without telling git, or a link to nowhere
        return False
    if not _MAY_HOLD[kind].search(content):
        return False
    names = (benchmark.name.rpartition(".")[2] for benchmark in from_source(path.stem, "", content).benchmarks)
    return any(name.startswith("test") == (kind == "pytest") for name in names)


def _enclosing(tests: Iterable[Path]) -> list[str]:
    """Return the nearest folder that holds all tests; where only the tree's top does, the folders and files below."""
    tests = list(tests)
    common = os.path.commonpath([test.parent for test in tests])
    if common:
        return [Path(common).as_posix()]
    return list(dict.fromkeys(test.parts[0] for test in tests))
