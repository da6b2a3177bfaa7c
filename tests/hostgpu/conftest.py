"""Stand-in GPUs of this session: one for each architecture and setting, and a cache of the session's own."""

import pytest

from rocattn.errors import ToolchainError
from rocattn.toolchain import choose_compiler

from .standin import StandIn


@pytest.fixture(scope="session")
def standin(tmp_path_factory):
    """Return a function: architecture, settings -> the stand-in, made once."""
    made: dict[tuple, StandIn] = {}
    folder = tmp_path_factory.mktemp("hostgpu")

    def make(arch="gfx1100", **settings):
        key = (arch, *sorted(settings.items()))
        if key not in made:
            made[key] = StandIn(folder, arch, **settings)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROCATTN_CACHE_DIR", str(tmp_path_factory.mktemp("hostgpu-cache")))
        try:
            choose_compiler()
        except ToolchainError as error:
            pytest.skip(str(error))
        yield make
