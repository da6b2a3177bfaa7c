"""The commands of the pages do what the pages say: each block is run, or its page says why not."""

import re

import pytest

from rocattn_profiling.verify.cases import LEVELS, cases

from .blocks import PAGES, ROOT, SHELLS, blocks, blocks_of, missing_line, name_of
from .scratch import Scratch, make_repository

KINDS = re.compile(r'run(?:, status \d)?(?:, with profilers)?|not run(?: "[^"]+")?: .+|file: [\w.-]+|output')
NO_TOOL = re.compile(r"no llvm-objdump for .*")


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """The repository that every page's folder is a clone of."""
    return make_repository(tmp_path_factory.mktemp("docs") / "rocattn")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_block_is_run_or_says_why_not(page):
    """There is no third kind of block, and none that the test would not see."""
    for block in blocks(page):
        assert block.language not in SHELLS, f"{block.where}: the language of commands is sh"
        unknown = [mark for mark in block.marks if not KINDS.fullmatch(mark)]
        assert not unknown, f"{block.where}: {unknown}: tests/docs/blocks.py lists what a comment may say"
        if block.file:
            stem = block.file.rpartition(".")[0]
            scripts = [other.script() for other in blocks(page) if other.run is not None]
            assert any(stem in script for script in scripts), f"{block.where}: no command that is run uses the file"
        if block.language != "sh":
            assert block.run is None, f"{block.where}: only a block of commands is run"
            assert not block.left_out, f"{block.where}: only commands can be left out"
            continue
        assert not block.indent, f"{block.where}: a block of commands stands at the beginning of the line"
        decided = (block.run is None) != (not block.reason)
        assert decided, f"{block.where}: write <!-- run --> or <!-- not run: reason --> above it"
        reasons = " ".join([block.reason, *block.left_out.values()])
        for path in re.findall(r"(?:tests|docs|benchmarks)/[\w/.-]*\w", reasons):
            assert (ROOT / path).exists(), f"{block.where}: its reason names {path}, which is not there"
        for text in block.left_out:
            assert block.run is not None, f"{block.where}: nothing of it is run anyway"
            assert text in block.text, f"{block.where}: no line has {text!r}"
        assert any(line.strip() for line in block.script().splitlines()), f"{block.where}: nothing is left to run"


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if any(b.run is not None for b in blocks(page))], ids=name_of)
def test_commands_of_a_page_run(page, template, tmp_path):
    """In order, in one folder, from a fresh clone; what a page shows of their output is what they print."""
    scratch = Scratch(template, tmp_path / "rocattn")
    for block in blocks(page):
        if block.file:
            scratch.write(block.file, block.text)
    printed = None
    missing_tools = set()
    for block in blocks(page):
        if block.run is not None:
            done = scratch.shell(block.script(), with_profilers="with profilers" in block.run)
            wanted = next((int(part.split()[1]) for part in block.run if part.startswith("status ")), 0)
            printed = done.stdout
            assert done.returncode == wanted, f"{block.where}: status {done.returncode}\n{block.script()}\n{printed}"
        elif "output" in block.marks:
            assert printed is not None, f"{block.where}: nothing was run before"
            line = missing_line(block.text, printed)
            if line and (without := NO_TOOL.search(printed)):  # a command that says so has printed less, and was right
                missing_tools.add(f"{block.where} is not compared: {without[0]}")
                continue
            assert not line, f"{block.where}: not printed: {line}\n{printed}"
    # Sources alone lie there: what a command builds among them would get into the wheel, and into the next comparison.
    assert scratch.shell("git status --porcelain -- kernels rocattn profiling").stdout == ""
    if missing_tools:
        pytest.skip("; ".join(sorted(missing_tools)))


def test_counts_of_cases_are_those_of_the_sweeps():
    """As `rocattn verify --list` has them."""
    page = (ROOT / "docs/verifying.md").read_text().lower()
    assert [level for level in LEVELS if not re.search(rf"\b{level} \({len(cases(level))}\b", page)] == []


def test_a_line_that_is_not_printed_is_found():
    """Numbers may differ, words and order may not."""
    printed = "built 3 kernels in 1.25 s\n a   b\n ───\nlast /tmp/x.json line\n"
    assert missing_line("built 12 kernels in 9 s\n a b\n ─────\n", printed) == ""
    assert missing_line("last … line\n", printed) == ""
    assert missing_line("built 12 files in 9 s\n", printed) == "built 12 files in 9 s"
    assert missing_line("verify: 3 checked\n", "verify: 4 checked\n") == "verify: 3 checked"
    assert missing_line("a b\nbuilt 3 kernels in 1.25 s\n", printed) == "built 3 kernels in 1.25 s"


def test_comments_belong_to_the_block_directly_below():
    """Another line between them takes the comment away; several comments of one block add up."""
    text = '<!-- run, status 3 -->\n<!-- not run "b": slow -->\n```sh\na\nb  # c\n```\n<!-- run -->\n\n```sh\nd\n```\n'
    first, second = blocks_of(text)
    assert (first.run, first.left_out, first.script()) == ({"status 3"}, {"b": "slow"}, "a\n")
    assert (second.run, second.reason, second.line) == (None, "", 9)
    (refused,) = blocks_of("<!-- not run: needs an AMD GPU -->\n```sh\nsudo reboot\n```\n")
    assert (refused.run, refused.reason) == (None, "needs an AMD GPU")
