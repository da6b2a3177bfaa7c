"""JSON with NaN and Infinity, which Python's json, rapidjson and cereal (so rocprofv3) write and which is none."""

from __future__ import annotations

import re

# A text, which may hold anything, or one of the words outside of a text.
_WORDS = re.compile(rb'"(?:[^"\\]|\\.)*+"|-?\b(?:NaN|Inf(?:inity)?)\b', re.DOTALL)


def with_null(data: bytes) -> bytes:
    """Return the text with null where it has NaN or an infinity; everything else is as it was."""
    if b"NaN" not in data and b"Inf" not in data:
        return data
    return _WORDS.sub(lambda found: found[0] if found[0][:1] == b'"' else b"null", data)
