"""``rocattn gate init``: writes the workflows and settings that gate a project's pull requests on GitHub.

The files come from ``templates/init_*.j2``, filled in from the project: what to measure (from its settings file or the
options, or else its asv suite and its pytest-benchmark tests), the branch that pull requests target, a Python version
that the project supports, and where pip finds the running rocattn. Only benchmarks that could be built and listed
here, in the project's current state, get into the workflow. Existing files are left as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

import rocattn
from rocattn_profiling.base.console import emit_json, say
from rocattn_profiling.base.status import NOT_MEASURED, OK, USAGE, CommandError
from rocattn_profiling.gate.options import SETTINGS, Options, measuring
from rocattn_profiling.gate.rule.constants import CALLED, TOLERANCE
from rocattn_profiling.revisions import git as revisions
from rocattn_profiling.revisions.asv_config import OUR_RESULTS, read_config, usual_files

WORKFLOW = ".github/workflows/rocattn-gate.yml"
COMMENT = ".github/workflows/rocattn-gate-comment.yml"
PURPOSES = {
    "init_workflow.yml.j2": "measures pull requests",
    "init_comment.yml.j2": "comments the verdict",
    "init_thresholds.toml.j2": "limits, all commented out",
}
_SETTINGS = "init_gate.toml.j2", "what is measured"
# Each is pinned to a release's commit: a tag could be moved.
ACTIONS = {
    "checkout": "actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1",
    "setup_python": "actions/setup-python@5fda3b95a4ea91299a34e894583c3862153e4b97 # v7.0.0",
    "upload": "actions/upload-artifact@043fb46d1a93c77aae656e7c1c64a875d1fc6a0a # v7.0.1",
    "download": "actions/download-artifact@3e5f45b2cfb9172054b4087a40e8e0b5a5461e7c # v8.0.1",
    "cache_restore": "actions/cache/restore@27d5ce7f107fe9357f9df03efb73ab90386fccae # v5.0.5",
    "cache_save": "actions/cache/save@27d5ce7f107fe9357f9df03efb73ab90386fccae # v5.0.5",
}
MINUTES = 20  # measuring time in the workflow
_OLDEST_MINOR = 11  # the oldest Python 3 that rocattn supports
_PLACES = (".github", ".rocattn", "pyproject.toml")
_USUAL_BRANCHES = ("main", "master", "develop", "trunk")
_AT_LEAST = re.compile(r">=?\s*3\.(\d+)")
_SCP_ADDRESS = re.compile(r"[\w.-]+@(?P<host>[\w.-]+):(?P<path>[^/].*)")
_PINNED = re.compile(r"==\s*\d|@[0-9a-f]{7,}|\.whl\b|\.tar\.gz\b")
Kind = Literal["asv", "pytest", "command", "file"]
State = Literal["written", "filled in", "unchanged", "kept"]


class GateSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The values that fill in the templates.

    Attributes:
        kinds: The kinds of benchmarks to measure; "file" means those that the project's settings file lists.
        what: A description of them, with the file or folder they were found in.
        benchmarks: The number of benchmarks listed here; 0 if listing was skipped.
        words: The options of ``rocattn gate run`` that select them; empty for an asv suite in a usual place and for
            the project's settings file.
        lfs: Whether the repository uses Git LFS.
        results: The folder of asv's results, relative to the repository; it contains the noise record.
        places: Files and folders that define how a change is measured; comments flag a pull request that changes one.
        branch: The branch that pull requests target.
        python: The workflow's Python version ("3.13").
        install: The requirement that pip installs as rocattn; "" if it is not known.
    """

    kinds: list[Kind]
    what: str
    benchmarks: int = 0
    words: list[str] = []
    lfs: bool = False
    results: str = OUR_RESULTS
    places: list[str] = []
    branch: str
    python: str
    install: str


class InitFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file and its state.

    "filled in": init once wrote it without an address and has now added one. "kept": it exists and differs in another
    way from what init would write.
    """

    path: str
    state: State
    purpose: str


class InitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The output of ``--json``; ``todo`` is the command that sets the address GitHub needs, "" if it is set.

    As long as ``todo`` is set, ``next`` does not commit the files. ``left_out`` lists benchmarks that were found but
    cannot be listed, with the reason.
    """

    repository: str
    setup: GateSetup
    files: list[InitFile]
    left_out: list[str] = []
    todo: str = ""
    next: list[str]


class _Measured(NamedTuple):
    kind: Kind
    what: str
    options: Options
    results: str = OUR_RESULTS
    benchmarks: int = 0
    usual: bool = False
    places: tuple[str, ...] = ()

    def words(self, *, alone: bool) -> list[str]:
        """Return the options that select it; none for an asv suite in a usual place, which the gate finds by itself."""
        if alone and self.usual:
            return []
        listed = (("--suite", [self.options.suite]), ("--pytest", self.options.pytest))
        return [word for option, values in listed for value in values if value for word in (option, value)]


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``init``."""
    parser.description = (
        "Write two GitHub workflows and a file of thresholds that gate this repository's pull requests with its asv "
        "suite and its pytest-benchmark tests, or with the given commands, as far as they can be built and listed "
        "here. Existing files are left as they are."
    )
    parser.epilog = (
        "exit status: 0 the workflows are in place; 3 nothing could be listed; 4 a different workflow already exists, "
        "or an error"
    )
    parser.add_argument("--repo", default="", metavar="DIR", help="repository (default: that of the current folder)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--suite", default="", metavar="PATH", help="an asv suite in an unusual place, as for gate run")
    what.add_argument("--pytest", default="", metavar="DIR", help="pytest-benchmark tests, even with an asv suite")
    text = f"measure this command, as for gate run, and record it in {SETTINGS}; may be repeated"
    what.add_argument("--command", action="append", default=[], metavar="COMMAND", dest="commands", help=text)
    text = "what the commands report, as for gate run; may be repeated, once for each command"
    parser.add_argument("--results", action="append", default=[], metavar="FORMAT[:FILE]", help=text)
    text = "a command that prepares a checkout for the commands, as for gate run; may be repeated"
    parser.add_argument("--build", dest="builds", action="append", default=[], metavar="COMMAND", help=text)
    text = "what tests or commands need, as for gate run; may be repeated"
    parser.add_argument("--requirements", action="append", default=[], metavar="NAME", help=text)
    text = "what pip installs in the workflow (default: what this rocattn was installed from)"
    parser.add_argument("--install", metavar="SPEC", help=text)
    parser.add_argument("--branch", default="", metavar="NAME", help="the branch that pull requests target")
    text = "write without building and listing first: for a project that does not build on this machine"
    parser.add_argument("--no-list", action="store_true", help=text)
    parser.add_argument("--json", action="store_true", help="print only JSON on stdout")


def run(arguments: argparse.Namespace) -> int:
    """Write the missing files; print what was done and what comes next."""
    start = Path(arguments.repo or ".")
    repo = revisions.find_repository(start)
    found, left_out = _found(repo, start, arguments), list[str]()
    install = own_requirement() if arguments.install is None else arguments.install
    given = [word for each in found for word in each.words(alone=False)]
    places = sorted({*_PLACES, *(place for each in found for place in each.places)} - {"", "."})
    if any("${{" in word for word in [*given, *arguments.requirements, *arguments.commands, *places, install]):
        raise CommandError("${{ starts a GitHub expression: the workflow would run something else", USAGE)
    if not arguments.no_list:
        found, left_out = _listed(repo, found)
    words = [word for each in found for word in each.words(alone=len(found) == 1)]
    if found[0].kind == "pytest" or len(found) > 1:
        words += [word for name in arguments.requirements for word in ("--requirements", name)]
    setup = GateSetup(
        kinds=[each.kind for each in found],
        what=" and ".join(each.what for each in found),
        benchmarks=sum(each.benchmarks for each in found),
        words=words,
        lfs=_has_lfs(repo),
        results=found[0].results,
        places=places,
        branch=arguments.branch or _default_branch(repo),
        python=f"3.{max(_least_minor(repo), sys.version_info.minor)}",
        install=install,
    )
    commands = found[0].options if found[0].kind == "command" else None
    files = _write(repo, setup, commands)
    workflows = [file for file in files if file.path in {WORKFLOW, COMMENT}]
    kept = [file for file in workflows if file.state == "kept"]
    todo = _filling_in(arguments) if not install and len(kept) < len(workflows) else ""
    steps = _next(repo, setup)
    record = InitRecord(
        repository=os.fspath(repo), setup=setup, files=files, left_out=left_out, todo=todo,
        next=steps[:1] if todo else steps,
    )  # fmt: skip
    if arguments.json:
        emit_json(record)
    else:
        _print(record)
    if kept:
        names = " and ".join(file.path for file in kept)
        how = "exists and differs" if len(kept) == 1 else "exist and differ"
        raise CommandError(f"{names} already {how} from what init would write: delete to start over")
    return OK


def _found(repo: Path, start: Path, arguments: argparse.Namespace) -> list[_Measured]:
    """Return what can be measured: what the options name, else what the settings file lists, else all that is found.

    Raises:
        SuiteError: The asv suite cannot be read, there are several, or there is nothing to measure.
        GateSettingsError: The project's settings file cannot be read.
        OptionError: Options contradict each other.
        CommandError: What the options name does not exist.
    """
    from rocattn_profiling.gate.planning import settings
    from rocattn_profiling.gate.sources import Discovery, discover_all

    own, needed = settings.load(repo), tuple(arguments.requirements)
    if arguments.commands or arguments.results or arguments.builds:
        count = len(arguments.commands)
        options = Options(
            commands=tuple(arguments.commands), results=tuple(arguments.results), builds=tuple(arguments.builds),
            requirements=needed,
        )  # fmt: skip
        options.check()
        if own != settings.GateSettings() and settings.chosen(Options(), own) != options:
            raise CommandError(f"{SETTINGS} already says what is measured: add the command there", USAGE)
        return [_Measured("command", f"{count} command{'' if count == 1 else 's'}", options, _results(repo))]
    if arguments.pytest:
        folder = _inside(repo, start, arguments.pytest)
        options = Options(pytest=(folder,), requirements=needed)
        return [_Measured("pytest", Discovery(tests=(folder,)).what, options, _results(repo), places=(folder,))]
    if not arguments.suite and settings.chosen(Options(), own).measures:
        return [_Measured("file", f"what {SETTINGS} says", Options(), _results(repo))]
    found = []
    for each in [Discovery(_inside(repo, start, arguments.suite))] if arguments.suite else discover_all(repo):
        if each.tests:
            options = Options(pytest=each.tests, requirements=needed)
            found.append(_Measured("pytest", each.what, options, _results(repo), places=each.tests))
            continue
        config = read_config(repo, each.suite)
        options = Options(suite=each.suite_in(repo))
        what = f"the asv benchmarks in {config.benchmark_dir}"
        places = config.benchmark_dir, options.suite
        found.append(_Measured("asv", what, options, config.results_dir, usual=each.suite is None, places=places))
    return found


def _listed(repo: Path, found: Sequence[_Measured]) -> tuple[list[_Measured], list[str]]:
    """Build the project as it is; return what can be listed, and a line for each thing that cannot.

    Raises:
        CommandError: Nothing can be listed.
    """
    from rocattn_profiling.gate.run import list_run

    listed, left_out, status = list[_Measured](), list[str](), NOT_MEASURED
    for each in found:
        options = msgspec.structs.replace(each.options, base=revisions.WORKTREE, head=revisions.WORKTREE)
        try:
            with tempfile.TemporaryDirectory(prefix="rocattn-init-") as out, measuring("init") as on_step:
                plan = list_run(repo, Path(out), options, on_step=on_step, say=say)
        except CommandError as error:
            status = error.status
            left_out.append(f"{each.what}: {error}")
        else:
            listed.append(each._replace(benchmarks=len(plan.benchmarks)))
    if not listed:
        raise CommandError("; ".join(left_out), status)
    return listed, left_out


def _has_lfs(repo: Path) -> bool:
    """Whether a tracked attributes file uses Git LFS: without LFS, a checkout has only pointers."""
    files = filter(None, revisions.git(repo, "ls-files", "-z", "--", "*.gitattributes").split("\0"))
    return any(b"filter=lfs" in _content(repo / file) for file in files)


def _results(repo: Path) -> str:
    """Return the results folder for measuring tests or commands: the asv suite's, if there is one."""
    return read_config(repo, None).results_dir if usual_files(repo) else OUR_RESULTS


def _inside(repo: Path, start: Path, name: str) -> str:
    """Return a path relative to the repository's top; ``name`` is relative to the top or to the starting folder.

    Raises:
        CommandError: There is no such path, or it is outside the repository.
    """
    for folder in (start, repo):
        path = (folder / name).resolve()
        if path.exists() and path.is_relative_to(repo.resolve()):
            return path.relative_to(repo.resolve()).as_posix()
    raise CommandError(f"there is no {name} in {repo}", USAGE)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # deleted but still tracked, or a broken link
        return b""


def _default_branch(repo: Path) -> str:
    """Return the target branch of pull requests: the remote's default, else a common name, else the current branch."""
    for remote in dict.fromkeys(["origin", *revisions.git(repo, "remote").split()]):
        try:
            head = revisions.git(repo, "symbolic-ref", "--quiet", f"refs/remotes/{remote}/HEAD")
        except revisions.RevisionError:
            continue
        return head.removeprefix(f"refs/remotes/{remote}/")
    listed = revisions.git(repo, "for-each-ref", "--format=%(refname)", "refs/heads", "refs/remotes").split("\n")
    names = {re.sub(r"^refs/(heads|remotes/[^/]*)/", "", name) for name in listed}
    usual = next((name for name in _USUAL_BRANCHES if name in names), "")
    return usual or revisions.git(repo, "branch", "--show-current") or _USUAL_BRANCHES[0]


def _least_minor(repo: Path) -> int:
    """Return the oldest Python 3 that both rocattn and the project run on."""
    try:
        project = tomllib.loads(_content(repo / "pyproject.toml").decode()).get("project", {})
    except ValueError:
        return _OLDEST_MINOR
    wanted = _AT_LEAST.search(str(project.get("requires-python", "")))
    return max(_OLDEST_MINOR, int(wanted[1])) if wanted else _OLDEST_MINOR


def own_requirement() -> str:
    """Return the pinned requirement that pip installs this rocattn from; "" if a workflow could not reach it."""
    try:
        recorded = distribution("rocattn").read_text("direct_url.json")
    except PackageNotFoundError:
        return ""
    if recorded is None:  # from a package index
        return f"rocattn=={rocattn.__version__}"
    origin = msgspec.json.decode(recorded)
    url = str(origin.get("url", ""))
    if vcs := origin.get("vcs_info"):
        return f"rocattn @ {vcs['vcs']}+{url}@{vcs['commit_id']}"
    if url.startswith("https://"):
        return f"rocattn @ {url}"
    return _published(Path(unquote(urlsplit(url).path))) if "dir_info" in origin else ""


def _published(checkout: Path) -> str:
    """Return a requirement for the commit that is checked out, if a remote that others can reach has it."""
    try:
        address = revisions.git(checkout, "config", "--get", "remote.origin.url")
        if not revisions.git(checkout, "branch", "--remotes", "--contains", "HEAD", "--list", "origin/*"):
            return ""
        commit = revisions.git(checkout, "rev-parse", "HEAD")
    except revisions.RevisionError:
        return ""
    if short := _SCP_ADDRESS.fullmatch(address):
        address = f"https://{short['host']}/{short['path']}"
    parts = urlsplit(address)
    # Do not publish a user name or token from the address.
    return f"rocattn @ git+https://{parts.netloc.rpartition('@')[2]}{parts.path}@{commit}" if parts.netloc else ""


def _write(repo: Path, setup: GateSetup, commands: Options | None) -> list[InitFile]:
    """Write all missing files or none; fill in the address where init left it empty."""
    from rocattn_profiling.base.files import write_together

    texts, unfilled = (_texts(each, commands) for each in (setup, msgspec.structs.replace(setup, install="")))
    states: dict[str, State] = {}
    for name, text in texts.items():
        path = repo / name
        if not (path.is_symlink() or path.exists()):
            states[name] = "written"
            continue
        content = _content(path)
        same, fillable = content == text.encode(), content == unfilled[name].encode() and not path.is_symlink()
        states[name] = "unchanged" if same else "filled in" if fillable else "kept"
    changed = {repo / name: text for name, text in texts.items() if states[name] in {"written", "filled in"}}
    write_together(changed, committed=True)
    return [
        InitFile(path=name, state=states[name], purpose=purpose)
        for name, purpose in zip(texts, [*PURPOSES.values(), _SETTINGS[1]], strict=False)
    ]


def _texts(setup: GateSetup, commands: Options | None) -> dict[str, str]:
    """Return each file's content by path; the templates use ``<< >>``, since ``{{ }}`` is GitHub's syntax."""
    from rocattn_profiling.gate import thresholds, waivers
    from rocattn_profiling.pages.render import environment

    jinja = environment().overlay(
        variable_start_string="<<", variable_end_string=">>", block_start_string="<%", block_end_string="%>",
        comment_start_string="<#", comment_end_string="#>",
    )  # fmt: skip
    facts: dict[str, Any] = {
        "called": f"{CALLED:g}",
        "tolerance": f"{100 * TOLERANCE:g}",
        "waivers": waivers.FILE,
        "quoted": json.dumps,
    }
    contents = (
        jinja.get_template(name).render(
            setup=setup, words=_words(setup), minutes=MINUTES, commands=commands, **facts, **ACTIONS
        )
        for name in (*PURPOSES, *([_SETTINGS[0]] if commands else []))
    )
    return dict(zip((WORKFLOW, COMMENT, thresholds.FILE, SETTINGS), contents, strict=False))


def _words(setup: GateSetup) -> str:
    """Return the options of the workflow's command, except the two sides."""
    return shlex.join([*setup.words, "--max-time", f"{MINUTES}m"])


def _filling_in(arguments: argparse.Namespace) -> str:
    """Return this init command with an address to fill in."""
    given = {
        "--repo": [arguments.repo], "--suite": [arguments.suite], "--pytest": [arguments.pytest],
        "--command": arguments.commands, "--results": arguments.results, "--build": arguments.builds,
        "--requirements": arguments.requirements, "--branch": [arguments.branch],
    }  # fmt: skip
    words = [word for option, values in given.items() for value in values if value for word in (option, value)]
    words += ["--no-list"] * arguments.no_list
    return shlex.join(["rocattn", "gate", "init", *words, "--install", "rocattn @ git+https://..."])


def _next(repo: Path, setup: GateSetup) -> list[str]:
    """Return the next commands: run the same gate here, then commit the files."""
    current = revisions.git(repo, "branch", "--show-current")
    local = revisions.git(repo, "for-each-ref", f"refs/heads/{setup.branch}")
    base = "HEAD~1" if current in {setup.branch, ""} else f"{'' if local else 'origin/'}{setup.branch}..."
    return [
        f"rocattn gate run --base {base} --head HEAD {_words(setup)}",
        "git add .github .rocattn && git commit --message 'Gate pull requests with rocattn'",
    ]


def _print(record: InitRecord) -> None:
    setup, written = record.setup, any(file.state in {"written", "filled in"} for file in record.files)
    number = f"{setup.benchmarks} benchmark{'' if setup.benchmarks == 1 else 's'}: " if setup.benchmarks else ""
    print(f"measures       {number}{setup.what}\npull requests  to {setup.branch}")
    for line in record.left_out:
        print(f"left out       {line}")
    installed = setup.install or "rocattn from an address that you set (see below)"
    loose = "" if not setup.install or _PINNED.search(setup.install) else " (not pinned: a release changes the gate)"
    print(f"installs       {installed}{loose}, on Python {setup.python}\n")
    for file in record.files:
        print(f"{file.state:13}  {file.path:{len(COMMENT)}}  {file.purpose}")
    if record.todo:
        print("\nTo do before you commit: GitHub cannot reach the folder this rocattn was installed from.")
        print("Set ROCATTN at the top of both workflows, or let init fill in an address:")
        print(f"  {record.todo}")
    if written:
        commit = "" if record.todo else ", then commit the files"
        print(f"\nNext, in {record.repository}: run the same gate here{commit}")
        print("\n".join(f"  {command}" for command in record.next))
