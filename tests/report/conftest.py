"""Records and a verdict to report."""

from ..made_reports import record_of, records, verdict  # noqa: F401 - fixtures
