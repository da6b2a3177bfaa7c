"""Revisions of a git repository: resolve names, snapshot a dirty tree, check out next to the user's tree.

Nothing here touches the user's index, stash, branches or working tree: snapshots use a separate index, and checkouts
are clones that share the repository's objects.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.revisions.hunks import NATIVE

WORKTREE = "WORKTREE"
_ENDING_S, _PAUSE_S = 2.0, 0.05  # for processes whose parent was killed
_LONGEST_NAME = 200  # maximum characters of a revision's name in messages
_UNSHALLOW = "run `git fetch --unshallow` first; in a GitHub workflow give actions/checkout `fetch-depth: 0`"
# Variables that bind git to one repository, whatever folder it starts in, or change how it reads paths. Git sets them
# for hooks, and a hook may run the gate.
TIES = frozenset(
    {"GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_NAMESPACE", "GIT_SHALLOW_FILE"}
    | {"GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_IMPLICIT_WORK_TREE", "GIT_QUARANTINE_PATH"}
    | {f"GIT_{how}_PATHSPECS" for how in ("LITERAL", "GLOB", "NOGLOB", "ICASE")}
)


SOURCES = NATIVE | {".py"}


class RevisionError(RocattnError):
    """Raised if a revision cannot be resolved or read; the text says what to do.

    Attributes:
        output: Git's output; "" if git was not run.
    """

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


class NoGitError(RevisionError):
    """Raised if git is not installed, or does not start."""


class NoRepositoryError(RevisionError):
    """Raised if a folder is not in a git repository."""


class DistrustError(RevisionError):
    """Raised if git refuses a checkout that another user owns."""


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """One state of the repository.

    Attributes:
        name: The user's name for it ("HEAD~1", a branch, "WORKTREE").
        sha: The commit; for a snapshot, a dangling commit.
        tree: Hash of the whole tree: equal trees build equal wheels.
        date_ms: Commit date, Unix milliseconds.
        subject: First line of the message.
        dirty: Whether it is a snapshot with uncommitted changes.
    """

    name: str
    sha: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{40}|[0-9a-f]{64})$")]
    tree: str
    date_ms: int
    subject: str = ""
    dirty: bool = False

    @property
    def short(self) -> str:
        """Ten hex digits, with a mark for a snapshot."""
        return self.sha[:10] + ("+changes" if self.dirty else "")


def git(repo: Path, *arguments: str, env: Mapping[str, str] | None = None, stdin: str = "") -> str:
    """Run git in a repository with ``stdin`` as its input, and return its stdout without the trailing newline.

    Raises:
        NoGitError: Git is not installed, or does not start.
        NoRepositoryError: The folder is not in a repository.
        DistrustError: Git refuses the checkout because of its owner.
        RevisionError: Git fails; contains git's last line, and the error before it.
    """
    # The user's hooks are meant for the user's checkouts; a failing one would break ours.
    command = ["git", "-C", str(repo), "-c", f"core.hooksPath={os.devnull}", *arguments]
    # Set the locale, since we parse messages, and no optional locks: a status must not rewrite the user's index.
    own = {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    variables = {key: value for key, value in os.environ.items() if key not in TIES} | own | {**(env or {})}
    try:
        done = subprocess.run(command, input=stdin.encode(), capture_output=True, check=False, env=variables)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NoGitError("git is not installed: comparing or showing revisions needs it") from error
    except OSError as error:
        raise NoGitError(f"git does not start: {error.strerror}") from error
    # Bytes, not text mode, which would treat a carriage return in a subject or path as the end of a line.
    said, complaint = (part.decode(errors="replace") for part in (done.stdout, done.stderr))
    if done.returncode:
        if why := _distrust((complaint.strip().splitlines() or [""])[-1]):
            raise DistrustError(why, complaint)
        kind = NoRepositoryError if "not a git repository" in complaint else RevisionError
        raise kind(f"git {arguments[0]} failed: {_why(complaint)}", complaint)
    return said.rstrip("\n")


def _why(said: str) -> str:
    """Return git's complaint in one line."""
    lines = said.strip().splitlines() or ["no message"]
    # "fatal: adding files failed" is less informative than the error before it, but more than the usage after it.
    complaints = [next((line for line in lines if line.startswith(start)), "") for start in ("error: ", "fatal: ")]
    return "; ".join(filter(None, complaints)) or lines[-1]


def _distrust(said: str) -> str:
    """Return the remedy, from git's last line, if git refuses a checkout because of its owner; otherwise ""."""
    _, command, folder = said.rpartition("git config --global --add safe.directory ")
    if not command:
        return ""
    return f"git does not trust {folder}, which another user owns: run `{command}{folder}` if you do"


def find_repository(start: Path) -> Path:
    """Return the top folder of the working tree that contains a path.

    Raises:
        RevisionError: The path is not in a git repository.
    """
    if not start.is_dir():
        raise RevisionError(f"{start} is not a folder")
    try:
        return Path(git(start, "rev-parse", "--show-toplevel"))
    except NoRepositoryError as error:
        raise RevisionError(f"{start} is not inside a git repository: run this where the project was cloned") from error


def resolve(repo: Path, name: str) -> Revision:
    """Return the commit that a name stands for; as for ``git checkout``, ``A...B`` is the merge base of A and B.

    Raises:
        RevisionError: There is no such commit here; for a shallow clone, the message says how to fetch it.
    """
    if name == WORKTREE:
        return snapshot_worktree(repo)
    if "..." in name:
        return _merge_base(repo, name)
    try:
        sha = git(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    except RevisionError as error:
        if error.output:  # for a missing revision, --quiet prints nothing
            raise
        raise RevisionError(_missing(repo, name)) from error
    if not sha.isalnum():  # "^HEAD" excludes commits, and names none
        raise RevisionError(_missing(repo, name))
    return _describe(repo, name, sha)


def _merge_base(repo: Path, name: str) -> Revision:
    """Return the merge base of ``A...B``; an omitted side is HEAD."""
    sides = [resolve(repo, side or "HEAD").sha for side in name.split("...", 1)]
    try:
        sha = git(repo, "merge-base", *sides)
    except RevisionError as error:
        if _is_shallow(repo):
            raise RevisionError(f"the common commit of {name!r} is not in this shallow clone: {_UNSHALLOW}") from error
        raise RevisionError(f"{name!r} names two histories without a common commit") from error
    return _describe(repo, name, sha)


def _is_shallow(repo: Path) -> bool:
    try:
        return git(repo, "rev-parse", "--is-shallow-repository") == "true"
    except RevisionError:
        return False


def _describe(repo: Path, name: str, sha: str, *, dirty: bool = False) -> Revision:
    tree, seconds, subject = git(repo, "log", "-1", "--no-show-signature", "--format=%T%n%ct%n%s", sha).split("\n", 2)
    return Revision(name=name, sha=sha, tree=tree, date_ms=int(seconds) * 1000, subject=subject, dirty=dirty)


def _missing(repo: Path, name: str) -> str:
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}…"
    if _is_shallow(repo):
        return f"revision {name!r} is not in this shallow clone: {_UNSHALLOW}"
    try:
        git(repo, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    except RevisionError:
        return f"revision {name!r} does not exist: the repository has no commit yet"
    if name.startswith("HEAD") and name != "HEAD":
        return f"revision {name!r} does not exist: the history is shorter than that; name another one with --base"
    return f"revision {name!r} does not exist in {repo}: fetch it, or check its spelling with `git log --all`"


class Uncommitted(msgspec.Struct, frozen=True, kw_only=True):
    """Uncommitted changes in a working tree.

    Attributes:
        changed: Tracked files that were modified, added or deleted.
        untracked: Files that git neither tracks nor ignores.
        sources: Files of ``untracked`` that a build may include: source files in folders with tracked ones.
    """

    changed: list[str]
    untracked: list[str]
    sources: list[str]

    @property
    def code(self) -> list[str]:
        """Files that may make the working tree behave differently from HEAD."""
        return self.changed + self.sources


def uncommitted(repo: Path) -> Uncommitted:
    """Return uncommitted changes, without untracked files inside submodules."""
    options = ("--porcelain", "-z", "--no-renames", "--untracked-files=all", "--ignore-submodules=untracked")
    entries = [(entry[:2], entry[3:]) for entry in git(repo, "status", *options).split("\0") if entry]
    untracked = [path for state, path in entries if state == "??"]
    code = [PurePosixPath(path) for path in untracked if PurePosixPath(path).suffix in SOURCES]
    # The top folder does not count: a stray script there is not part of any package or suite.
    tracked = git(repo, "ls-files", "-z", "--full-name", "--", ":/").split("\0") if code else []
    folders = {folder for path in tracked for folder in PurePosixPath(path).parents} - {PurePosixPath()}
    return Uncommitted(
        changed=[path for state, path in entries if state != "??"],
        untracked=untracked,
        sources=[str(path) for path in code if folders & set(path.parents)],
    )


def parent(repo: Path, revision: Revision) -> Revision:
    """Return a commit's first parent.

    Raises:
        RevisionError: It has none here.
    """
    parent_revision = resolve(repo, f"{revision.sha}^") if _has_parent(repo, revision.sha) else None
    if parent_revision is None:
        if _is_shallow(repo):
            raise RevisionError(f"the parent of {revision.name} is not in this shallow clone: {_UNSHALLOW}")
        raise RevisionError(f"{revision.name} has no parent to compare with: name another revision with --base")
    return msgspec.structs.replace(parent_revision, name=f"{revision.name}~1")


def _has_parent(repo: Path, sha: str) -> bool:
    return len(git(repo, "rev-list", "--parents", "-n", "1", sha).split()) > 1


def snapshot_worktree(repo: Path) -> Revision:
    """Snapshot the working tree, with untracked files that are not ignored, as a dangling commit on top of HEAD.

    The commit has HEAD's dates, so that the same tree always gives the same commit. A clean tree gives HEAD itself.
    """
    head = resolve(repo, "HEAD")
    held = uncommitted(repo)
    if not held.changed and not held.untracked:
        return msgspec.structs.replace(head, name=WORKTREE)
    with tempfile.TemporaryDirectory(prefix="rocattn-index-") as folder:
        index = Path(folder) / "index"
        # Start from a copy of the user's index to avoid hashing every unchanged file. Copy its time, too: git rereads
        # files that are as new as the index even if their size and time look unchanged.
        own = Path(git(repo, "rev-parse", "--path-format=absolute", "--git-path", "index"))
        if own.exists():
            shutil.copy2(own, index)
        env = {"GIT_INDEX_FILE": str(index)}
        git(repo, "add", "--all", "--", ":/", env=env)
        tree = git(repo, "write-tree", env=env)
    stamp = f"{head.date_ms // 1000} +0000"
    who = {
        f"GIT_{role}_{key}": value
        for role in ("AUTHOR", "COMMITTER")
        for key, value in (("NAME", "rocattn"), ("EMAIL", "rocattn@localhost"), ("DATE", stamp))
    }
    message = f"Working tree on top of {head.sha[:10]}"
    sha = git(repo, "-c", "commit.gpgSign=false", "commit-tree", tree, "-p", head.sha, "-m", message, env=who)
    return _describe(repo, WORKTREE, sha, dirty=True)


@contextmanager
def checkout(repo: Path, revision: Revision, scratch: Path) -> Iterator[Path]:
    """Yield a folder with a revision's files while the block runs; `prune_checkouts` removes leftovers.

    Raises:
        RevisionError: Git cannot check it out.
        OSError: ``scratch`` cannot be written.
    """
    with own_folder(scratch) as folder:
        # A clone that shares objects has tags and history (setuptools-scm reads them) and, unlike a linked worktree,
        # leaves no trace in the user's .git.
        git(repo, "clone", "--quiet", "--shared", "--no-checkout", "--template=", "--", str(repo), str(folder / "tree"))
        _share_shallow(repo, folder / "tree")
        _fetch_missing(repo, revision)
        git(folder / "tree", "checkout", "--quiet", "--detach", revision.sha)
        if (folder / "tree" / ".gitmodules").is_file():
            try:
                _fill_submodules(repo, folder / "tree")
            except RevisionError as error:
                raise RevisionError(
                    f"a submodule of {revision.name} cannot be checked out ({error}): "
                    "run `git submodule update --init --recursive` in the project first",
                    error.output,
                ) from error
        yield folder / "tree"


def _share_shallow(repo: Path, tree: Path) -> None:
    """Make a shallow repository's clone share all objects: by default git copies only those of branches and tags."""
    listed = git(repo, "rev-parse", "--path-format=absolute", "--git-path", "shallow", "--git-path", "objects")
    shallow, objects = map(Path, listed.split("\n"))
    if shallow.is_file():
        (tree / ".git" / "objects" / "info" / "alternates").write_text(f"{objects}\n")
        shutil.copyfile(shallow, tree / ".git" / "shallow")


def _fetch_missing(repo: Path, revision: Revision) -> None:
    """Make a partial clone fetch a revision's files: a clone of it cannot, and git omits them without an error.

    Raises:
        RevisionError: They cannot be fetched.
    """
    listed = git(repo, "rev-list", "--objects", "--no-object-names", "--missing=print", "--max-count=1", revision.sha)
    if "\n?" not in listed:
        return
    nothing = git(repo, "hash-object", "-t", "tree", os.devnull)
    try:  # a diff against nothing reads every file, so git fetches all missing ones in one request
        git(repo, "diff", "--shortstat", "--no-ext-diff", "--no-textconv", nothing, revision.sha)
    except RevisionError as error:
        raise RevisionError(
            f"this clone is partial, and the files of {revision.name} cannot be fetched ({error}): "
            "check its remote, or run `git fetch --refetch --no-filter`",
            error.output,
        ) from error


def _fill_submodules(repo: Path, tree: Path) -> None:
    """Check out a clone's submodules, from the user's clone if it has them."""
    if origin := git(repo, "config", "--default", "", "--get", "remote.origin.url"):
        git(tree, "remote", "set-url", "origin", origin)  # submodules' relative addresses are resolved against it
    git(tree, "submodule", "--quiet", "init")
    modules = Path(git(repo, "rev-parse", "--path-format=absolute", "--git-common-dir"), "modules")
    listed = git(tree, "config", "--file", ".gitmodules", "-z", "--get-regexp", r"\.path$").split("\0")
    for key, path in (entry.split("\n", 1) for entry in listed if entry):  # names may contain spaces
        name = key.removeprefix("submodule.").removesuffix(".path")
        if ".." not in Path(name).parts and (modules / name).is_dir():
            git(tree, "config", f"submodule.{name}.url", str(modules / name))
            # Allow this only for the user's own files: other addresses come from the revision and are not trusted.
            allow = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "protocol.file.allow", "GIT_CONFIG_VALUE_0": "always"}
            git(tree, "submodule", "--quiet", "update", "--", path, env=allow)
    git(tree, "submodule", "--quiet", "update", "--init", "--recursive")


@contextmanager
def own_folder(scratch: Path) -> Iterator[Path]:
    """Yield an empty folder while the block runs; `prune_checkouts` removes those of killed processes.

    Raises:
        OSError: ``scratch`` cannot be written.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    # Absolute, because git runs in the repository.
    folder = Path(tempfile.mkdtemp(prefix=f"src-{os.getpid()}-", dir=scratch.absolute()))
    try:
        yield folder
    finally:
        _remove(folder)


def prune_checkouts(scratch: Path) -> None:
    """Remove checkouts whose process was killed before it could clean up."""
    import psutil

    for folder in scratch.glob("src-*-*"):
        owner = folder.name.split("-")[1]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a folder, with retries: a child of a killed process may write there until it ends, too."""
    end = time.monotonic() + _ENDING_S
    shutil.rmtree(folder, ignore_errors=True)
    while folder.exists() and time.monotonic() < end:
        time.sleep(_PAUSE_S)
        shutil.rmtree(folder, ignore_errors=True)


def first_parents(repo: Path, head: str, count: int) -> list[Revision]:
    """Return the latest ``count`` commits along first parents, newest first."""
    shas = git(repo, "rev-list", "--first-parent", f"--max-count={count}", head).split()
    return [_describe(repo, sha[:10], sha) for sha in shas]
