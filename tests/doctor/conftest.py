"""Compilers and their stand-ins, as for the tests of the toolchain."""

from ..toolchain.conftest import host_compiler, own_cache, write_tool  # noqa: F401 - fixtures
