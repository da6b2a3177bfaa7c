"""Reading what AMD's profilers write: one reader per format, one table (`Profile`)."""

from rocattn_profiling.profile.ingest.load import describe, read
from rocattn_profiling.profile.ingest.table import FileSummary, Problem, Profile, Source

__all__ = ["FileSummary", "Problem", "Profile", "Source", "describe", "read"]
