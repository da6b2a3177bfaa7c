"""Escape untrusted text: for a terminal, for Markdown as GitHub renders it, for XML, for workflow commands.

Names of benchmarks, parameters, packages and commits come from the code under test. They must be printed
as plain text: no markup, no links, no mentions, no commands, nothing that hides or reorders the text around it.
"""

from __future__ import annotations

import re
import unicodedata

# Characters that Markdown or GitHub may parse as syntax: inside a line, and (the last part) at its start. A character
# reference is never syntax, not even in a table cell or an HTML block (where a backslash does not work).
_SYNTAX = re.compile(r"[\\`*\[\]<&|~@#$]|:(?=\S)|(?<![^\W_])_|_(?![^\W_])|^[-+=>]")
_NUMBERED = re.compile(r"^(\d{1,9})([.)])(?=\s|$)")  # the start of a list
_BREAK = "&#8203;"  # zero-width space: invisible, and breaks words that GitHub would link
_LINKED = re.compile(r"(?i)www(?=\.)|gh(?=-\d)|&#58;(?=//)|&#64;|&#35;")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})  # controls, bidi and zero-width marks, surrogates, unassigned, …
_BLANK = frozenset("\u115f\u1160\u3164\uffa0\u2800")  # letters and a symbol by category, but invisible
_MARKS = frozenset({"Mn", "Me"})
_MOST_MARKS = 2  # stacked on one letter; more of them grow over the neighbouring lines
_XML_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, section 2.2
_UNSEEN = "\ufffd"
_ENDS = re.compile("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: str, most: int = 400) -> str:
    """Return text on one line of at most ``most`` characters, without invisible characters.

    Controls, bidirectional and zero-width marks, surrogates and unassigned characters become U+FFFD; runs of white
    space become one space; an ellipsis marks truncation.
    """
    shown: list[str] = []
    marks = 0
    for character in " ".join(text[: 4 * most].split()):
        category = unicodedata.category(character)
        marks = marks + 1 if category in _MARKS else 0
        if marks <= _MOST_MARKS:
            shown.append(_UNSEEN if category in _HIDDEN or character in _BLANK else character)
    cut = len(text) > 4 * most or len(shown) > most
    return "".join(shown[: most - 1]) + "…" if cut else "".join(shown)


def terminal(text: str, most: int = 4000) -> str:
    """Return text for one line of a terminal or a CI log: no escape sequences, no workflow commands.

    GitHub reads ``::command::`` at a line's start and ``##[command]`` anywhere; others ``##vso[`` and ``##teamcity[``.
    """
    return re.sub(r"##(?=\w*\[)", "# #", re.sub("^::", ": :", plain(text, most)))


def markdown(text: str, most: int = 400) -> str:
    """Return text that GitHub's Markdown shows literally: as a line or inside one, in a table cell or an HTML block.

    No HTML, emphasis, code, links, images, bare addresses, mentions (@name), references (#12, GH-12), emoji or math.
    """
    return _escaped(plain(text, most))


def prose(text: str, most: int = 400) -> str:
    """Return text like `markdown`, with text between two backticks as code."""
    parts = plain(text, most).split("`")
    if len(parts) % 2 == 0:  # an unpaired backtick
        return _escaped("`".join(parts))
    return "".join(f"<code>{_escaped(p)}</code>" if place % 2 else _escaped(p) for place, p in enumerate(parts))


def code(text: str, most: int = 160) -> str:
    """Return a name in a code element; unlike a code span, its content cannot close it."""
    return f"<code>{_escaped(plain(text, most))}</code>"


def _escaped(line: str) -> str:
    escaped = _NUMBERED.sub(lambda match: match[1] + _reference(match, 2), _SYNTAX.sub(_reference, line))
    return _LINKED.sub(lambda match: match.group() + _BREAK, escaped)


def _reference(match: re.Match[str], group: int = 0) -> str:
    return f"&#{ord(match[group])};"


def seen(text: str) -> str:
    """Return text of any number of lines without control characters, which reorder a page or command a terminal."""
    return _CONTROLS.sub(_UNSEEN, text)


def line(text: str) -> str:
    """Return a finished line for a terminal or a CI log: like `terminal`, but keep its spaces."""
    return re.sub(r"##(?=\w*\[)", "# #", re.sub(r"^(\s*):(?=:)", r"\1: ", seen(_ENDS.sub(" ", text))))


def xml(text: str) -> str:
    """Return text without characters that XML forbids, which an exception's message may contain."""
    return _XML_FORBIDDEN.sub("?", text)


def command_data(text: str) -> str:
    """Return text as the message of a workflow command (``::error::message``)."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def command_property(text: str) -> str:
    """Return text as a property of a workflow command (``::error title=property::…``)."""
    return command_data(text).replace(":", "%3A").replace(",", "%2C")
