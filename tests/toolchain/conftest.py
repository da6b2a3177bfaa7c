"""A cache folder of the test's own, and stand-ins for compilers on PATH."""

import os
import stat
from pathlib import Path

import pytest

from rocattn import toolchain
from rocattn.errors import ToolchainError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Keep every test away from the user's cache; forget the choice of compiler afterwards."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("ROCATTN_CACHE_DIR", str(folder))
    forget_choices()
    yield folder
    forget_choices()


def forget_choices():
    """Choose anew at the next use."""
    toolchain.choose_compiler.cache_clear()
    toolchain.choose_host_compiler.cache_clear()


@pytest.fixture
def host_compiler():
    """This machine's compiler for its CPU, or a skip with the reason."""
    try:
        return toolchain.choose_host_compiler()
    except ToolchainError as error:
        pytest.skip(str(error))


@pytest.fixture
def write_tool():
    """Return a function: path, shell text -> an executable script."""

    def write(path: Path, text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return write


@pytest.fixture
def no_pinned(monkeypatch):
    """Leave out the pinned compiler and everything on PATH but what a test puts there."""
    monkeypatch.setattr(toolchain.compilers, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.delenv("ROCM_PATH", raising=False)
    monkeypatch.delenv("ROCATTN_COMPILER", raising=False)
