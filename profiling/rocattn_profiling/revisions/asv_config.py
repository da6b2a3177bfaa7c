"""Read an ``asv.conf.json`` for the gate: the suite's folder, how to build the project, and its requirements."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec

from rocattn.errors import RocattnError

DEFAULT_TIMEOUT_S = 60.0  # asv's default_benchmark_timeout
FILE = "asv.conf.json"
FILES = (FILE, "asv.conf.jsonc")  # the names that asv looks for
_CONDA = frozenset({"conda", "mamba", "rattler"})
OUR_RESULTS, ASV_RESULTS = ".asv/results", "results"  # defaults without an asv.conf.json, without results_dir
USUAL_FOLDERS = ("benchmarks/", "asv_bench/", "asv_benchmarks/", "benchmark/", "asv/", "perf/")


class SuiteError(RocattnError):
    """Raised if a suite or its configuration cannot be read."""


class UnknownNameError(SuiteError):
    """Raised if something named does not exist, or nothing to measure is found: the caller has to correct this."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """How a project is built into an environment; the same for both sides.

    Attributes:
        subdir: The project's folder relative to the repository's top folder (asv's ``repo_subdir``).
        conf_dir: The folder of ``asv.conf.json``, relative to the repository's top folder.
        project: The project's name, for commands that use it.
        requirements: Packages that the matrix adds (``req``), in pip's syntax: ``"numpy==2.4.6"``.
        tests: Packages that tests need, in pip's syntax; installed in addition to a ``requirements.lock``.
        bare: Whether there is no project to build: the environment is only for commands.
        siblings: Folders of other projects in the same workspace, which are built with it.
        build, install: asv's ``build_command`` and ``install_command``; None if the file has none.
        environment: Variables of the matrix's ``env``, which asv also sets during builds.
        conda: Whether asv creates its environments with conda, whose packages may be missing from a package index.
        repo: The repository that asv benchmarks: "." or another local path, or an address.
        python: The interpreter that creates the environment, and its version; "" for the running one.
    """

    subdir: str = ""
    conf_dir: str = ""
    project: str = ""
    requirements: list[str] = []
    tests: list[str] = []
    siblings: list[str] = []
    bare: bool = False
    build: list[str] | None = None
    install: list[str] | None = None
    environment: dict[str, str] = {}
    conda: bool = False
    repo: str = ""
    python: tuple[str, str] = ("", "")

    @property
    def pins(self) -> list[str]:
        """The matrix's requirements that pin one version."""
        return [text for text in self.requirements if "==" in text]

    def without_pins(self) -> Recipe:
        """Return the recipe with any version of the matrix's packages."""
        names = [text.partition("==")[0] for text in self.requirements]
        return msgspec.structs.replace(self, requirements=names)

    @property
    def has_commands(self) -> bool:
        """Whether the project specifies how to build or install it."""
        return self.build is not None or self.install is not None


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of an ``asv.conf.json`` that the gate needs.

    Attributes:
        benchmark_dir: The suite's folder, relative to the repository's top folder.
        environment: Variables of the matrix (``env``, ``env_nobuild``) that have a single value.
        timeout_s: Timeout in seconds for benchmarks that set none.
        results_dir: The folder of asv's results, relative to the repository's top folder.
        recipe: How the project is built.
        left_out: Settings that a comparison of two sides cannot apply, one line each.
    """

    benchmark_dir: str
    environment: dict[str, str] = {}
    timeout_s: float = DEFAULT_TIMEOUT_S
    results_dir: str = OUR_RESULTS
    recipe: Recipe = Recipe()
    left_out: list[str] = []


def read_config(tree: Path, suite: str | None) -> Config:
    """Find a suite: an ``asv.conf.json``, its folder, or a plain benchmark folder.

    Args:
        tree: The checked-out repository, or the folder that ``suite`` is relative to.
        suite: A path in the tree, or an absolute path; None for the tree's ``asv.conf.json``, at the top or in one of
            a few usual folders.

    Raises:
        UnknownNameError: There is none.
        SuiteError: It cannot be parsed.
    """
    given = tree / (suite or _usual_place(tree))
    if given.is_dir() and not _file_in(given):
        path = next((file for folder in _above(given, tree) if (file := _file_in(folder))), None)
        return _config(_parse(path) if path else {}, path.parent if path else tree, given, tree)
    path = _file_in(given) if given.is_dir() else given
    if path is None or not path.is_file():
        others = "" if suite else ", tests with --pytest, or a command with --command"
        raise UnknownNameError(f"there is no {suite or FILE}: name an asv.conf.json or a folder with --suite{others}")
    settings = _parse(path)
    name = _text(settings, "benchmark_dir", "benchmarks", path)
    folder = (path.parent / name).resolve()
    top = tree if _inside(path, tree) else path.parent
    if not folder.is_dir() or not _inside(folder, top):
        raise SuiteError(f"{path.name} names the benchmark folder {name!r}, which is not there")
    return _config(settings, path.parent, folder, tree)


def _usual_place(tree: Path) -> str:
    paths = [path.relative_to(tree).as_posix() for path in usual_files(tree)]
    if not paths:
        return FILE
    if len(paths) > 1:
        raise UnknownNameError(f"there are {' and '.join(paths)}: choose one with --suite")
    return paths[0]


def usual_files(tree: Path) -> list[Path]:
    """Return the configuration at the top, or else those in the folders where asv users usually keep it."""
    paths = [path for folder in ("", *USUAL_FOLDERS) if (path := _file_in(tree / folder))]
    return paths[:1] if paths and paths[0].parent == tree else paths


def _above(folder: Path, tree: Path) -> list[Path]:
    """Return the folders where a benchmark folder's configuration may be: itself and its parents, up to the tree."""
    parents = list(folder.parents)
    return parents[: parents.index(tree) + 1] if tree in parents else parents[:1]


def _file_in(folder: Path) -> Path | None:
    """Return a folder's configuration file.

    Raises:
        SuiteError: There are two; asv accepts neither.
    """
    paths = [folder / name for name in FILES if (folder / name).is_file()]
    if len(paths) > 1:
        raise SuiteError(f"there are {' and '.join(FILES)} in one folder: remove one, or choose with --suite")
    return paths[0] if paths else None


def _inside(path: Path, tree: Path) -> bool:
    return path.resolve().is_relative_to(tree.resolve())


def _relative(path: Path, tree: Path) -> str:
    """Return a path relative to the tree; one outside stays absolute, and is the same for both sides."""
    return path.resolve().relative_to(tree.resolve()).as_posix() if _inside(path, tree) else str(path.resolve())


def _config(settings: dict[str, Any], conf_dir: Path, folder: Path, tree: Path) -> Config:
    environment, left_out = _matrix_environment(settings)
    requirements, more = _requirements(settings)
    where = conf_dir / FILE
    results = _text(settings, "results_dir", ASV_RESULTS, where) if settings else OUR_RESULTS
    recipe = Recipe(
        subdir=_text(settings, "repo_subdir", "", where),
        conf_dir=_relative(conf_dir, tree),
        project=_text(settings, "project", "", where),
        requirements=requirements,
        build=_commands(settings, "build_command", where),
        install=_commands(settings, "install_command", where),
        environment={k: v for k, v in environment.items() if k in (_matrix(settings).get("env") or {})},
        conda=_text(settings, "environment_type", "", where) in _CONDA,
        repo=_text(settings, "repo", "", where),
    )
    return Config(
        benchmark_dir=_relative(folder, tree),
        environment=environment,
        timeout_s=_seconds(settings, "default_benchmark_timeout", where),
        results_dir=os.path.normpath(Path(recipe.conf_dir, results)),
        recipe=recipe,
        left_out=[*left_out, *more],
    )


def _parse(path: Path) -> dict[str, Any]:
    """Parse a configuration like asv, as JSON 5: with comments, trailing commas, single quotes and bare keys."""
    from asv.util import load_json

    try:
        settings = load_json(str(path), js_comments=True)
    except (OSError, ValueError, RecursionError) as error:
        raise SuiteError(f"cannot read {path.name}: {' '.join(str(error).split())}") from error
    if not isinstance(settings, dict):
        raise SuiteError(f"cannot read {path.name}: it holds no object")
    return settings


def _text(settings: dict[str, Any], key: str, default: str, path: Path) -> str:
    value = settings.get(key)
    if value is None:
        return default
    if not isinstance(value, str):
        raise SuiteError(f"{path.name}: {key!r} is not a string")
    return value


def _seconds(settings: dict[str, Any], key: str, path: Path) -> float:
    value = settings.get(key, DEFAULT_TIMEOUT_S)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise SuiteError(f"{path.name}: {key!r} is not a number of seconds")
    return float(value)


def _commands(settings: dict[str, Any], key: str, path: Path) -> list[str] | None:
    value = settings.get(key)
    if value is None:
        return None
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(command, str) for command in listed):
        raise SuiteError(f"{path.name}: {key!r} is not a list of commands")
    return listed


def _matrix(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the matrix in its current format; older files list requirements at the top level.

    Raises:
        SuiteError: The matrix, or a part of it, is not an object.
    """
    matrix = settings.get("matrix") or {}
    kinds = ("req", "env", "env_nobuild")
    if isinstance(matrix, dict) and matrix and not matrix.keys() & set(kinds):
        matrix = {"req": matrix}
    if not isinstance(matrix, dict) or not all(isinstance(matrix.get(kind) or {}, dict) for kind in kinds):
        raise SuiteError(f"{FILE}: 'matrix' is not an object of objects (req, env, env_nobuild)")
    return matrix


def _values(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _matrix_environment(settings: dict[str, Any]) -> tuple[dict[str, str], list[str]]:
    matrix = _matrix(settings)
    values: dict[str, str] = {}
    left_out = []
    for kind in ("env", "env_nobuild"):
        for name, value in (matrix.get(kind) or {}).items():
            options = _values(value)
            if len(options) == 1 and options[0] is not None:
                values[name] = str(options[0])
            elif len(options) > 1:
                left_out.append(f"the variable {name} has {len(options)} values in asv's matrix: it is left alone")
    return values, left_out


def _requirements(settings: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the matrix's requirements; of several versions, both sides use the first."""
    commands, left_out = [], []
    for name, value in (_matrix(settings).get("req") or {}).items():
        options = _values(value) or [""]
        package = name.removeprefix("pip+")
        if options[0] is None or package.lower().replace("_", "-") in {"asv-runner", "pip"}:
            continue  # null: asv does not install it. Both sides use rocattn's runner instead of asv_runner
        if len(options) > 1:
            left_out.append(f"asv's matrix has {len(options)} versions of {package}: both sides use the first")
        version = str(options[0]).strip()
        if version and not re.match(r"[<>=!~@]", version):
            version = f"=={version}"
        commands.append(f"{package}{version}")
    return commands, left_out
