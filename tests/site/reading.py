"""What a reader sees of a page: the words of its parts, without markup and pictures."""

import re
import textwrap
from html import unescape

BLOCK = re.compile(r"</?(?:p|div|h\d|tr|thead|tbody|table|caption|details|summary|ul|li|br)\b[^>]*>")
LINE = 110


def words(html):
    """The text of some markup: a line for each paragraph or row, whose cells stand between bars."""
    html = re.sub(r"<svg.*?</svg>|<wbr>", "", html, flags=re.DOTALL)
    html = re.sub(r"<tr\b.*?</tr>", lambda row: f"\n{BLOCK.sub(' ', row[0])}\n", html, flags=re.DOTALL)
    text = unescape(re.sub(r"<[^>]+>", " ", BLOCK.sub("\n", html.replace("</td>", " |").replace("</th>", " |"))))
    lines = (" ".join(line.split()).rstrip(" |") for line in text.splitlines())
    return "\n".join(textwrap.fill(line, LINE, subsequent_indent="  ") for line in lines if line)


def card(pages, what):
    """The front page's card of something."""
    return words(re.search(rf'<div class="what">{what}.*?</p>', pages["index.html"], re.DOTALL)[0])


def section(page, heading):
    """What stands below a heading of a page, up to the next one; "" where it is not there."""
    found = re.search(rf"<h2>{heading}</h2>(.*?)(?=<h2>|<footer)", page, re.DOTALL)
    return "" if found is None else words(found[1])
