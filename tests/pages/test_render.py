"""Pages show a stranger's text, and none of its control characters."""

import html

import pytest

from rocattn_profiling.pages.render import environment


@pytest.mark.parametrize("character", ["\x1b", "\0", "\b", "\r", "\x9b", "\u202e", "\u2066", "\u2028", "\ud800"])
@pytest.mark.parametrize(
    "template", ["{{ text }}", "{{ text | breakable }}", "{{ text | md }}", "{% set a %}{{ text }}{% endset %}{{ a }}"]
)
def test_control_characters_reach_no_page(template, character):
    """They would reorder its text, or command the terminal that shows it; through a filter and as markup too."""
    shown = environment().from_string(template).render(text=f"fix {character}[2J<b>\n\tnext")
    assert character not in shown
    assert "<b>" not in shown
    assert "[2J" in html.unescape(shown)


def test_lines_and_markup_stay():
    """A benchmark's source has lines; what is escaped once is not escaped again."""
    shown = environment().from_string("{% set a %}<b>{{ text }}</b>{% endset %}{{ a }}").render(text="a\n\tb & \x07é")
    assert shown == "<b>a\n\tb &amp; \ufffdé</b>"
