"""What holds for every test: one BLAS thread, a registry and an environment that no test leaves changed.

And what all tests of a run share, whatever process they are in: long files come first, kernels are compiled once.
"""

import os

# On a busy machine OpenBLAS' helpers wait for each other, and small products gain nothing. Read when numpy is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# The stand-in GPU's problems are small: compiling hundreds of kernels for it takes longer than running them.
os.environ.setdefault("ROCATTN_HOSTGPU_OPTIMIZE", "0")

import gc
import re
import sys
import tempfile
from pathlib import Path

import pytest

from .projects import git, offline, project, repo, shared_cache  # noqa: F401 - fixtures of several folders
from .surroundings import _no_process_is_left, take_usual_signals, take_usual_variables  # noqa: F401 - a fixture

take_usual_signals()
take_usual_variables()  # before anything of ours is imported

UNUSED = pytest.StashKey[list[str]]()  # lines of exhaustive.txt that match no test
OURS = (str(Path(__file__).parent), tempfile.gettempdir())


@pytest.fixture(autouse=True)
def unchanged_environment():
    """Take back what a command set for its own process (`rocattn verify` does): the next test's subprocesses see it."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(autouse=True)
def unchanged_backends():
    """Take back what a test registers: a backend that crashes on purpose must not meet the next test.

    A module registers when it is imported, so a test's own modules are forgotten too: the next one imports them anew.
    """
    from rocattn.backends import BACKENDS

    backends, default, modules = dict(BACKENDS._backends), BACKENDS._default, set(sys.modules)
    yield
    if BACKENDS._backends != backends:
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(OURS):
                del sys.modules[name]
    BACKENDS._backends, BACKENDS._order, BACKENDS._default = backends, None, default


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(config, items):
    """Mark what only ``make test-all`` runs.

    And where files are shared out among processes, begin with those that have slow tests: none is left at the end.
    """
    lines = (Path(__file__).parent / "exhaustive.txt").read_text().splitlines()
    patterns = {line: re.compile(line) for line in lines if line and not line.startswith("#")}
    used = set()
    for item in items:
        name = item.nodeid
        for line, pattern in patterns.items():
            if pattern.fullmatch(name):
                item.add_marker("exhaustive")
                used.add(line)
    config.stash[UNUSED] = [line for line in patterns if line not in used]
    if hasattr(config, "workerinput"):
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish():
    """What collecting made lives to the end: collections of garbage no longer go through it."""
    if sys.version_info < (3, 14):  # there Hypothesis finds no referrer of its random numbers, which it warns of
        gc.freeze()


@pytest.fixture(scope="session")
def run_cache(tmp_path_factory):
    """A cache folder of this run, of all its processes; it stays the cache until the process ends."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has its own folder in the run's
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROCATTN_CACHE_DIR", str(folder / "compiled"))
        yield folder / "compiled"


@pytest.fixture(scope="session", autouse=True)
def _one_cache_for_all(request):
    """Where files are shared out among processes, none compiles what another did: not for the CPU, either."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        request.getfixturevalue("run_cache")


@pytest.fixture(scope="session")
def kernel_cache(run_cache):
    """The run's cache, for GPU kernels: the user's is never touched, and every run compiles for real.

    Skips where there is no compiler.
    """
    skip_without_hip_compiler()
    return run_cache


@pytest.fixture
def compiler():
    """The compiler of GPU kernels; skips with everyone's reason where there is none."""
    return skip_without_hip_compiler()


def skip_without_hip_compiler():
    """Return the compiler of GPU kernels, or skip with the reason."""
    from rocattn.errors import ToolchainError
    from rocattn.toolchain import choose_compiler

    try:
        return choose_compiler()
    except ToolchainError as error:
        pytest.skip(str(error))
