"""Tests of cpu-flash are skipped, with its reason, where its kernels cannot be compiled."""

from ..attention.conftest import _compiled_if_named, cpu_flash  # noqa: F401 - fixtures
