"""A repository in which the commands of pages are run: this working tree, committed, with history and a few files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from ..profile.collect.conftest import ENTRY, Machine
from .blocks import ROOT

SECONDS = 1200
KEPT = ("ROCATTN_CACHE_DIR", "ROCATTN_COMPILER", "ROCATTN_HOSTGPU_OPTIMIZE")
_IDENTITY = {"GIT_AUTHOR_NAME": "A Reader", "GIT_AUTHOR_EMAIL": "reader@example.org", "GIT_CONFIG_GLOBAL": "/dev/null"}


def environment() -> dict[str, str]:
    """Return what commands of pages see: the tools of this environment, an identity for git, no GPU of this machine."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ROC", "HIP_", "HSA_", "GIT_", "GITHUB_"))}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)  # or each command compiles the clone's modules anew
    kept |= {name: os.environ[name] for name in KEPT if name in os.environ}
    committer = {key.replace("AUTHOR", "COMMITTER"): value for key, value in _IDENTITY.items()}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    return kept | _IDENTITY | committer | {"PATH": path, "NO_COLOR": "1"}


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder and return what it prints."""
    command = ["git", *arguments]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=True).stdout


def make_repository(folder: Path) -> Path:
    """Copy the files of this working tree and commit them twice, so that there is a parent; the branch is main."""
    folder.mkdir(parents=True)
    for name in _files():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    git(folder, "init", "--quiet", "--initial-branch", "main")
    for subject in ("Everything", "A second commit"):
        (folder / "NOTES").write_text(f"{subject}\n")
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", subject)
    return folder


def _files() -> list[str]:
    """Return the files of this checkout, tracked or new; of an unpacked archive, all but environments and results."""
    if (ROOT / ".git").exists():
        listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
        return [name for name in listed if name and (ROOT / name).is_file()]
    places = [place for place in ROOT.iterdir() if place.name not in {".venv", ".tools", ".asv", "out"}]
    files = [path for place in places for path in ([place] if place.is_file() else place.rglob("*"))]
    return [path.relative_to(ROOT).as_posix() for path in files if path.is_file() and "__pycache__" not in path.parts]


class Scratch:
    """The folder of one page: files that its commands name, and what they leave there."""

    def __init__(self, template: Path, folder: Path) -> None:
        git(template, "clone", "--quiet", "--shared", ".", str(folder))
        self.folder = folder
        self.profilers: Path | None = None

    def write(self, name: str, text: str) -> None:
        """Write a file that a page shows."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def shell(self, script: str, *, with_profilers: bool = False) -> subprocess.CompletedProcess[str]:
        """Run commands in a shell that ends at the first failure; output and errors come as one text."""
        home = self.folder.with_name(f"{self.folder.name}-home")
        home.mkdir(exist_ok=True)
        caches = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))  # what is compiled stays compiled
        env = environment() | {"HOME": str(home), "XDG_CACHE_HOME": caches}
        # The clone's own code: results then go into the clone's store, and not into that of this checkout.
        env["PYTHONPATH"] = os.pathsep.join([str(self.folder), str(self.folder / "profiling")])
        if with_profilers:
            self.profilers = self.profilers or _profilers(self.folder.with_name(f"{self.folder.name}-rocm"))
            env["PATH"] = os.pathsep.join([str(self.profilers), env["PATH"]])
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, check=False, timeout=SECONDS,
        )  # fmt: skip


def _profilers(root: Path) -> Path:
    """Return a folder with stand-ins for AMD's profilers, which write files of the documented form."""
    machine = Machine(root)
    for name in ENTRY:
        machine.install(name)
    return machine.bin
