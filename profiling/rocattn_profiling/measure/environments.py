"""Environments: the wheel of a revision and its dependencies in a virtual environment of its own, cached.

Online, uv (or venv and pip) installs the dependencies, held to the revision's own ``requirements.lock`` when it has
one. Offline (``ROCATTN_OFFLINE=1``, or no index answers) the environment is the running interpreter's packages with
the revision's wheel in front; every result says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.measure import revisions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocattn_profiling.measure.revisions import Revision

KEEP = 12  # environments in the cache; one is 20 to 400 MB, mostly hard links into uv's cache
FRESH_S = 6 * 3600.0  # one used this recently is never removed: a running gate may hold it
_NO_INDEX = re.compile(
    r"dns error|error sending request|failed to fetch|could not connect|network is unreachable|name resolution"
    r"|connection (refused|error|broken|reset)|newconnectionerror|max retries|no route to host|client error \(connect",
    re.IGNORECASE,
)
_DISK = re.compile(r"no space left on device|out of diskspace|read-only file system|disk quota exceeded", re.IGNORECASE)
# A PEP 517 build in this interpreter.
_BUILD_WHEEL = (
    "import importlib, sys; name, _, path = sys.argv[1].partition(':'); backend = importlib.import_module(name)\n"
    "for part in path.split('.') if path else []: backend = getattr(backend, part)\n"
    "backend.build_wheel(sys.argv[2])"
)


_FRAME = " \t\u2502\u251c\u2570\u2500\u25b6\u00d7"  # what uv draws around its errors
_WRAPPER = re.compile(r"build backend returned|subprocess-exited|Failed to build")


class BuildError(RocattnError):
    """Raised when a revision cannot be built or installed: it was not measured."""


class CacheError(RocattnError):
    """Raised when the cache folder does not take files."""


class _NoIndexError(Exception):
    """No package index answers: the caller goes offline."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """A ready environment of one revision.

    Attributes:
        python: Its interpreter.
        folder: The cache entry that holds it, with ``build.log``; both are paths.
        offline: Whether dependencies are the running interpreter's instead of the revision's own.
        packages: Name -> version of everything it can import.
        python_version: Like "3.11.7".
    """

    python: str
    folder: str
    offline: bool
    packages: dict[str, str]
    python_version: str


def cache_root() -> Path:
    """Return the gate's cache folder: ``$ROCATTN_CACHE_DIR`` or the user's cache folder."""
    given = os.environ.get("ROCATTN_CACHE_DIR")
    if given:
        return Path(given).expanduser().absolute() / "gate"
    import platformdirs

    return platformdirs.user_cache_path("rocattn") / "gate"


def find_uv() -> str | None:
    """Return uv: ``$ROCATTN_UV`` (empty for none), beside the interpreter, or on PATH."""
    if (given := os.environ.get("ROCATTN_UV")) is not None:
        return given or None
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv")


def offline_wanted() -> bool:
    """Whether ``$ROCATTN_OFFLINE`` asks not to reach for an index."""
    return os.environ.get("ROCATTN_OFFLINE", "") not in {"", "0"}


def build(repo: Path, revision: Revision, *, offline: bool | None = None) -> Environment:
    """Return the environment of a revision, from the cache or freshly built.

    Args:
        repo: The repository's top folder.
        revision: What to build.
        offline: True to use the running interpreter's packages; None to decide by ``$ROCATTN_OFFLINE`` and, if no
            index answers, to fall back.

    Raises:
        BuildError: When the revision does not build; names the log.
        CacheError: When the cache folder does not take it.
    """
    wanted = offline_wanted() if offline is None else offline
    try:
        return _cached(repo, revision, offline=wanted)
    except _NoIndexError as error:
        if offline is False:
            raise BuildError(f"cannot build {revision.name}: no package index answers ({error})") from error
        return _cached(repo, revision, offline=True)


def _cached(repo: Path, revision: Revision, *, offline: bool) -> Environment:
    from filelock import FileLock

    root = cache_root()
    entry = root / "envs" / _key(revision, offline=offline)
    with _cache_errors(root):
        entry.parent.mkdir(parents=True, exist_ok=True)
        revisions.prune_checkouts(root / "scratch")
        with FileLock(entry.with_suffix(".lock")):
            stamp = entry / "stamp.json"
            if ready := _read_stamp(stamp):
                os.utime(stamp)
                return ready
            shutil.rmtree(entry, ignore_errors=True)
            entry.mkdir()
            _prune(entry.parent)
            with revisions.checkout(repo, revision, root / "scratch") as source:
                ready = _make(source, entry, revision, offline=offline)
            # The stamp comes last: an entry without one was killed half-way and is rebuilt.
            partial = entry / ".stamp.partial"
            partial.write_bytes(msgspec.json.encode(ready))
            partial.replace(stamp)
            return ready


def _read_stamp(stamp: Path) -> Environment | None:
    try:
        ready = msgspec.json.decode(stamp.read_bytes(), type=Environment)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None
    return ready if Path(ready.python).exists() else None


def _key(revision: Revision, *, offline: bool) -> str:
    """Hash what decides an environment's content; the lock is part of the tree."""
    parts = [revision.tree, sys.executable, sys.version, platform.machine(), _runner_version(), str(offline)]
    if offline:  # then the running interpreter's packages are the dependencies
        parts += [f"{name}=={version}" for name, version in sorted(_running_packages().items())]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


@contextlib.contextmanager
def _cache_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except revisions.RevisionError as error:
        if _DISK.search(str(error)):
            raise CacheError(_cache_message(root, str(error))) from error
        raise
    except OSError as error:
        raise CacheError(_cache_message(root, error.strerror or str(error))) from error


def _cache_message(root: Path, cause: str) -> str:
    return f"the cache folder {root} cannot be written ({cause}): free it, or name another with ROCATTN_CACHE_DIR"


def _runner_version() -> str:
    return importlib.metadata.version("asv_runner")


def _running_packages() -> dict[str, str]:
    return {_canonical(d.name): d.version for d in importlib.metadata.distributions() if d.name}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _make(source: Path, entry: Path, revision: Revision, *, offline: bool) -> Environment:
    """Build the wheel and the environment in a cache entry."""
    uv = None if offline else find_uv()
    venv, wheels, log = entry / "venv", entry / "wheel", entry / "build.log"
    python = venv / "bin" / "python"
    steps = _Steps(source, log, revision, offline=offline)
    if offline:
        steps.run([sys.executable, "-c", _BUILD_WHEEL, _backend(source, revision), str(wheels)], make=wheels)
        steps.run([sys.executable, "-m", "venv", "--without-pip", str(venv)])
        _unpack(_only_wheel(wheels, revision), Path(steps.run([str(python), "-c", _PURELIB])))
        _lend_running_packages(Path(steps.run([str(python), "-c", _PURELIB])))
    elif uv is not None:
        lock = _constraints(source, entry, hashes=True)
        steps.run([uv, "build", "--wheel", "--quiet", "--python", sys.executable, "--out-dir", str(wheels), "."])
        steps.run([uv, "venv", "--quiet", "--python", sys.executable, str(venv)])
        wanted = [str(_only_wheel(wheels, revision)), f"asv-runner=={_runner_version()}"]
        steps.run([uv, "pip", "install", "--quiet", "--python", str(python), *lock, *wanted])
    else:
        lock = _constraints(source, entry, hashes=False)
        steps.run([sys.executable, "-m", "venv", str(venv)])
        pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
        steps.run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels), "."])
        wanted = [str(_only_wheel(wheels, revision)), f"asv-runner=={_runner_version()}"]
        steps.run([*pip, "install", "--quiet", *lock, *wanted])
    facts = msgspec.json.decode(steps.run([str(python), "-P", "-s", "-c", _FACTS]), type=tuple[str, dict[str, str]])
    packages = {_canonical(name): version for name, version in sorted(facts[1].items())}
    return Environment(
        python=str(python), folder=str(entry), offline=offline, packages=packages, python_version=facts[0]
    )


_PURELIB = "import sysconfig; print(sysconfig.get_path('purelib'))"
# The first distribution found on the path is the one that is imported.
_FACTS = (
    "import importlib.metadata as m, json, platform; p = {}\n"
    "for d in m.distributions():\n    if d.name: p.setdefault(d.name.lower().replace('_', '-'), d.version)\n"
    "print(json.dumps([platform.python_version(), p]))"
)


class _Steps:
    """Runs the commands of one build, keeping all they print in its log."""

    def __init__(self, source: Path, log: Path, revision: Revision, *, offline: bool) -> None:
        self.source, self.log, self.revision, self.offline = source, log, revision, offline

    def run(self, command: list[str], *, make: Path | None = None) -> str:
        """Run one command in the source folder and return the last line it printed."""
        if make is not None:
            make.mkdir(exist_ok=True)
        hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}
        env = {key: value for key, value in os.environ.items() if key not in hidden}
        env |= {"UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command, cwd=self.source, env=env, capture_output=True, text=True, check=False, errors="replace"
            )
        except FileNotFoundError as error:
            raise BuildError(f"cannot build {self.revision.name}: {command[0]} does not start") from error
        with self.log.open("a") as log:
            log.write(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}\n")
        if done.returncode:
            raise self._failure(done.stdout + "\n" + done.stderr)
        lines = done.stdout.strip().splitlines()
        return lines[-1] if lines else ""

    def _failure(self, said: str) -> Exception:
        last = meaningful_line(said)
        if _DISK.search(said):
            return CacheError(_cache_message(cache_root(), last))
        if not self.offline and _NO_INDEX.search(said):
            return _NoIndexError(last)
        what = f"{self.revision.name} ({self.revision.short})"
        return BuildError(f"{what} does not build: {last} [log: {self.log}]")


def meaningful_line(said: str) -> str:
    """Return the line of a build tool's output that names the cause: the last with an error, else the last."""
    lines = [line.strip(_FRAME) for line in said.splitlines()]
    lines = [line for line in lines if line and not line.lower().startswith(("hint:", "[notice]", "note:"))]
    named = [line for line in lines if re.search(r"\w*(Error|Exception)\b|\b(error|cause):|\berror at\b", line)]
    # uv's and pip's own closing lines only say that a build failed.
    useful = [line for line in named if not _WRAPPER.search(line)]
    return (useful or named or lines or ["it printed nothing"])[-1].removeprefix("cause: ")[:300]


def _backend(source: Path, revision: Revision) -> str:
    try:
        tables = tomllib.loads((source / "pyproject.toml").read_text())
    except FileNotFoundError:
        raise BuildError(f"{revision.name} does not build: it has no pyproject.toml") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BuildError(f"{revision.name} does not build: its pyproject.toml is not valid TOML: {error}") from error
    return str(tables.get("build-system", {}).get("build-backend", "setuptools.build_meta"))


def _only_wheel(wheels: Path, revision: Revision) -> Path:
    found = sorted(wheels.glob("*.whl"))
    if len(found) != 1:
        raise BuildError(f"{revision.name} does not build: its build left {len(found)} wheels instead of one")
    return found[0]


def _unpack(wheel: Path, site: Path) -> None:
    """Install a wheel by unpacking it: all that a wheel without scripts needs, and works with no installer at all."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for data in site.glob("*.data"):
        for kind in ("purelib", "platlib"):
            if (data / kind).is_dir():
                shutil.copytree(data / kind, site, dirs_exist_ok=True)


def _lend_running_packages(site: Path) -> None:
    """Append the running interpreter's site-packages to the path of an environment, behind its own."""
    # As plain path lines: the .pth files inside those folders (editable installs of the very project) stay unread.
    folders = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    site.joinpath("rocattn-offline.pth").write_text("".join(f"{folder}\n" for folder in folders))


def _constraints(source: Path, entry: Path, *, hashes: bool) -> list[str]:
    """Return the options that hold an install to the revision's lock, without what we pin ourselves."""
    lock = source / "requirements.lock"
    if not lock.is_file():
        return []
    text = lock.read_text().replace("\\\n", " ")
    kept = []
    for line in text.splitlines():
        name = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line)
        if name is None or _canonical(name.group()) == "asv-runner":
            continue
        kept.append(line if hashes else line.split(" --hash=")[0].rstrip())
    path = entry / "constraints.txt"
    path.write_text("\n".join(kept) + "\n")
    return ["--constraint", str(path)]


def _prune(envs: Path) -> None:
    """Remove the longest unused environments beyond `KEEP`."""
    used = []
    for entry in envs.iterdir():
        if entry.is_dir():
            stamp = entry / "stamp.json"
            used.append((stamp.stat().st_mtime if stamp.exists() else entry.stat().st_mtime, entry))
    for last_use, entry in sorted(used, reverse=True)[KEEP:]:
        if time.time() - last_use > FRESH_S:
            shutil.rmtree(entry, ignore_errors=True)


def differences(base: Environment, head: Environment) -> dict[str, tuple[str, str]]:
    """Return package -> (version in base, version in head) where they differ; "" where absent."""
    names = base.packages.keys() | head.packages.keys()
    pairs = {name: (base.packages.get(name, ""), head.packages.get(name, "")) for name in sorted(names)}
    found = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if base.python_version != head.python_version:
        found["python"] = (base.python_version, head.python_version)
    return found
