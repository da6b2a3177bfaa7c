"""Naming, freezing and checking out revisions without touching the user's tree."""

import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from rocattn.errors import RocattnError
from rocattn_profiling.ci.command import why_no_commit
from rocattn_profiling.revisions import git as revisions
from rocattn_profiling.revisions.git import DistrustError, NoGitError, NoRepositoryError, RevisionError

from ..projects import Project


def state_of(project):
    """All that a user could notice: status, index, stash, branches, linked worktrees."""
    index = (project.root / ".git" / "index").read_bytes()
    listed = [
        project.git(*words)
        for words in (("status", "--porcelain"), ("stash", "list"), ("branch", "-a"), ("worktree", "list"))
    ]
    return index, listed


def test_a_revision_is_named_by_its_commit(repo):
    """Names, short hashes and HEAD resolve to commit, tree, date and subject."""
    first = repo.commit("first line\n\nbody", **{"a.txt": "1"})
    repo.commit("second", **{"a.txt": "2"})
    found = revisions.resolve(repo.root, "HEAD~1")
    assert (found.sha, found.subject, found.dirty) == (first, "first line", False)
    assert found.tree == repo.git("rev-parse", f"{first}^{{tree}}")
    assert revisions.resolve(repo.root, first[:9]).sha == first
    assert revisions.parent(repo.root, revisions.resolve(repo.root, "HEAD")).sha == first


def test_three_dots_are_the_merge_base(repo, tmp_path):
    """As for ``git checkout``; a side that is left out is HEAD, and a shallow clone that lacks it is refused."""
    left = repo.commit("left", **{"a.txt": "1"})
    repo.git("checkout", "--quiet", "-b", "topic")
    repo.commit("mine", **{"b.txt": "1"})
    repo.git("checkout", "--quiet", "main")
    repo.commit("theirs", **{"a.txt": "2"})
    assert {revisions.resolve(repo.root, name).sha for name in ("topic...", "...topic", "main...topic")} == {left}
    shallow = tmp_path / "shallow"
    subprocess.run(
        ["git", "clone", "-q", "--depth=1", "--no-single-branch", f"file://{repo.root}", shallow], check=True
    )
    repo.git("checkout", "--quiet", "--orphan", "other")
    repo.commit("unrelated")
    for root, name in ((shallow, "origin/topic..."), (repo.root, "main..."), (repo.root, "nosuch...")):
        with pytest.raises(RevisionError):
            revisions.resolve(root, name)


@pytest.mark.parametrize("name", ["no-such-branch", "HEAD~7", "deadbeef", "--help", "HEAD:a.txt", "", "^HEAD", "--"])
def test_a_missing_revision_is_one_line_that_names_it(repo, name):
    """What is no commit is refused in one line, options included."""
    repo.commit("only", **{"a.txt": "1"})
    with pytest.raises(RevisionError) as caught:
        revisions.resolve(repo.root, name)
    assert repr(name) in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(RevisionError, match="does not exist") as caught:
        revisions.resolve(repo.root, name + "x" * 10_000)
    assert len(str(caught.value)) < 1000


def test_a_root_commit_has_no_parent(repo):
    """The very first commit cannot be compared with a parent, and says what to do; before it there is nothing."""
    with pytest.raises(RevisionError, match="no commit yet"):
        revisions.resolve(repo.root, "HEAD")
    repo.commit("only", **{"a.txt": "1"})
    with pytest.raises(RevisionError, match=r"has no parent.*--base"):
        revisions.parent(repo.root, revisions.resolve(repo.root, "HEAD"))


def test_a_shallow_clone_is_told_to_unshallow(repo, tmp_path):
    """A depth-1 clone has no parent: the message holds the command that gets it."""
    repo.commit("first", **{"a.txt": "1"})
    repo.commit("second", **{"a.txt": "2"})
    shallow = tmp_path / "shallow"
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{repo.root}", shallow], check=True)
    head = revisions.resolve(shallow, "HEAD")
    for ask in (lambda: revisions.parent(shallow, head), lambda: revisions.resolve(shallow, "HEAD~1")):
        with pytest.raises(RevisionError, match="git fetch --unshallow"):
            ask()


def test_a_folder_outside_any_repository_is_refused(git, tmp_path, monkeypatch):
    """Not being in a repository is said in one line."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "plain").mkdir()
    with pytest.raises(RevisionError, match="not inside a git repository"):
        revisions.find_repository(tmp_path / "plain")
    with pytest.raises(RevisionError, match="not a folder"):
        revisions.find_repository(tmp_path / "nowhere")


def test_another_user_s_checkout_is_said_with_git_s_remedy(repo, monkeypatch):
    """In a container the checkout is often another user's: git refuses all of it, which is not "no repository"."""
    from rocattn_profiling.site.commits import read_history

    repo.commit("first", **{"a.txt": "1"})
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    place = re.escape(shlex.quote(str(repo.root)))
    why = f"git does not trust {place}, .* run `git config --global --add safe.directory {place}` if you do"
    for ask in (revisions.find_repository, read_history):
        with pytest.raises(RocattnError, match=why):
            ask(repo.root)


def test_a_git_that_does_not_start_is_one_line(tmp_path, monkeypatch):
    """Nobody may execute it, or a part of PATH is a file."""
    git = tmp_path / "git"
    git.write_text("no program")
    for path, why in ((tmp_path, "git does not start: Permission denied"), (git, "git is not installed")):
        monkeypatch.setenv("PATH", str(path))
        with pytest.raises(NoGitError, match=why):
            revisions.find_repository(tmp_path)


@pytest.mark.parametrize(("kind", "told"), [(NoGitError, "x"), (DistrustError, ""), (NoRepositoryError, "not a git")])
def test_what_became_of_git_is_told_by_type(tmp_path, monkeypatch, kind, told):
    """However it is worded: what keeps the gate from running is passed on, what git refuses is left to fail."""

    def fails(*_, **__):
        raise kind("x")

    monkeypatch.setattr(revisions, "git", fails)
    reason = why_no_commit()
    assert (reason.text if reason else "").startswith(told)
    assert (reason is None) == (not told)
    with pytest.raises(RevisionError, match="is not inside a git repository" if kind is NoRepositoryError else "^x$"):
        revisions.find_repository(tmp_path)


def test_a_snapshot_holds_all_changes_and_touches_nothing(repo):
    """Edited, deleted, staged and new files are in it, ignored ones are not; the user's state stays byte for byte."""
    repo.commit("first", **{"kept.txt": "1", "edited.txt": "1", "gone.txt": "1", ".gitignore": "*.log\n"})
    repo.put("edited.txt", "2")
    repo.put("staged.txt", "3")
    repo.git("add", "staged.txt")
    repo.put("deep/new file.txt", "4")
    repo.put("noise.log", "5")
    (repo.root / "gone.txt").unlink()
    before = state_of(repo)
    held = revisions.uncommitted(repo.root)
    assert (sorted(held.changed), held.untracked) == (["edited.txt", "gone.txt", "staged.txt"], ["deep/new file.txt"])
    snapshot = revisions.resolve(repo.root, revisions.WORKTREE)
    assert state_of(repo) == before
    assert snapshot.dirty
    assert snapshot.short.endswith("+changes")
    listed = set(repo.git("ls-tree", "-r", "--name-only", "-z", snapshot.sha).split("\0")) - {""}
    assert listed == {"kept.txt", "edited.txt", "staged.txt", "deep/new file.txt", ".gitignore"}
    assert repo.git("show", f"{snapshot.sha}:edited.txt") == "2"


def test_untracked_sources_lie_in_folders_of_tracked_files(repo, monkeypatch):
    """A module in a new subpackage is one; a script at the top, a note and a file of an unknown folder are none."""
    repo.commit("first", **{"top.py": "", "package/__init__.py": "", "docs/index.md": ""})
    sources = ["package/fast.pyx", "package/sub/new.py"]
    for path in [*sources, "scratch.py", "package/log", "docs/new.md", "elsewhere/new.py"]:
        repo.put(path, "")
    for folder in (repo.root, repo.root / "package"):
        held = revisions.uncommitted(folder)
        assert sorted(held.sources) == sources
        assert len(held.untracked) == 6
        assert held.code == held.sources


def test_a_stray_file_in_a_submodule_is_no_change(repo, tmp_path):
    """The commit that is checked out there is the same; git calls it modified all the same."""
    other = Project(tmp_path / "other")
    other.commit("one", **{"a.txt": "1"})
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other.root), "part")
    repo.commit("first")
    repo.put("part/log", "")
    assert repo.git("status", "--porcelain")
    assert not revisions.uncommitted(repo.root).code


def test_a_snapshot_sees_a_change_as_new_as_the_index(repo):
    """Of the same size and the same second as the commit, so that only the index's own time says to look into it."""
    then = (1_700_000_000, 1_700_000_000)
    repo.git("config", "core.trustctime", "false")  # as if it had happened within one second
    repo.put("a.txt", "1")
    os.utime(repo.root / "a.txt", then)
    repo.commit("first")
    repo.put("a.txt", "2")
    for path in (repo.root / "a.txt", repo.root / ".git" / "index"):
        os.utime(path, then)
    sha = revisions.snapshot_worktree(repo.root).sha
    assert repo.git("show", f"{sha}:a.txt") == "2"


def test_a_snapshot_of_the_same_tree_is_the_same_commit(repo):
    """An interrupted run on a dirty tree finds its results again; a clean tree is HEAD."""
    head = repo.commit("first", **{"a.txt": "1"})
    found = revisions.resolve(repo.root, "WORKTREE")
    assert (found.sha, found.dirty) == (head, False)
    repo.put("a.txt", "2")
    assert revisions.snapshot_worktree(repo.root).sha == revisions.snapshot_worktree(repo.root).sha


def test_a_checkout_has_the_revision_and_leaves_no_trace(repo, tmp_path):
    """Files are the old commit's while the block runs; afterwards repository and scratch are as before."""
    first = repo.commit("first", **{"a.txt": "1"})
    repo.commit("second", **{"a.txt": "2"})
    repo.put("a.txt", "dirty")
    before = state_of(repo)
    with revisions.checkout(repo.root, revisions.resolve(repo.root, first), tmp_path / "scratch") as tree:
        assert (tree / "a.txt").read_text() == "1"
    assert state_of(repo) == before
    assert not list((tmp_path / "scratch").iterdir())


def test_in_a_hook_of_git_s_the_user_s_branch_stays(repo, tmp_path, monkeypatch):
    """Git tells its hooks the repository by variables, which go before any folder: a checkout must not be of that."""
    first = repo.commit("first", **{"a.txt": "1"})
    repo.commit("second", **{"a.txt": "2"})
    linked = tmp_path / "linked"
    repo.git("worktree", "add", "--quiet", "-b", "feature", str(linked))
    own = repo.root / ".git" / "worktrees" / "linked"
    monkeypatch.setenv("GIT_DIR", str(own))
    monkeypatch.setenv("GIT_INDEX_FILE", str(own / "index"))
    before = (own / "HEAD").read_bytes(), (own / "index").read_bytes()
    with revisions.checkout(linked, revisions.resolve(linked, first), tmp_path / "scratch") as tree:
        assert (tree / "a.txt").read_text() == "1"
    assert ((own / "HEAD").read_bytes(), (own / "index").read_bytes()) == before


def test_a_user_s_hooks_and_variables_do_not_reach_a_checkout(repo, tmp_path, monkeypatch):
    """A hook of all repositories may fail, or look for what only the user's own checkout has; so may Magit's paths."""
    first = repo.commit("first", **{"a.txt": "1"})
    repo.put("hooks/post-checkout", "#!/bin/sh\nexit 1\n")
    (repo.root / "hooks/post-checkout").chmod(0o755)
    (tmp_path / "settings").write_text(f"[core]\nhooksPath = {repo.root}/hooks\n[clone]\ndefaultRemoteName = up\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "settings"))
    monkeypatch.setenv("GIT_LITERAL_PATHSPECS", "1")
    repo.put("b.txt", "new")
    for revision in (revisions.resolve(repo.root, first), revisions.snapshot_worktree(repo.root)):
        with revisions.checkout(repo.root, revision, tmp_path / "scratch") as tree:
            assert (tree / "a.txt").read_text() == "1"


def test_settings_that_git_cannot_read_are_told(repo, tmp_path, monkeypatch):
    """They are not a missing repository, commit or revision."""
    repo.commit("first")
    (tmp_path / "settings").write_text("[core]\nabbrev = many\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "settings"))
    for ask in (lambda: revisions.find_repository(repo.root), lambda: revisions.resolve(repo.root, "HEAD")):
        with pytest.raises(RevisionError, match=r"bad numeric config value 'many' for 'core\.abbrev'"):
            ask()


def test_a_shallow_clone_s_base_and_changes_are_checked_out(repo, tmp_path):
    """As a runner has them: one commit of head, one of base without a branch, and changes that no commit holds."""
    first = repo.commit("first", **{"a.txt": "1"})
    repo.commit("second", **{"a.txt": "2"})
    repo.git("config", "uploadpack.allowAnySHA1InWant", "true")
    shallow = type(repo)(tmp_path / "shallow")
    shallow.git("fetch", "--quiet", "--depth=1", repo.root.as_uri(), "main")
    shallow.git("checkout", "--quiet", "--detach", "FETCH_HEAD")
    shallow.git("fetch", "--quiet", "--depth=1", repo.root.as_uri(), first)
    shallow.put("a.txt", "3")
    for name, content in ((first, "1"), ("HEAD", "2"), ("WORKTREE", "3")):
        with revisions.checkout(shallow.root, revisions.resolve(shallow.root, name), tmp_path / "scratch") as tree:
            assert (tree / "a.txt").read_text() == content


@pytest.mark.parametrize("left_out", ["blob:none", "tree:0"])
def test_a_partial_clone_gets_the_files_that_it_lacks(repo, tmp_path, left_out):
    """Git checks out what a clone of it has and ends with 0: base without a file would have no benchmark to compare."""
    repo.commit("first", **{"a.txt": "1", "b/c.txt": "1"})
    repo.commit("second", **{"a.txt": "2", "b/c.txt": "2"})
    repo.git("config", "uploadpack.allowFilter", "true")
    partial = tmp_path / "partial"
    repo.git("clone", "--quiet", f"--filter={left_out}", repo.root.as_uri(), str(partial))
    with revisions.checkout(partial, revisions.resolve(partial, "HEAD~1"), tmp_path / "scratch") as tree:
        assert [(tree / name).read_text() for name in ("a.txt", "b/c.txt")] == ["1", "1"]


def test_a_partial_clone_without_its_remote_is_one_line(repo, tmp_path):
    """Nothing is measured of half a revision."""
    repo.commit("first", **{"a.txt": "1"})
    repo.commit("second", **{"a.txt": "2"})
    repo.git("config", "uploadpack.allowFilter", "true")
    partial = tmp_path / "partial"
    repo.git("clone", "--quiet", "--filter=blob:none", repo.root.as_uri(), str(partial))
    repo.root.rename(tmp_path / "gone")
    opened = revisions.checkout(partial, revisions.resolve(partial, "HEAD~1"), tmp_path / "scratch")
    with pytest.raises(RevisionError, match=r"partial, and the files of HEAD~1 cannot be fetched") as caught, opened:
        pytest.fail("a checkout without its files")
    assert "\n" not in str(caught.value)


def test_what_cannot_be_snapshot_is_named(repo):
    """Git's last line says only that adding failed; the one before it says what."""
    repo.commit("first", **{"a.txt": "1"})
    repo.git("init", "--quiet", "nested")
    with pytest.raises(RevisionError, match=r"'nested/' does not have a commit checked out; fatal: adding"):
        revisions.snapshot_worktree(repo.root)


def test_a_checkout_holds_its_submodules(repo, tmp_path):
    """Each revision with the submodule's commit it names, taken from the user's own clone: the origin may be gone."""
    other = type(repo)(tmp_path / "other")
    other.commit("one", **{"inner.txt": "1"})
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other.root), "deps/the other")
    first = repo.commit("first")
    other.commit("two", **{"inner.txt": "2"})
    repo.git("-C", "deps/the other", "pull", "--quiet")
    repo.commit("second")
    other.root.rename(tmp_path / "gone")
    for name, content in ((first, "1"), ("HEAD", "2")):
        with revisions.checkout(repo.root, revisions.resolve(repo.root, name), tmp_path / "scratch") as tree:
            assert (tree / "deps/the other/inner.txt").read_text() == content
    assert repo.git("status", "--porcelain") == ""


def test_a_submodule_that_cannot_be_had_is_one_line(repo, tmp_path):
    """Neither here nor where it says: git's own words, on one line."""
    other = type(repo)(tmp_path / "other")
    other.commit("one", **{"inner.txt": "1"})
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other.root), "deps/other")
    repo.commit("first")
    other.root.rename(tmp_path / "gone")
    repo.git("clone", "--quiet", str(repo.root), str(tmp_path / "clone"))
    head = revisions.resolve(tmp_path / "clone", "HEAD")
    opened = revisions.checkout(tmp_path / "clone", head, tmp_path / "scratch")
    with (
        pytest.raises(RevisionError, match=r"a submodule of HEAD cannot .*git submodule failed.*: run") as caught,
        opened,
    ):
        pytest.fail("a checkout without its submodules")
    assert "\n" not in str(caught.value)


def test_leftovers_of_killed_processes_are_pruned(tmp_path):
    """A checkout of a process that is gone is removed, one of a living process is not."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (tmp_path / f"src-{gone.pid}-abc" / "tree").mkdir(parents=True)
    (tmp_path / f"src-{os.getpid()}-abc").mkdir()
    (tmp_path / "other").mkdir()
    revisions.prune_checkouts(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["other", f"src-{os.getpid()}-abc"])


def test_a_folder_that_is_still_written_to_is_removed_again(tmp_path, monkeypatch):
    """A launch of a killed run ends a moment later than the run, and what it wrote meanwhile kept its folder."""
    folder, remove, calls = tmp_path / "src-99999999-abc", shutil.rmtree, []

    def interrupted(path, **words):
        remove(path, **words)
        calls.append(path)
        if len(calls) == 1:
            path.mkdir()

    folder.mkdir()
    monkeypatch.setattr(shutil, "rmtree", interrupted)
    revisions.prune_checkouts(tmp_path)
    assert (folder.exists(), len(calls)) == (False, 2)


def test_first_parents_leave_out_merged_branches(repo):
    """History is the main line, newest first."""
    a = repo.commit("a", **{"a.txt": "1"})
    repo.git("checkout", "-q", "-b", "side")
    repo.commit("side", **{"b.txt": "1"})
    repo.git("checkout", "-q", "main")
    c = repo.commit("c", **{"c.txt": "1"})
    repo.git("merge", "-q", "--no-ff", "-m", "merge", "side")
    merged = repo.git("rev-parse", "HEAD")
    assert [r.sha for r in revisions.first_parents(repo.root, "HEAD", 9)] == [merged, c, a]
    assert [r.sha for r in revisions.first_parents(repo.root, "HEAD", 1)] == [merged]
