"""A repository with a made history and an asv store about it."""

from ...asv.history import history, made_history, record_of  # noqa: F401 - fixtures
