"""Query the content of an environment from its interpreter, of any version and origin."""

from __future__ import annotations

import hashlib
import operator
import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import msgspec

from rocattn.errors import RocattnError, complaint

_NEWEST = 16
OLDEST = (3, 10)  # the oldest Python that the worker runs on
_TIMEOUT_S = 60.0
_WALKED_FILES = 50_000
_PASSED_OVER = {".git", "__pycache__", ".venv", "node_modules", ".asv", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
# Runs in any Python 3; the first distribution found on the path is the one that is imported.
FACTS = """
import json, os, platform
try:
    from importlib.metadata import distributions
except ImportError:
    distributions = list
packages, installed, sources = {}, [], []
for one in distributions():
    header = one.metadata
    name, version = header["Name"], header["Version"] or ""
    if not name or name.lower().replace("_", "-") in packages:
        continue
    packages[name.lower().replace("_", "-")] = version
    path = getattr(one, "_path", None)
    if path is not None:
        installed.append([name, version, os.stat(str(path)).st_mtime_ns if os.path.exists(str(path)) else 0])
    origin = json.loads(one.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable") and origin.get("url", "").startswith("file://"):
        sources.append(origin["url"][7:])
    elif str(path).endswith(".egg-info") and os.path.basename(os.path.dirname(str(path))) not in (
        "site-packages", "dist-packages"
    ):
        sources.append(os.path.dirname(str(path)))
print(json.dumps([platform.python_version(), packages, sorted(installed), sorted(sources)]))
"""


class InterpreterError(RocattnError):
    """Raised if an existing environment's Python cannot be used."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The content of an environment.

    Attributes:
        python_version: Like "3.11.7".
        packages: Canonical name -> version of every importable package.
        installed: The state of its installed packages; changes with every installation.
        sources: Folders that editable installs are imported from.
    """

    python_version: str
    packages: dict[str, str]
    installed: list[tuple[str, str, int]] = []
    sources: list[str] = []

    def digest(self) -> str:
        """Hash everything that determines what is imported, editable installs by their files' sizes and times."""
        state = hashlib.sha256(repr((self.python_version, self.installed)).encode())
        for folder in self.sources:
            state.update(folder_digest(Path(folder)).encode())
        return state.hexdigest()


def canonical(name: str) -> str:
    """Return a package's name, normalized by PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_facts(printed: str) -> Facts:
    """Decode the output of `FACTS`."""
    version, packages, installed, sources = msgspec.json.decode(
        printed, type=tuple[str, dict[str, str], list[tuple[str, str, int]], list[str]]
    )
    named = {canonical(name): number for name, number in sorted(packages.items())}
    return Facts(python_version=version, packages=named, installed=installed, sources=sources)


def folder_digest(folder: Path) -> str:
    """Hash names, sizes and times of the files below a folder, without reading them."""
    state = hashlib.sha256()
    count = 0
    for path, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _PASSED_OVER)
        for name in sorted(files):
            try:
                status = Path(path, name).stat()
            except OSError:
                continue  # a broken link
            state.update(f"{path}/{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
            count += 1
        if count > _WALKED_FILES:
            break
    return state.hexdigest()


def fitting_interpreter(wanted: str) -> str:
    """Return the newest working ``python3.N`` on PATH within bounds such as ``>=3.12,<4``; "" if there is none."""
    bounds = re.findall(r"(>=|<=|>|<)\s*(\d+)(?:\.(\d+))?", wanted)
    compare = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
    for minor in range(_NEWEST, OLDEST[1] - 1, -1):
        name = f"python3.{minor}"
        if all(compare[sign]((3, minor), (int(major), int(part or 0))) for sign, major, part in bounds):
            with suppress(InterpreterError):  # pyenv has shims for inactive versions, too
                find_interpreter(name, "--python")
                return name
    return ""


def find_interpreter(python: str, option: str) -> tuple[str, Facts]:
    """Return the absolute path of an existing environment's Python, and the environment's content.

    Args:
        python: A path (of the interpreter or of the environment's folder), or a command on PATH.
        option: The option it came from, for the error's text.

    Raises:
        InterpreterError: It does not exist, is not a Python, or is too old.
    """
    path = Path(python).expanduser()
    if path.is_dir() and (path / "bin" / "python").exists():
        path = path / "bin" / "python"
    program = shutil.which(path.absolute() if os.sep in python or path.exists() else python)
    if program is None:
        what = "is a folder without bin/python" if path.is_dir() else "is not a program"
        raise InterpreterError(f"{option} {python}: {what}; name an environment's Python, like .venv/bin/python")
    # Do not resolve links: a virtual environment's interpreter is a link, whose location determines the environment.
    program = os.path.abspath(program)  # noqa: PTH100 - Path.resolve would follow the link
    hidden = {"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV"}
    env = {key: value for key, value in os.environ.items() if key not in hidden}
    try:
        done = subprocess.run(
            [program, "-c", FACTS], env=env, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL, errors="replace",
        )  # fmt: skip
        facts = read_facts(done.stdout.strip().splitlines()[-1]) if done.stdout.strip() else None
    except subprocess.TimeoutExpired as error:
        raise InterpreterError(f"{option} {python} does not answer within {_TIMEOUT_S:g} s") from error
    except (OSError, msgspec.DecodeError) as error:
        raise InterpreterError(f"{option} {python} does not answer like a Python interpreter: {error}") from error
    if done.returncode or facts is None:
        # Another program may echo the whole script in its error: show only the beginning.
        why = complaint(done.stderr)[:160]
        raise InterpreterError(f"{option} {python} does not answer like a Python interpreter: {why}")
    if tuple(int(part) for part in facts.python_version.split(".")[:2]) < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise InterpreterError(
            f"{option} {python} is Python {facts.python_version}; benchmarks run on {wanted} and later"
        )
    return program, facts
