"""Measuring without processes."""

import pytest

from rocattn_profiling.bench import session as harness

from .made_records import make_sides


@pytest.fixture
def _instant(monkeypatch):
    """No processes: for what is done with measurements, not how they are taken."""
    monkeypatch.setattr(harness, "measure_side_by_side", make_sides)
