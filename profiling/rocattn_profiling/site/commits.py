"""The commits of the repository, read from git: order, date and subject."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn.errors import RocattnError
from rocattn_profiling.revisions.git import DistrustError, RevisionError, git

if TYPE_CHECKING:
    from markupsafe import Markup

_GITHUB = re.compile(
    r"(?:https://(?:[^@/\s]+@)?|ssh://git@|git@)github\.com[:/]([\w-][\w.-]*)/([\w-][\w.-]*?)(?:\.git)?/?"
)
_COMMITS = re.compile(r"(https?://(?:www\.)?github\.com/[\w.-]+/[\w.-]+)/commit/")
_PULL_REQUEST = re.compile(r"\(#(\d{1,9})\)")
_VERSION = re.compile(r"\D*\d+(\.\d+)*")
_BRANCHES = ("refs/heads", "refs/remotes")


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """One commit; ``order`` counts from the oldest; ``on_branch`` follows first parents from HEAD, as asv does."""

    sha: str
    date_ms: int
    subject: str
    order: int
    on_branch: bool


@dataclass(frozen=True, slots=True)
class History:
    """The commits of a repository by sha, and the current branch.

    Attributes:
        branch: The branch's name, or "HEAD" if detached.
        head: The sha of HEAD.
        tags: (name, sha) of its tags: versions first, newest first.
    """

    commits: dict[str, CommitInfo]
    branch: str
    head: str
    tags: Sequence[tuple[str, str]] = ()


def read_history(repo_root: Path) -> History:
    """Read all commits of a repository.

    Raises:
        RocattnError: It is not a git repository, has no commit, or git is missing; one line.
    """
    head = _git(repo_root, "rev-parse", "--verify", "HEAD")
    branch = _git(repo_root, "rev-parse", "--abbrev-ref", "HEAD")
    first_parents = set(_git(repo_root, "rev-list", "--first-parent", "HEAD").split())
    plain = ("--no-show-signature", "--encoding=UTF-8")  # independent of log.showSignature and i18n.*
    log = _git(repo_root, "log", "--all", "HEAD", "--date-order", "--reverse", *plain, "--format=%H%x00%at%x00%s")
    commits = {}
    for order, line in enumerate(log.split("\n")):  # not splitlines: a subject may contain other line separators
        sha, date_s, subject = line.split("\0", 2)
        commits[sha] = CommitInfo(sha, int(date_s) * 1000, subject, order, sha in first_parents)
    listed = _git(
        repo_root, "for-each-ref", "--format=%(*objectname)%00%(objectname)%00%(refname:lstrip=2)", "refs/tags"
    )
    tags = [(name, peeled or own) for peeled, own, name in (line.split("\0") for line in listed.split("\n") if line)]
    known = [(name, sha) for name, sha in tags if sha in commits]
    known.sort(key=lambda tag: (not _VERSION.fullmatch(tag[0]), -commits[tag[1]].order))
    return History(commits, branch, head, known)


def _git(repo_root: Path, *arguments: str) -> str:
    try:
        return git(repo_root, *arguments)
    except DistrustError:
        raise
    except RevisionError as error:
        raise RocattnError(f"{repo_root} has no git history to show: {error}") from None


def branch_with(repo_root: Path, sha: str, besides: str) -> str:
    """Return a branch whose tip is a commit, or else one that contains it; "" if only branch ``besides`` does."""
    for option in ("--points-at", "--contains"):
        try:
            listed = _git(repo_root, "for-each-ref", f"{option}={sha}", "--format=%(refname:lstrip=2)", *_BRANCHES)
        except RocattnError:
            return ""  # the commit is not in this clone
        names = [name for name in listed.split("\n") if name and not name.endswith((f"/{besides}", "/HEAD"))]
        if other := next((name for name in names if name != besides), ""):
            return other
    return ""


def with_pull_requests(subject: str, url: str) -> Markup:
    """Return a commit's subject for a page, with "(#12)" as a link to the pull request.

    Args:
        subject: The commit's subject.
        url: `commit_url` of its repository; links are made for GitHub only.
    """
    from markupsafe import Markup, escape

    if not (match := _COMMITS.fullmatch(url)):
        return escape(subject)
    link = rf'(<a href="{escape(match[1])}/pull/\1">#\1</a>)'
    return Markup(_PULL_REQUEST.sub(link, str(escape(subject))))  # noqa: S704 - escaped, digits and our own address


def commit_url(repo_root: Path, configured: str = "") -> str:
    """Return the prefix of a commit's address, before its hash; "" if there is none.

    Args:
        repo_root: The repository; its remote ``origin`` is used if it is on GitHub.
        configured: ``show_commit_url`` of ``asv.conf.json``, which takes precedence.
    """
    if re.fullmatch(r"https?://[^\s\"'<>]+", configured):
        return configured
    try:
        origin = _git(repo_root, "remote", "get-url", "origin")
    except RocattnError:
        return ""
    # Only owner and name: an address may contain a password.
    match = _GITHUB.fullmatch(origin)
    return f"https://github.com/{match[1]}/{match[2]}/commit/" if match else ""
