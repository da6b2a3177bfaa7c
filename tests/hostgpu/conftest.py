"""Stand-in GPUs of this session: one for each architecture and setting."""

import pytest

from .standin import StandIn


@pytest.fixture(scope="session")
def standin(tmp_path_factory, kernel_cache):
    """Return a function: architecture, settings -> the stand-in, made once."""
    made: dict[tuple, StandIn] = {}
    folder = tmp_path_factory.mktemp("hostgpu")

    def make(arch="gfx1100", **settings):
        key = (arch, *sorted(settings.items()))
        if key not in made:
            made[key] = StandIn(folder, arch, **settings)
        return made[key]

    return make
