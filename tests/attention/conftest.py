"""Tests of cpu-flash are skipped, with its reason, where its kernels cannot be compiled."""

import pytest

from rocattn.backends import BACKENDS


@pytest.fixture
def cpu_flash():
    """The backend; asks for a compiler the first time."""
    backend = BACKENDS.get("cpu-flash")
    answer = backend.available()
    if not answer:
        pytest.skip(f"cpu-flash: {answer.reason}")
    return backend


@pytest.fixture(autouse=True)
def _compiled_if_named(request):
    """A test with "cpu-flash" among its parameters needs it."""
    if "cpu-flash" in getattr(getattr(request.node, "callspec", None), "params", {}).values():
        request.getfixturevalue("cpu_flash")
