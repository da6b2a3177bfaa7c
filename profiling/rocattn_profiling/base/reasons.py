"""Reasons: a code that programs act on, with a text for people."""

from __future__ import annotations

import msgspec


class Reason(msgspec.Struct, frozen=True):
    """Why something is as it is.

    Attributes:
        code: For programs: one word, with underscores. It stays when the text is reworded.
        text: For people; nothing depends on how it is worded.
        remedy: What to do about it; "" for nothing.
    """

    code: str
    text: str
    remedy: str = ""

    @property
    def line(self) -> str:
        """The text and the remedy in one line."""
        return f"{self.text}; {self.remedy}" if self.remedy else self.text
