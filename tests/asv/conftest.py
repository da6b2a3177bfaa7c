"""Records of a made history, for tests of the asv store."""

from .history import record_of  # noqa: F401 - a fixture
