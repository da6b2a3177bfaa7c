"""The documents are true: links lead somewhere, commands parse, Python examples run."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rocattn_profiling import cli

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "kernels").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page, language):
    """Return the fenced blocks of a language in a page."""
    return [text for kind, text in FENCE.findall(page.read_text()) if kind == language]


def commands(page):
    """Return the ``rocattn …`` command lines of a page's shell blocks, comments taken off."""
    lines = "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    found = [shlex.split(re.sub(r" > \S+", "", line), comments=True) for line in lines]
    return [words[1:] for words in found if words and words[0] == "rocattn"]


def anchors(page):
    """Return the anchors that a page's headings make on GitHub."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_inside_the_repository_lead_somewhere(page):
    """Every relative link and image of a page exists, its anchor included."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(linked), f"{page.name} links to {target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_documented_commands_parse(page):
    """A command line that a page shows is one that the command takes: no option is invented or out of date."""
    for words in commands(page):
        verbs = [word for word in words if word in cli.VERBS]
        if not verbs:
            assert words[0] in {"--help", "--version"}, words
            continue
        parser = cli.parser_for(verbs[0])
        line = f"{page.name}: rocattn {' '.join(words)}"
        parser.error = lambda message, line=line: pytest.fail(f"{line}: {message}")
        parser.parse_args(words[words.index(verbs[0]) + 1 :])


def test_the_readme_shows_the_two_commands():
    """A newcomer finds both commands, with and without make."""
    shown = "".join(blocks(ROOT / "README.md", "sh"))
    for command in ("make run", "make test", "python3 dev.py run", "python3 dev.py test"):
        assert command in shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_examples_run(page):
    """Every Python block of a page runs, in order, in one fresh interpreter."""
    code = "\n".join(blocks(page, "python"))
    if code:
        subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=ROOT)
