"""Reasons: a code for programs, with a text for readers; and what a command did not look at, with its reason.

Every command records what it compared and what it did not in one `Coverage`. Its headline, JSON and exit status are
derived from that, so that what was not looked at is reported, and is never a pass.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec

from rocattn_profiling.base.status import FAILED, NOT_MEASURED, OK, UNDECIDED

Code_co = TypeVar("Code_co", bound=str, covariant=True)
_NAMED, _WHY = 3, 60  # maximum in a headline: things not compared, and characters of a reason


class Reason(msgspec.Struct, Generic[Code_co], frozen=True):
    """Why a result or a gap is as it is.

    Attributes:
        code: For programs: one word, with underscores. It stays the same if the text is reworded. Each package lists
            its codes in a Literal; ``str`` accepts any code, as in files.
        text: For readers; nothing depends on its wording.
        remedy: What to do about it; "" for nothing.
    """

    code: Code_co
    text: str
    remedy: str = ""

    @property
    def line(self) -> str:
        """The text and the remedy in one line."""
        return f"{self.text}; {self.remedy}" if self.remedy else self.text


class NotCompared(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a command should have looked at but did not.

    Attributes:
        what: A name, or a count of things with the same reason: "gpu", "8 problems on gpu".
        code, text, remedy: As in `Reason`.
        needed: Whether it makes the status 3, because the user named it or a verdict always covers it. What is only
            missing from the defaults is listed.
    """

    what: str
    code: str
    text: str
    remedy: str = ""
    needed: bool = False

    @classmethod
    def of(cls, what: str, reason: Reason[str], *, needed: bool = False) -> NotCompared:
        """Return it with a reason."""
        return cls(what=what, code=reason.code, text=reason.text, remedy=reason.remedy, needed=needed)

    @property
    def brief(self) -> str:
        """What and the beginning of why, for a headline; `line` has all of it."""
        why = textwrap.shorten(self.text, _WHY, placeholder=" …")
        return f"{self.what} ({why})" if why else self.what

    @property
    def line(self) -> str:
        """What, why and what to do in one line."""
        return f"{self.what}: {Reason(self.code, self.text, self.remedy).line}"


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """How much of what a command should look at was looked at.

    Attributes:
        compared: Number of things that were measured or compared, and decided.
        undecided: Number of things that were measured but cannot be decided.
        not_compared: The rest, grouped by reason.
    """

    compared: int = 0
    undecided: int = 0
    not_compared: tuple[NotCompared, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether everything was looked at and decided."""
        return bool(self.compared) and not self.undecided and not self.not_compared

    def gaps(self, verb: str = "compared") -> str:
        """Return what a headline adds: "3 undecided; not compared: gpu (no GPU)"; "" if everything was compared."""
        parts = [f"{self.undecided} undecided"] if self.undecided else []
        listed = sorted(self.not_compared, key=lambda each: not each.needed)  # what decides the status first
        named = [each.brief for each in listed[:_NAMED]]
        named += [f"{len(listed) - _NAMED} more"] if listed[_NAMED:] else []
        return "; ".join([*parts, *([f"not {verb}: {', '.join(named)}"] if named else [])])

    def status(self, *, failed: bool = False, strict: bool = False) -> int:
        """Return the exit status.

        Args:
            failed: Whether something that was looked at is wrong or worse.
            strict: Whether undecided results fail.
        """
        if failed:
            return FAILED
        if not (self.compared or self.undecided) or any(each.needed for each in self.not_compared):
            return NOT_MEASURED
        return UNDECIDED if strict and self.undecided else OK


def counted(of: Iterable[tuple[str, str, Reason[str]]], *, needed: bool = False) -> tuple[NotCompared, ...]:
    """Count what was not compared for the same reason, once each.

    Args:
        of: For each thing its name in the singular, with "#" for the number, the plural likewise, and the reason:
            ("# problem on gpu", "# problems on gpu", reason).
        needed: As in `NotCompared`.
    """
    counts: dict[tuple[str, str, Reason[str]], int] = {}
    for each in of:
        counts[each] = counts.get(each, 0) + 1
    return tuple(
        NotCompared.of((singular if count == 1 else plural).replace("#", f"{count:,}"), reason, needed=needed)
        for (singular, plural, reason), count in counts.items()
    )
