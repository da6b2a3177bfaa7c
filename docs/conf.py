"""Sphinx makes the documentation site of the same Markdown pages that GitHub shows: ``python3 dev.py docs``.

The source folder is the repository, so that links between pages, and to files that are no pages, hold as they are.
The order of the navigation is that of docs/README.md.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "profiling")]

import rocattn  # noqa: E402 - from this checkout

project, author, release = "rocattn", "The rocattn authors", rocattn.__version__
project_copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = [
    "*.md", "docs/*.md", "docs/*.rst", "kernels/**.md", "benchmarks/*.md", "research/*.md", "tests/attention/*.md",
]  # fmt: skip
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"rocattn {release}"
html_baseurl = ""
html_show_sourcelink = html_copy_source = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_mock_imports = ["torch"]  # for `rocattn.torch`: whoever writes pages need not install it
default_role = "literal"  # single backticks, as in Markdown
# MyST highlights what a fence names; commands, outputs and diffs are shown as they are.
highlight_language = "none"


def _navigation() -> str:
    """Return hidden tables of contents, one for each bold heading of docs/README.md with the links below it."""
    lines = []
    for part in re.split(r"^\*\*", (ROOT / "docs/README.md").read_text(), flags=re.MULTILINE)[1:]:
        caption, _, links = part.partition("**")
        pages = [f"docs/{target}" for target in re.findall(r"\]\(([\w./-]+\.md)\)", links)]
        lines += ["```{toctree}", ":hidden:", f":caption: {caption}", *pages, "```", ""]
    more = ["docs/api", "docs/README", "CONTRIBUTING", "CHANGELOG", "kernels/README", "kernels/hostgpu/README"]
    more += ["benchmarks/README", "research/README"]
    return "\n".join([*lines, "```{toctree}", ":hidden:", ":caption: Reference", *more, "```", ""])


def _add_navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    """Give the front page the navigation, which GitHub has no use for."""
    if page == root_doc:
        source[0] += f"\n\n{_navigation()}"


def _finish(app: Sphinx, error: Exception | None) -> None:
    """Copy the pictures that HTML names, which Sphinx does not see, and let the folder open at the front page."""
    if error is None:
        programs = shutil.ignore_patterns("*.py", "__*")
        shutil.copytree(ROOT / "docs/images", app.outdir / "docs/images", dirs_exist_ok=True, ignore=programs)
        shutil.copyfile(app.outdir / "README.html", app.outdir / "index.html")


def setup(app: Sphinx) -> None:
    """Connect the two."""
    app.connect("source-read", _add_navigation)
    app.connect("build-finished", _finish)
