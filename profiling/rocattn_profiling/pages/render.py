"""Render templates, with the parts shared by all pages. Each command has its own template folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rocattn
from rocattn_profiling.base.markup import code, markdown, seen
from rocattn_profiling.pages.charts import colour_of, line_class
from rocattn_profiling.pages.quantities import digits, percent, quantity, short_date, utc

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from rocattn_profiling.pages.charts import Mark

PROJECT = "rocattn"
GENERATOR = '<meta name="generator" content="rocattn '


def standalone(template: str, title: str, made_ms: int, **values: Any) -> str:
    """Render a template as a standalone page, without links to other pages."""
    common = {"links": [], "project": PROJECT, "version": rocattn.__version__, "made": moment(made_ms)}
    return render(template, title, root="", here="", **common, **values)


def markdown_text(template: str, **values: Any) -> str:
    """Render a Markdown template, without runs of empty lines."""
    return re.sub(r"\n{3,}", "\n\n", environment().get_template(template).render(**values)).strip() + "\n"


def moment(milliseconds: int) -> str:
    """Format a time: 2026-11-20 09:30 UTC."""
    return utc(milliseconds).strftime("%Y-%m-%d %H:%M UTC")


def render(template: str, title: str, **values: Any) -> str:
    """Render a template with ``values``."""
    backends = values.get("backends", [])
    return environment().get_template(template).render(title=title, line_colour=None, colours=backends, **values)


@cache
def environment() -> Environment:
    """Return jinja2 with our templates and filters; HTML is escaped, Markdown by the filter ``md``."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    jinja = Environment(
        loader=FileSystemLoader(sorted(Path(__file__).parents[1].glob("*/templates"))),
        autoescape=select_autoescape(("html.j2",), default_for_string=True, default=False),
        undefined=StrictUndefined,
        finalize=_finalized,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    jinja.filters |= {
        "quantity": quantity, "digits": digits, "day": short_date, "moment": moment, "md": _markdown,
        "code": lambda text: _safe(code(str(text), _LONGEST)),
        "breakable": breakable, "count": count, "slug": lambda text: re.sub(r"\W+", "-", text),
        "colour": colour_of, "line_class": line_class, "percent": percent, "shorten": shorten, "share": share,
        "marks": marks, "cells": cells,
    }  # fmt: skip
    return jinja


def _finalized(value: Any) -> Any:
    """Return a template's output without untrusted control characters; escaped text stays escaped."""
    if not isinstance(value, str) or str.replace(value, "\n", "").isprintable() or (clean := seen(value)) == value:
        return value
    return type(value)(clean)


def add_filters(filters: dict[str, Callable[..., Any]], **values: Any) -> None:
    """Add filters and global values for one command's templates."""
    environment().filters |= filters
    environment().globals |= values


def share(part: float) -> str:
    """Format a fraction in percent, never rounded to 0 or 100 ("0", "<0.01", "12.3")."""
    if not part:
        return "0"
    if part < 1e-4:
        return "<0.01"
    return digits(100 * part, 3) if part == 1 or part < 0.9995 else ">99.9"


def count(number: int, noun: str, many: str = "") -> str:
    """Format a count with its noun ("1 commit", "3 commits"); ``many`` is the plural if it is not noun + s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {many or f'{noun}s'}"


def shorten(text: str, most: int = 90) -> str:
    """Shorten a name to fit a table; kernel names can have thousands of characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


_LONGEST = 4000  # characters of a cell of Markdown
_SPECIAL = re.compile("[&<>'\"]")
_JOINT = re.compile(r"(\.|_+|,|::|\w\(|\w&lt;|[a-z](?=[A-Z][a-z]))(?=[\w&(…])")


@lru_cache(maxsize=4096)
def breakable(text: str) -> Markup:
    """Return escaped text with line-break opportunities, since benchmark and kernel names are long."""
    from markupsafe import Markup, escape

    # Entities contain none of these characters except their end, so no escape is split.
    return Markup(re.sub(_JOINT, r"\1<wbr>", str(escape(text))))  # noqa: S704 - escaped in the same line


def _shown(text: str) -> str:
    """Return untrusted text in printable form."""
    if not _SPECIAL.search(shown := _finalized(text)):  # most have none
        return str(shown)
    from markupsafe import escape

    return str(escape(shown))


def marks(drawn: Sequence[Mark], radius: float) -> Markup:
    """Return the SVG of a line's marks: a history has millions, and each would take twelve template steps."""
    from markupsafe import Markup

    texts = []
    for mark in drawn:
        anchor = f' id="{_shown(mark.anchor)}"' if mark.anchor else ""
        title = f"<title>{_shown(mark.title)}</title>"
        if mark.failed:
            title = title if mark.title else ""
            text = f'<path class="cross"{anchor} d="M{mark.x - 4} {mark.y - 4}l8 8m0 -8l-8 8">{title}</path>'
        else:
            text = f'<circle class="dot"{anchor} cx="{mark.x}" cy="{mark.y}" r="{radius}">{title}</circle>'
            if mark.low is not None:
                ends = f'x1="{mark.x}" x2="{mark.x}" y1="{mark.low}" y2="{mark.high}"'
                text = f'<line class="whisker" {ends}/>{text}'
        if mark.href and mark.title:
            text = f'<a href="{_shown(mark.href)}" tabindex="-1">{text}</a>'
        texts.append(f"{text}\n")
    return Markup("".join(texts))  # noqa: S704 - texts of others are escaped above


def cells(texts: Sequence[str]) -> Markup:
    """Return the cells of a table's row."""
    from markupsafe import Markup

    return Markup("".join([f'<td class="num">{_shown(text)}</td>' for text in texts]))  # noqa: S704 - as above


def _markdown(text: object) -> Markup:
    return _safe(markdown(str(text), _LONGEST))


def _safe(text: str) -> Markup:
    from markupsafe import Markup

    return Markup(text)  # noqa: S704 - of `base.markup`, which has escaped it
