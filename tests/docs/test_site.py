"""The documentation site: made of the pages without a warning, readable offline, with every page in its navigation."""

import ast
import re
import subprocess
import sys

import pytest

from .blocks import PAGES, ROOT, name_of


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site as ``python3 dev.py docs`` writes it; Sphinx ends with 1 at a warning, as for a link to nothing."""
    sys.path.insert(0, str(ROOT))
    try:
        import dev
    finally:
        sys.path.remove(str(ROOT))
    out = tmp_path_factory.mktemp("site")
    ((_, *words),) = dev.TASKS["docs"]
    command = [sys.executable, *words, "-d", out / "doctrees", out / "html"]  # the later -d counts
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out / "html"


@pytest.mark.slow
def test_the_site_needs_no_network(site):
    """Every script, style sheet, font and picture is a file of the site."""
    for page in site.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r'<(?:script|img|source|link rel="stylesheet")[^>]*?(?:src|srcset|href)="([^"]+)"', text)
        for address in loaded:
            path = address.partition("?")[0]
            assert not re.match(r"(?:\w+:)?//", path), f"{page.name} loads {address}"
            assert (page.parent / path).exists(), f"{page.name} loads {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:\w+:)?//|@import", style.read_text()), style


@pytest.mark.slow
def test_the_site_has_every_page_and_the_api(site):
    """Each Markdown page that users read, the docstrings of the public functions, and words to search for."""
    front = (site / "index.html").read_text()
    pages = [page for page in PAGES if page.parent in {ROOT, ROOT / "docs"}]
    for page in pages:
        assert (site / name_of(page)).with_suffix(".html").exists()
        assert page.name == "README.md" or f'href="{name_of(page).removesuffix(".md")}.html"' in front, page
    api = (site / "docs/api.html").read_text()
    for package in ("rocattn", "rocattn.torch"):
        tree = ast.parse((ROOT / package.replace(".", "/") / "__init__.py").read_text())
        (names,) = (
            each.value for each in tree.body if isinstance(each, ast.Assign) and each.targets[0].id == "__all__"
        )
        assert [name for name in ast.literal_eval(names) if f'id="{package}.{name}"' not in api] == []
    assert 'id="rocattn.gpu.graphs.Graph"' in api
    assert "softcap" in (site / "searchindex.js").read_text()
