"""Reading the files of AMD's profilers: one reader per format, one table (`Profile`)."""

from rocattn_profiling.profile.ingest.load import describe, read
from rocattn_profiling.profile.ingest.table import FileProblem, FileSummary, Profile, Source

__all__ = ["FileProblem", "FileSummary", "Profile", "Source", "describe", "read"]
