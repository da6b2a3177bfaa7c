"""The documents are true: links lead somewhere, commands parse, Python examples run (their commands: tests/docs)."""

import re
import shlex
import subprocess
import sys

import pytest

from rocattn_profiling import cli

from .docs.blocks import PAGES, ROOT, blocks, name_of

OURS = re.compile(r"(?:\w+=(?:\$\([^)]*\)|\S+) )*(rocattn .+)")
FENCE = re.compile(r"^\s*```.*?^\s*```$", re.MULTILINE | re.DOTALL)


def texts(page, language):
    """Return the fenced blocks of a language in a page."""
    return [block.text for block in blocks(page) if block.language == language]


def commands(page):
    """Return the ``rocattn …`` command lines of a page's shell blocks, comments taken off."""
    lines = "".join(texts(page, "sh")).replace("\\\n", " ").splitlines()
    found = [re.sub(r" > \S+", "", match[1]) for line in lines if (match := OURS.match(line))]
    return [shlex.split(line, comments=True)[1:] for line in found]


def anchors(page):
    """Return the anchors that a page's headings make on GitHub."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_inside_the_repository_lead_somewhere(page):
    """Every relative link and image of a page exists, its anchor included."""
    for link, image in re.findall(r"""\]\(([^)\s]+)\)|\bsrc(?:set)?="([^"]+)""", FENCE.sub("", page.read_text())):
        target = link or image
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(linked), f"{page.name} links to {target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
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
    shown = "".join(texts(ROOT / "README.md", "sh"))
    for command in ("make run", "make test", "python3 dev.py run", "python3 dev.py test"):
        assert command in shown


def test_every_page_is_in_the_index():
    """The list of documents, in reading order, leaves none out."""
    index = ROOT / "docs" / "README.md"
    linked = {target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", index.read_text())}
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {index.name} <= linked


def examples(page):
    """Return the Python blocks of a page; files are for its commands, and some need what no test has."""
    return [
        block.text for block in blocks(page)
        if block.language == "python" and not block.file and not block.reason.startswith("needs ")
    ]  # fmt: skip


@pytest.mark.parametrize("page", [page for page in PAGES if examples(page)], ids=name_of)
def test_python_examples_run(page, request):
    """Every Python block of a page runs, in order, in one fresh interpreter."""
    program = "\n".join(examples(page))
    if "import compile_hip" in program or "import compile_hostgpu" in program:
        request.getfixturevalue("compiler")
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, cwd=ROOT)
