"""What tests of every part of a profile need: frames, GPUs, and sentences as a snapshot shows them."""

from textwrap import fill

import pandas as pd

from rocattn_profiling.profile.ingest.table import AGENT_DTYPES


def frame(rows, dtypes):
    """Return a frame of these columns; what a row lacks is missing."""
    return pd.DataFrame(rows, columns=list(dtypes)).astype(dtypes)


def agents(*rows):
    """Return the frame of GPUs."""
    return frame(rows, AGENT_DTYPES)


def lines_of(said):
    """Return named sentences as the lines that a snapshot shows."""
    return "\n".join(fill(f"{name}: {text}", 118, subsequent_indent="    ") for name, text in said.items())
