"""An Atom feed of regressions: one entry a change, under an identifier that stays the same."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from rocattn_profiling.pages.quantities import percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rocattn_profiling.site.changes.changes import LevelChange
    from rocattn_profiling.site.commits import History

ATOM = "http://www.w3.org/2005/Atom"
ENTRIES = 50
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def atom(
    changes: Sequence[LevelChange], history: History, links: Mapping[str, str], made_ms: int, url: str, project: str
) -> str:
    """Return the feed of the newest regressions, those that recovered or are waived included (they say so).

    Args:
        changes: All change points, newest first.
        history: The repository's commits.
        links: The page of each change, by its id, relative to the feed.
        made_ms: When the site was made; counts where there is no entry.
        url: Address of the site; links are relative to the feed without it.
        project: Whose history it is.
    """
    worse = [change for change in changes if change.worse][:ENTRIES]
    oldest = min(history.commits.values(), key=lambda info: info.order, default=None)
    base = f"{url.rstrip('/')}/" if url else ""
    ET.register_namespace("", ATOM)
    feed = ET.Element(f"{{{ATOM}}}feed")
    # Of the repository's first commit: the same feed wherever and however often it is made.
    _add(feed, "id", _urn("feed", oldest.sha if oldest else ""))
    _add(feed, "title", f"{project}: regressions on {history.branch}")
    _add(feed, "updated", _moment(max((_seen(change, history) for change in worse), default=made_ms)))
    author = ET.SubElement(feed, f"{{{ATOM}}}author")
    _add(author, "name", "rocattn")
    _link(feed, f"{base}feed.xml", "self", "application/atom+xml")
    _link(feed, f"{base}changes.html", "alternate", "text/html")
    for change in worse:
        entry = ET.SubElement(feed, f"{{{ATOM}}}entry")
        _add(entry, "id", _urn("change", change.id))
        _add(entry, "title", f"{change.label}: {percent(change.point.ratio)} ({change.state})")
        _add(entry, "updated", _moment(_seen(change, history)))
        _link(entry, base + links.get(change.id, "changes.html"), "alternate", "text/html")
        _add(entry, "summary", _summary(change, history))
    ET.indent(feed)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(feed, encoding="unicode")}\n'


def _summary(change: LevelChange, history: History) -> str:
    point, commits = change.point, history.commits
    came = f"{change.likeliest[:8]} {commits[change.likeliest].subject}" if change.likeliest in commits else ""
    others = f", or another of {len(change.commits)} commits" if len(change.commits) > 1 else ""
    why = f" Accepted: {change.waived}." if change.waived else ""
    return (
        f"{percent(point.ratio)} (95 %: {percent(point.ratio_low)} to {percent(point.ratio_high)}) on {change.where}, "
        f"{change.state} after {point.points} points. Likeliest commit: {came}{others}.{why}"
    )


def _seen(change: LevelChange, history: History) -> int:
    info = history.commits.get(change.likeliest)
    return info.date_ms if info and info.date_ms > 0 else change.date_ms


def _urn(kind: str, name: str) -> str:
    return f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'rocattn:{kind}:{name}')}"


def _moment(date_ms: int) -> str:
    return datetime.fromtimestamp(date_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _add(parent: ET.Element, name: str, text: str) -> None:
    # Subjects and labels are anyone's: what XML cannot hold becomes a replacement character.
    ET.SubElement(parent, f"{{{ATOM}}}{name}").text = _NOT_XML.sub("�", text)


def _link(parent: ET.Element, href: str, rel: str, kind: str) -> None:
    ET.SubElement(parent, f"{{{ATOM}}}link", {"href": href, "rel": rel, "type": kind})
