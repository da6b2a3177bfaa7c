"""Foreign text in Markdown, terminals, XML and workflow commands: it reads as what it is, and does nothing."""

import re
import unicodedata
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from rocattn_profiling.base import markup

ATTACKS = [
    "<img src=x onerror=alert(1)>", "</code><script>x</script>", "</details></summary>", "<!-- x", "--> x", "&lt;b&gt;",
    "[a](https://evil.example)", "![i](//evil.example/p.png)", "[x]: https://evil.example", "<https://evil.example>",
    "https://evil.example", "www.evil.example", "WWW.evil.example", "mailto:a@evil.example", "@everyone", "@org/team",
    "a@b.example", "#123", "owner/repo#123", "GH-123", "gh-1",
    "`", "``", "```\nx\n```", "~~~", "*a*", "**a**", "_a_",
    "__init__", "~~a~~", "|", "\\|", "\\\\|", "a|b\\", "$x$", "$`x`$", ":tada:", ":100:",
    "- a", "+ a", "12) a", "1. a", "# a", "> a", "---",
    "\n\n# heading\n\n", "\r\n\r\n- item", "\u2028| x |", "a\n\n</details>\n\nb", "\x00\x1b[31m", "\u202eabc\u202c",
    "\u200b", "\u3164\u2800", "a" + "\u0301" * 50, "\ud800", "%0A::error::x", "::error::x", "##[error]x", "&#64;x",
    "a ##vso[x]y", "###[x", "&commat;x", "]]>",
]  # fmt: skip
texts = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="a1 _*`[]()<>!|\\~@#:$&-+=.\n/", max_size=30),
    st.lists(st.sampled_from(ATTACKS), max_size=4).map("".join),
)
GITHUB = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


class Seen(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        """Keep a tag."""
        self.tags.append((tag, attrs))

    def handle_data(self, data):
        """Keep text."""
        self.text += data


def shown(source):
    """Render as GitHub does; return the tags and what a reader sees, without the spaces that have no width."""
    seen = Seen(GITHUB.render(source))
    return seen.tags, seen.text.replace("\u200b", "")


def with_examples(test):
    """Try every attack, beside what hypothesis finds."""
    for attack in ATTACKS:
        test = example(attack)(test)
    return test


@with_examples
@given(texts)
@settings(max_examples=150, deadline=None)
def test_text_stays_text_in_a_line_and_as_a_line(text):
    """No tag but the paragraph's, and the reader sees the characters themselves."""
    plain = markup.plain(text)
    for before in ("so ", "", "- "):
        tags, seen = shown(f"{before}{markup.markdown(text)} it is")
        assert [tag for tag, _ in tags] == (["ul", "li"] if before == "- " else ["p"])
        assert seen.split() == f"{before.strip('- ')} {plain} it is".split()


@with_examples
@given(texts)
@settings(max_examples=150, deadline=None)
def test_prose_has_code_between_backticks_and_nothing_else(text):
    """Balanced backticks make code elements; everything in them and beside them stays text."""
    plain = markup.plain(text)
    tags, seen = shown(f"so {markup.prose(text)} it is")
    balanced = plain.count("`") % 2 == 0
    assert [tag for tag, _ in tags] == ["p"] + ["code"] * (plain.count("`") // 2 if balanced else 0)
    assert seen.replace("`", "").split() == f"so {plain.replace('`', '')} it is".split()


@with_examples
@given(texts)
@settings(max_examples=150, deadline=None)
def test_a_name_in_a_table_stays_in_its_cell(text):
    """One row, two cells, one code element: bars, backslashes and newlines open no other."""
    tags, seen = shown(f"| n | x |\n|---|---|\n| {markup.code(text)} | end |\n")
    assert [tag for tag, _ in tags] == ["table", "thead", "tr", "th", "th", "tbody", "tr", "td", "code", "td"]
    assert seen.split() == f"n x {markup.plain(text, 160)} end".split()


@with_examples
@given(texts)
@settings(max_examples=100, deadline=None)
def test_a_name_in_a_folded_block_does_not_open_it(text):
    """Inside raw HTML, where Markdown is not read, the same escapes hold."""
    source = f"<details><summary>{markup.code(text)}</summary>\n\nso {markup.markdown(text)}\n\n</details>\n"
    tags, _ = shown(source)
    assert tags == [("details", []), ("summary", []), ("code", []), ("p", [])]


@with_examples
@given(texts)
@settings(max_examples=150, deadline=None)
def test_nothing_is_left_that_github_links(text):
    """No mentions, references, or bare addresses, also for filters that read the rendered page's text."""
    seen = Seen(GITHUB.render(f"so {markup.markdown(text)} it is")).text
    assert not re.search(r"(?i)@\w|#\d|\bgh-\d|://|www\.", seen)


@with_examples
@given(texts)
@settings(max_examples=150, deadline=None)
def test_plain_text_is_one_visible_line(text):
    """No control, bidirectional, zero-width or unassigned characters; no line breaks of any kind."""
    line = markup.plain(text, 100)
    assert len(line) <= 100
    assert len(line.splitlines()) <= 1
    assert not [c for c in line if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}]
    assert line == line.strip()


@pytest.mark.parametrize("size", [99, 100, 101, 1_000_000])
def test_long_names_are_cut_and_say_so(size):
    """A name of a million characters costs no more than a short one."""
    line = markup.plain("x" * size, 100)
    assert line == ("x" * size if size <= 100 else "x" * 99 + "…")
    assert len(markup.code("@" * size).encode()) < 3000


def test_ordinary_names_stay_legible_in_the_source():
    """Mail shows a comment's source: a label must read as one there."""
    assert markup.code("bench_a.QuickDecode.time_decode(1024, 'cpu-flash')") == (
        "<code>bench_a.QuickDecode.time_decode(1024, 'cpu-flash')</code>"
    )
    said = "slower: größe 12 %, 1 -> 2 (x1.05), see docs"
    assert markup.markdown(said) == said
    assert markup.prose("take `a_b(x)` back") == "take <code>a_b(x)</code> back"


@with_examples
@given(texts)
@settings(max_examples=150, deadline=None)
def test_a_terminal_line_commands_nothing(text):
    """Neither the terminal nor the log of a CI server, which may read ``##[`` and ``##vso[`` anywhere in a line."""
    line = markup.terminal(text)
    assert "\x1b" not in line
    assert not re.search(r"##\w*\[", line)
    assert not line.lstrip().startswith("::")


@with_examples
@given(texts)
@settings(max_examples=150, deadline=None)
def test_any_text_can_stand_in_xml(text):
    """As an attribute and as content, and comes back the same but for what XML cannot hold."""
    element = ET.Element("x", a=markup.xml(text))
    element.text = markup.xml(text)
    back = ET.fromstring(ET.tostring(element, encoding="unicode"))  # noqa: S314 - written two lines above
    assert (back.text or "").replace("\r", "\n") == markup.xml(text).replace("\r\n", "\n").replace("\r", "\n")


@with_examples
@given(texts)
@settings(max_examples=150, deadline=None)
def test_a_workflow_command_holds_one_message(text):
    """One line; a property ends neither itself nor the command's head; what was escaped comes back."""
    data, value = markup.command_data(text), markup.command_property(text)
    assert not set("\r\n") & set(data + value)
    assert not set(":,") & set(value)
    back = value.replace("%2C", ",").replace("%3A", ":").replace("%0A", "\n").replace("%0D", "\r").replace("%25", "%")
    assert back == text
