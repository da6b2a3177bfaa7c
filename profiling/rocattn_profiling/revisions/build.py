"""Build one side's environment: the project's wheel and its dependencies in a virtual environment.

A project with a ``build_command`` in its ``asv.conf.json`` and no ``requirements.lock`` is built with asv's commands,
run as asv runs them; any other project with its own build backend. Online builds use uv (or venv and pip). Offline
builds use the running interpreter's packages, which come after the project on the import path.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rocattn.errors import RocattnError
from rocattn_profiling.revisions.asv_config import Recipe
from rocattn_profiling.revisions.git import TIES, Revision
from rocattn_profiling.revisions.interpreters import FACTS, Facts, canonical, fitting_interpreter, read_facts
from rocattn_profiling.revisions.requirements import PROJECT_FILES, name_of

_NO_INDEX = re.compile(
    r"dns error|error sending request|failed to fetch|could not connect|network is unreachable|name resolution"
    r"|connection (refused|error|broken|reset)|newconnectionerror|max retries|no route to host|client error \(connect",
    re.IGNORECASE,
)
DISK_FULL = re.compile(
    r"no space left on device|out of diskspace|read-only file system|disk quota exceeded", re.IGNORECASE
)
# Runs a PEP 517 build in this interpreter.
_BUILD_WHEEL = (
    "import importlib, sys; sys.path[:0] = sys.argv[3:]\n"
    "name, _, path = sys.argv[1].partition(':'); backend = importlib.import_module(name)\n"
    "for part in path.split('.') if path else []: backend = getattr(backend, part)\n"
    "backend.build_wheel(sys.argv[2])"
)
_PURELIB = "import sysconfig; print(sysconfig.get_path('purelib'))"
_LEGACY_BACKEND = "setuptools.build_meta:__legacy__"  # PEP 517's for a project without a build-system table
_FRAME = " \t\u2502\u251c\u2570\u2500\u25b6\u00d7"  # the frame that uv draws around its errors
_WRAPPER = re.compile(
    r"build backend returned|subprocess-exited|Failed (to build|building)|metadata-generation-failed|failed-wheel-build"
    r"|Encountered error while generating|likely not a problem with pip"
)
_COMPILERS = re.compile(r"\S+:\d+(:\d+)?: (fatal )?error: ")  # not make's or setuptools' failure
# Errors from linkers and compiler drivers; the lines after them only report that a step failed.
_DRIVERS = re.compile(r".*\bundefined reference to |[\w.+/-]+: (fatal )?error: |CMake Error\b.*: ")
_LONGEST = 300  # maximum characters of the line that names the cause
_NOT_THERE = re.compile(
    r"No matching distribution|not found in the (package registry|cache)|no versions of", re.IGNORECASE
)
_OTHER_PYTHON = re.compile(r"requires a different Python: \S+ not in|does not satisfy Python")
_INSTALL_HERE = "; no package index is used, and this interpreter does not have it: install it where rocattn is"
_ASV_TOOLS = ("pip", "setuptools", "wheel", "build")  # installed in asv's environments before any requirement


class BuildError(RocattnError):
    """Raised if a revision cannot be built or installed, so it was not measured."""


class MatrixPinError(BuildError):
    """Raised if a version pinned in asv's matrix, possibly for another Python, cannot be installed."""


class DiskError(Exception):
    """Raised if a build tool could not write."""


class NoIndexError(Exception):
    """Raised if no package index answers; the caller then builds offline."""


class Build:
    """One build of a revision.

    Args:
        source: The checked-out repository.
        entry: A folder for the environment (``venv``), the wheel and ``build.log``.
        revision: The revision to build.
        recipe: How to build it.
        uv: uv's path; None to use venv and pip.
        offline: Use the running interpreter's packages instead of an index.
    """

    def __init__(
        self, source: Path, entry: Path, revision: Revision, recipe: Recipe, *, uv: str | None, offline: bool
    ) -> None:
        self.source, self.entry, self.revision, self.recipe = source, entry, revision, recipe
        self.uv, self.offline = (None if offline else uv), offline
        self.project = source / recipe.subdir
        self.venv, self.wheels, self.log = entry / "venv", entry / "wheel", entry / "build.log"
        self.siblings = entry / "siblings"
        self.python = str(self.venv / "bin" / "python")
        self.maker = recipe.python[0] or sys.executable

    def make(self) -> tuple[Facts, str]:
        """Build; return the environment's packages, and the project's canonical name ("" if unknown).

        Raises:
            BuildError: The revision does not build.
            DiskError, NoIndexError: The disk or the network failed, not the revision.
        """
        if not self.project.is_dir():
            raise self._unbuildable(f"it has no folder {self.recipe.subdir!r}, which asv.conf.json builds")
        if not any((self.project / name).is_file() for name in PROJECT_FILES) and ":" in self.recipe.repo:
            raise self._unbuildable(
                f"it has no pyproject.toml and no setup.py, and its asv.conf.json benchmarks {self.recipe.repo}: "
                "clone that, and name the clone with --repo and this suite with --suite"
            )
        if self.offline and self.maker != sys.executable:
            raise self._unbuildable("no package index is used, and the packages here are not those of --python")
        self.wheels.mkdir(exist_ok=True)
        locked = (self.source / "requirements.lock").is_file()
        if self.recipe.has_commands and not locked:
            self._follow_commands()
        elif self.offline:
            self._offline([] if locked else self.recipe.requirements)
        else:
            self._online([*([] if locked else self.recipe.requirements), *self.recipe.tests])
        wheels = sorted(self.wheels.glob("*.whl"))
        name = wheels[0].name.split("-")[0] if wheels else self.recipe.project
        return read_facts(self._run([self.python, "-c", FACTS])), canonical(name)

    def _offline(self, requirements: list[str]) -> None:
        self._check_lent(requirements)
        for folder, out in self._projects():
            backend, paths = self._backend(folder)
            self._run([sys.executable, "-c", _BUILD_WHEEL, backend, str(out), *paths], cwd=folder)
        self._run([sys.executable, "-m", "venv", "--without-pip", str(self.venv)])
        site = Path(self._run([self.python, "-c", _PURELIB]))
        for wheel in self._all_wheels():
            _unpack(Path(wheel), site)
        lend_running_packages(site)

    def _online(self, requirements: list[str]) -> None:
        if self.uv is not None:
            lock = constraints(self.source, self.entry, hashes=True)
            for folder, out in self._projects():
                build = [self.uv, "build", "--wheel", "--quiet", "--python", self.maker, "--out-dir", str(out), "."]
                self._run(build, cwd=folder)
            self._make_venv()
        else:
            lock = constraints(self.source, self.entry, hashes=False)
            self._make_venv()
            pip = [self.python, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
            for folder, out in self._projects():
                self._run([*pip, "--wheel-dir", str(out), "."], cwd=folder)
        self._install([*lock, *self._all_wheels(), *requirements])

    def _projects(self) -> list[tuple[Path, Path]]:
        """Return (project folder, wheel folder) pairs, the measured project first; siblings may exist only on head."""
        siblings = [self.source / folder for folder in self.recipe.siblings]
        if self.recipe.bare:
            return []
        return [(self.project, self.wheels), *((folder, self.siblings) for folder in siblings if folder.is_dir())]

    def _all_wheels(self) -> list[str]:
        own = [] if self.recipe.bare else [str(self._only_wheel())]
        return [*own, *map(str, sorted(self.siblings.glob("*.whl")))]

    def _make_venv(self) -> None:
        uv = [self.uv, "venv", "--quiet", "--python", self.maker] if self.uv else []
        self._run([*(uv or [self.maker, "-m", "venv"]), str(self.venv)])

    def _install(self, wanted: list[str]) -> None:
        if not wanted:
            return
        pip = [self.python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        uv = [self.uv, "pip", "install", "--quiet", "--python", self.python] if self.uv else []
        try:
            self._run([*(uv or pip), *wanted])
        except BuildError as error:
            if set(self.recipe.pins) & set(wanted):
                raise MatrixPinError(str(error)) from error
            raise

    def _follow_commands(self) -> None:
        """Run asv's commands in an environment set up like asv's: its tools, then the matrix's requirements."""
        if self.offline:
            self._check_lent(self.recipe.requirements)
            # virtualenv, like asv (and installed with it): needs no index for pip, and takes 1 s instead of 10 s.
            self._run([sys.executable, "-m", "virtualenv", "--quiet", "--no-download", str(self.venv)])
            lend_running_packages(Path(self._run([self.python, "-c", _PURELIB])))
        else:
            self._make_venv()
            # Replace venv's bundled versions, which are as old as that Python: builds may run without isolation.
            self._install(["--upgrade", *_ASV_TOOLS, *self.recipe.requirements, *self.recipe.tests])
        isolation = "--no-build-isolation " if self.offline else ""  # build isolation needs an index
        build = [f"python -m pip wheel --no-deps {isolation}-w {{build_cache_dir}} {{build_dir}}"]
        install = ["in-dir={env_dir} python -m pip install {wheel_file} --force-reinstall"]
        self._follow(build if self.recipe.build is None else self.recipe.build)
        self._follow(install if self.recipe.install is None else self.recipe.install)

    def _follow(self, commands: list[str]) -> None:
        from asv.util import UserError, interpolate_command

        variables = {
            "project": self.recipe.project,
            "env_name": "rocattn",
            "env_type": "virtualenv",
            "env_dir": str(self.venv),
            "conf_dir": str(self.source / self.recipe.conf_dir),
            "build_dir": str(self.project),
            "build_cache_dir": str(self.wheels),
            "commit": self.revision.sha,
        }
        for command in commands:
            wheels = sorted(self.wheels.glob("*.whl"))
            known = variables | ({"wheel_file": str(wheels[0])} if len(wheels) == 1 else {})
            try:
                words, own, statuses, folder = interpolate_command(command, known)
            except (UserError, ValueError, IndexError, AttributeError) as error:  # unbalanced quotes or braces
                what = str(error).split(" Available:")[0].removeprefix("Configuration error: ")
                raise self._unbuildable(f"asv.conf.json's command {command!r}: {what}") from error
            if not words:
                continue
            if "install" in words:  # the checkout is removed after the build: nothing may refer to it
                words = [word for word in words if word not in {"-e", "--editable"}]
            env = self.recipe.environment | {f"ASV_{k.upper()}": v for k, v in known.items()} | {"ASV": "true"} | own
            env["PATH"] = os.pathsep.join([str(self.venv / "bin"), os.environ.get("PATH", os.defpath)])
            program = shutil.which(words[0], path=env["PATH"]) or words[0]
            cwd = self.project / folder if folder else self.project
            self._run([program, *words[1:]], cwd=cwd, env=env, statuses=statuses)

    def _check_lent(self, requirements: list[str]) -> None:
        lent = {canonical(name) for name in running_packages()}
        names = [canonical(m.group()) for r in requirements if (m := re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", r))]
        if missing := [name for name in names if name not in lent]:
            raise self._unbuildable(f"asv's matrix wants {' and '.join(missing)}{_INSTALL_HERE}")

    def _unbuildable(self, why: str) -> BuildError:
        return BuildError(f"{self.revision.name} ({self.revision.short}) does not build: {why}")

    def _only_wheel(self) -> Path:
        wheels = sorted(self.wheels.glob("*.whl"))
        if len(wheels) != 1:
            raise self._unbuildable(f"its build left {len(wheels)} wheels instead of one")
        return wheels[0]

    def _backend(self, project: Path) -> tuple[str, list[str]]:
        """Return a project's build backend, and the source folders that are searched for it first."""
        try:
            tables = tomllib.loads((project / "pyproject.toml").read_text())
        except FileNotFoundError:
            if any((project / name).is_file() for name in PROJECT_FILES):
                return _LEGACY_BACKEND, []
            raise self._unbuildable("it has no pyproject.toml and no setup.py") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise self._unbuildable(f"its pyproject.toml is not valid TOML: {error}") from error
        system: dict[str, Any] = tables.get("build-system", {})
        paths = [str(project / path) for path in system.get("backend-path", [])]
        return str(system.get("build-backend", _LEGACY_BACKEND)), paths

    def _run(
        self,
        command: list[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        statuses: set[int] | None = frozenset({0}),  # type: ignore[assignment]  # from asv: a set, or None for any
    ) -> str:
        """Run one command, append its output to the log, and return the last line."""
        hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}
        variables = {key: value for key, value in os.environ.items() if key not in hidden | TIES}
        variables |= {"UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        variables |= env or {}
        try:
            done = subprocess.run(
                command, cwd=cwd or self.source, env=variables, capture_output=True, text=True, check=False,
                errors="replace", stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            raise self._unbuildable(f"{command[0]} does not start ({error.strerror}: {error.filename})") from error
        with self.log.open("a") as log:
            log.write(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}\n")
        if statuses is not None and done.returncode not in statuses:
            raise self._failure(done.stdout + "\n" + done.stderr)
        lines = done.stdout.strip().splitlines()
        return lines[-1] if lines else ""

    def _failure(self, said: str) -> Exception:
        last = meaningful_line(said)
        if DISK_FULL.search(said):
            return DiskError(last)
        if not self.offline and _NO_INDEX.search(said):
            return NoIndexError(last)
        other = ""
        if match := _OTHER_PYTHON.search(last):
            fitting = fitting_interpreter(last[match.end() :])
            other = f"; --python {fitting} is one that fits" if fitting else "; --python names another one"
        elif self.offline and "ModuleNotFoundError" in last:
            other = _INSTALL_HERE
        lacking = [name for name in map(name_of, self.recipe.requirements) if name and name in said.lower()]
        if self.recipe.conda and lacking and _NOT_THERE.search(said):
            other = (
                f"; asv's matrix asks for {' and '.join(lacking)} with conda, and here packages come from an index: "
                'name it as pip does ("pip+NAME"), or compare environments that have it with --base-python and '
                "--head-python"
            )
        return self._unbuildable(f"{last}{other} [log: {self.log}]")


def meaningful_line(said: str) -> str:
    """Return the output line that names the cause: a compiler's error, else the last error, else the last line."""
    lines = [line.strip(_FRAME) for line in said.splitlines()]
    if compilers := [line for line in lines if _COMPILERS.match(line)]:
        return compilers[0][:_LONGEST]
    if drivers := [line for line in lines if _DRIVERS.match(line)]:
        return drivers[0][:_LONGEST]
    lines = [line for line in lines if line and not line.lower().startswith(("hint:", "[notice]", "note:"))]
    named = [line for line in lines if re.search(r"\w*(Error|Exception)\b|\b(error|cause):|\berror at\b", line)]
    # uv's and pip's own closing lines only say that a build failed.
    useful = [line for line in named if not _WRAPPER.search(line)]
    return (useful or named or lines or ["it printed nothing"])[-1].removeprefix("cause: ")[:_LONGEST]


def running_packages() -> dict[str, str]:
    """Return name -> version of the packages that the running interpreter can import."""
    import importlib.metadata

    versions = {}
    for package in importlib.metadata.distributions():
        # Read only two lines of each package's metadata: parsing all of it takes seven times as long, in every build.
        text = package.read_text("METADATA") or package.read_text("PKG-INFO") or ""
        name, version = (re.search(rf"^{key}: *(\S+)", text, re.MULTILINE) for key in ("Name", "Version"))
        if name and version:
            versions[canonical(name[1])] = version[1]
    return versions


def _unpack(wheel: Path, site: Path) -> None:
    """Install a wheel by unpacking it: enough for a wheel without scripts, and needs no installer."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for data in site.glob("*.data"):
        for kind in ("purelib", "platlib"):
            if (data / kind).is_dir():
                shutil.copytree(data / kind, site, dirs_exist_ok=True)


def lend_running_packages(site: Path) -> None:
    """Append the running interpreter's site-packages to an environment's path, after its own."""
    # Plain path lines do not process the .pth files in those folders, such as an editable install of this project.
    folders = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    site.joinpath("rocattn-offline.pth").write_text("".join(f"{folder}\n" for folder in folders))


def constraints(source: Path, entry: Path, *, hashes: bool) -> list[str]:
    """Return the options that constrain an install to the revision's lock."""
    lock = source / "requirements.lock"
    if not lock.is_file():
        return []
    lines = lock.read_text().replace("\\\n", " ").splitlines()
    pins = [line for line in lines if re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line)]
    kept = pins if hashes else [line.split(" --hash=")[0].rstrip() for line in pins]
    path = entry / "constraints.txt"
    path.write_text("\n".join(kept) + "\n")
    return ["--constraint", str(path)]
