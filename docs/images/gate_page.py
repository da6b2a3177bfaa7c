"""Pictures of the page that ``rocattn gate run`` writes: a small project, a planted slowdown, a real run, Chromium.

The numbers on the page are those of the machine that runs this, so it should be idle.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WIDTH, HEIGHT, SCALE = 640, 716, 2  # CSS pixels, down to the command that repeats it; and the picture's for one
LIBRARY = '''\
"""Counts words."""


def count(text):
    """Return how often each word occurs."""
    found = {}
    for word in text.split():
        found[word] = found.get(word, 0) + 1
    return found


def longest(text):
    """Return the longest word."""
    return max(text.split(), key=len)


def sentences(text):
    """Return the sentences of a text."""
    return [part.strip() for part in text.split(".") if part.strip()]
'''
SUITE = """\
import wordcount


class Words:
    def setup(self):
        self.text = "the quick brown fox jumps over the lazy dog. " * 500

    def time_count(self):
        wordcount.count(self.text)

    def time_longest(self):
        wordcount.longest(self.text)

    def time_sentences(self):
        wordcount.sentences(self.text)
"""
FILES = {
    "pyproject.toml": '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n\n'
    '[project]\nname = "wordcount"\nversion = "0.1"\n',
    "wordcount/__init__.py": LIBRARY,
    "benchmarks/asv.conf.json": '{"version": 1, "project": "wordcount", "repo": "..", "benchmark_dir": "."}\n',
    "benchmarks/bench_words.py": SUITE,
    ".gitignore": "out/\n__pycache__/\n",
}
SLOWER = LIBRARY.replace("for word in text.split():", "for word in sorted(text.split()):")
_IDENTITY = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in
             (("NAME", "A Reader"), ("EMAIL", "reader@example.org"))}  # fmt: skip


def make_project(folder: Path) -> None:
    """Write a project of two commits; the second one plants the slowdown."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    _git(folder, "init", "--quiet", "--initial-branch", "main")
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--message", "Count words")
    (folder / "wordcount/__init__.py").write_text(SLOWER)
    _git(folder, "commit", "--quiet", "--all", "--message", "Count words in the order of the alphabet")


def photograph(page: Path, picture: Path, *, dark: bool, size: tuple[int, int] = (WIDTH, HEIGHT)) -> None:
    """Write a picture of a page's top, of a size in CSS pixels.

    Raises:
        SystemExit: Without Chromium.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("pages are not photographed: install chromium")
    flags = [
        "--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={size[0]},{size[1]}",
        f"--force-device-scale-factor={SCALE}", f"--screenshot={picture}",
        *(["--blink-settings=preferredColorScheme=0"] if dark else []),
    ]  # fmt: skip
    subprocess.run([chromium, *flags, page.as_uri()], check=True, capture_output=True)


def _git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, env=os.environ | _IDENTITY, check=True)


def take(images: Path) -> None:
    """Make the project, run the gate on it, and write both pictures into a folder.

    Raises:
        SystemExit: Unless the gate ends with status 1: the planted slowdown was not found.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_project(folder)
        command = [str(Path(sys.executable).parent / "rocattn"), "gate", "run"]
        status = subprocess.run(command, cwd=folder, check=False).returncode
        if status != 1:
            raise SystemExit(f"the planted slowdown was not found: rocattn gate run ended with {status}")
        page = folder / "out/gate/index.html"
        photograph(page, images / "gate-page.png", dark=False)
        photograph(page, images / "gate-page-dark.png", dark=True)
