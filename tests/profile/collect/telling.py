"""What tests ask of a collection."""

import os
import select

_PATIENCE_S = 60  # only a broken collector lets it pass


def codes(collection):
    """Return the codes of everything that was found, in order."""
    return [found.code for result in collection.passes for found in result.findings]


def statuses(collection):
    """Return pass -> status."""
    return {result.name: result.status for result in collection.passes}


def nobody_holds(pipe):
    """Say whether the last writer of a pipe has gone: its end can be read."""
    ready, _, _ = select.select([pipe], [], [], _PATIENCE_S)
    return bool(ready) and os.read(pipe, 1) == b""
