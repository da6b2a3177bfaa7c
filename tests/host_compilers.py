"""What a test does with each compiler that builds for this CPU: those of PATH, and the one of ROCATTN_COMPILER."""

import functools
import re
from contextlib import contextmanager

import pytest

from rocattn.toolchain import compilers, host

# Releases that the project is tried with: those that are not here are named, not passed over.
RELEASES = {"gcc": range(compilers.MIN_GCC, 17), "clang": range(compilers.MIN_CLANG, 24)}


def each_compiler(test):
    """Run a test once for each compiler, whose name is in the test's; it passes ``compiler`` to `building_with`."""
    choices = [pytest.param(compiler, id=name) for name, compiler in _found().items()]
    choices += [pytest.param(None, id="others")] if _missing() else []
    return pytest.mark.parametrize("compiler", choices)(test)


@functools.cache
def _found():
    found = {}
    for compiler in compilers._candidates():
        if compiler.argv:
            major = re.search(r"clang version (\d+)|\) (\d+)\.", compiler.version)
            found.setdefault(f"{compiler.kind}-{major[1] or major[2] if major else 'broken'}", compiler)
    return found


def _missing():
    releases = [f"{kind}-{major}" for kind, majors in RELEASES.items() for major in majors]
    return [name for name in releases if name not in _found()]


@contextmanager
def building_with(compiler, *options):
    """Compile for this CPU with a compiler and more options, a warning being an error; skip if it is none."""
    if compiler is None:
        pytest.skip(f"not on PATH, so not tried: {', '.join(_missing())}")
    if compiler.host_reason:
        (pytest.fail if compiler.given else pytest.skip)(compiler.host_reason)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "choose_host_compiler", lambda: compiler)
        # GCC before 13 finds its own headers of AVX-512 uninitialised (GCC's bug 105593).
        sound = ("-Wno-maybe-uninitialized",) if compiler.kind == "gcc" else ()
        patch.setattr(host, "_OPTIONS", (*host._OPTIONS, "-Werror", *sound, *options))
        yield
