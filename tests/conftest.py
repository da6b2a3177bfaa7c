"""What holds for every test: one BLAS thread, and a registry and an environment that no test leaves changed."""

import os

# On a busy machine OpenBLAS' helpers wait for each other, and small products gain nothing. Read when numpy is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import sys
import tempfile
from pathlib import Path

import pytest

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
    thresholds = BACKENDS._rules, BACKENDS._variable
    yield
    if BACKENDS._backends != backends:
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(OURS):
                del sys.modules[name]
    BACKENDS._backends, BACKENDS._default = backends, default
    BACKENDS._rules, BACKENDS._variable = thresholds
