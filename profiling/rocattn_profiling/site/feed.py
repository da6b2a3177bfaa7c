"""The Atom feed of regressions: one entry for each commit, with its lines."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

from rocattn_profiling.pages.quantities import percent
from rocattn_profiling.pages.render import count
from rocattn_profiling.site.changes import Cause, LevelChange
from rocattn_profiling.site.commits import History

ATOM = "http://www.w3.org/2005/Atom"
ENTRIES = 50
LINES = 20
"""Lines that an entry lists."""
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def atom(
    causes: Sequence[Cause], history: History, links: Mapping[str, str], made_ms: int, url: str, project: str
) -> str:
    """Return an Atom feed of the newest commits that made lines worse, recovered and waived ones included and marked.

    Args:
        causes: Regressions that were announced at some time, by commit.
        history: The repository's commits.
        links: The page of each commit, by its hash, relative to the feed.
        made_ms: When the site was made; the date of a feed without entries.
        url: Address of the site; links are relative to the feed without it.
        project: Whose history it is.
    """
    order = {cause.sha: history.commits[cause.sha].order for cause in causes}
    newest = sorted(causes, key=lambda cause: -order[cause.sha])[:ENTRIES]
    oldest = min(history.commits.values(), key=lambda info: info.order, default=None)
    base = f"{url.rstrip('/')}/" if url else ""
    ET.register_namespace("", ATOM)
    feed = ET.Element(f"{{{ATOM}}}feed")
    # From the repository's first commit, so that every build, anywhere, has the same feed id.
    _add(feed, "id", _urn("feed", oldest.sha if oldest else ""))
    _add(feed, "title", f"{project}: regressions on {history.branch}")
    _add(feed, "updated", _moment(max((_commit_date(cause, history) for cause in newest), default=made_ms)))
    author = ET.SubElement(feed, f"{{{ATOM}}}author")
    _add(author, "name", "rocattn")
    _link(feed, f"{base}feed.xml", "self", "application/atom+xml")
    _link(feed, f"{base}changes.html", "alternate", "text/html")
    for cause in newest:
        entry = ET.SubElement(feed, f"{{{ATOM}}}entry")
        states = ", ".join(change.state for change in cause.states)
        _add(entry, "id", _urn("commit", cause.sha))
        lines = count(len(cause.changes), "line")
        _add(entry, "title", f"{cause.sha[:8]} {history.commits[cause.sha].subject}: {lines} {cause.sizes} ({states})")
        _add(entry, "updated", _moment(_commit_date(cause, history)))
        _link(entry, base + links.get(cause.sha, "changes.html"), "alternate", "text/html")
        more = len(cause.changes) - LINES
        listed = [_line(change) for change in cause.changes[:LINES]] + ([f"and {more} more"] if more > 0 else [])
        _add(
            entry, "summary", "\n".join([*([f"Perhaps not its fault: {cause.doubt}."] if cause.doubt else []), *listed])
        )
    ET.indent(feed)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(feed, encoding="unicode")}\n'


def _line(change: LevelChange) -> str:
    point = change.point
    span = f" (95 %: {percent(point.ratio_low)} to {percent(point.ratio_high)})" if change.rise is None else ""
    others = f"; or from another of {len(change.commits)} commits" if len(change.commits) > 1 else ""
    why = f"; accepted: {change.waived}" if change.waived else ""
    state = f"{change.state} after {count(point.points, 'point')}"
    return f"{change.label}: {change.size}{span} on {change.where}, {state}{others}{why}"


def _commit_date(cause: Cause, history: History) -> int:
    date_ms = history.commits[cause.sha].date_ms
    return date_ms if date_ms > 0 else cause.date_ms


def _urn(kind: str, name: str) -> str:
    return f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'rocattn:{kind}:{name}')}"


def _moment(date_ms: int) -> str:
    return datetime.fromtimestamp(date_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _add(parent: ET.Element, name: str, text: str) -> None:
    # Subjects and labels may hold any character: those that XML cannot hold are replaced.
    ET.SubElement(parent, f"{{{ATOM}}}{name}").text = _NOT_XML.sub("�", text)


def _link(parent: ET.Element, href: str, rel: str, kind: str) -> None:
    ET.SubElement(parent, f"{{{ATOM}}}link", {"href": href, "rel": rel, "type": kind})
