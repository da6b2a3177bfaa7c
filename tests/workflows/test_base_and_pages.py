"""The scripts around a repository, each for real: the base to gate against, the site, the verdicts to render."""

import os
import subprocess

import pytest
from inline_snapshot import snapshot

from ..screens import screen
from .rules import ROOT
from .scripts import run


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A clone on a branch that left main two commits ago, main having gone on."""
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "a")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "a@b.c")

    class Clone:
        origin, path = tmp_path / "origin", tmp_path / "clone"

        def git(self, *words, folder=None):
            done = subprocess.run(
                ["git", "-C", folder or self.path, *words], capture_output=True, text=True, check=True
            )
            return done.stdout.strip()

        def commit(self, text):
            (self.path / "file").write_text(text)
            self.git("add", "file")
            self.git("commit", "-qm", text)
            return self.git("rev-parse", "HEAD")

        def script(self, name, *words, **environment):
            kept = {key: value for key, value in os.environ.items() if key.startswith(("GIT_", "HOME"))}
            output = str(tmp_path / "output")
            return run(name, *words, cwd=self.path, GITHUB_OUTPUT=output, **kept, **environment)

        def output(self):
            return (tmp_path / "output").read_text()

    made = Clone()
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", made.origin], check=True)
    subprocess.run(["git", "clone", "-q", made.origin, made.path], check=True, capture_output=True)
    made.git("checkout", "-qb", "main")
    made.first = made.commit("one")
    made.shared = made.commit("two")
    made.git("checkout", "-qb", "topic")
    made.commit("three")
    made.topic = made.commit("four")
    made.git("checkout", "-q", "main")
    made.main = made.commit("five")
    made.git("push", "-q", "origin", "main", "topic")
    made.git("checkout", "-q", "--detach", made.topic)
    made.git("branch", "-D", "main", "topic")
    return made


def test_the_base_is_the_newest_common_commit(repository):
    """Also by branch name, as workflow_dispatch gives it, which a detached checkout knows only as origin/main."""
    for base in (repository.main, "main", "origin/main"):
        done = repository.script("merge_base.sh", BASE=base)
        assert done.returncode == 0, done.stderr
    assert repository.output() == f"base={repository.shared}\n" * 3


def test_a_commit_of_the_base_is_measured_against_its_parent(repository):
    """By hand, a commit of main can be asked for."""
    repository.git("checkout", "-q", repository.main)
    assert repository.script("merge_base.sh", BASE="main").returncode == 0
    assert repository.output() == f"base={repository.shared}\n"


def test_no_common_commit_is_said(repository):
    """The first commit, a base that does not exist, and one that a force-push took away."""
    repository.git("checkout", "-q", repository.first)
    done = repository.script("merge_base.sh", BASE="main")
    assert (done.returncode, done.stderr) == (
        4, "merge_base.sh: HEAD is the first commit: there is nothing to compare it with\n")  # fmt: skip
    for base in ("$(touch x)", "5" * 40):
        done = repository.script("merge_base.sh", BASE=base)
        assert (done.returncode, screen(done.stderr, BASE=base)) == (
            4,
            snapshot(
                "merge_base.sh: there is no branch or commit BASE here (rewritten since?): "
                "run it by hand with a branch as base"
            ),
        )
    assert not (repository.path / "x").exists()
    repository.git("checkout", "-q", "--orphan", "other")
    repository.commit("six")
    done = repository.script("merge_base.sh", BASE="main")
    assert (done.returncode, done.stderr) == (4, snapshot("merge_base.sh: HEAD and main have no common commit here\n"))


def test_site_is_published_without_history(repository):
    """A second night finds the first one's results; the branch has one commit; the checkout is as it was."""
    site, store = repository.path / "out" / "site", repository.path / ".asv" / "results"
    (repository.path / ".git" / "info" / "exclude").write_text("out\n.asv\n")
    assert repository.script("pages.sh", "fetch").stdout == "pages.sh: there is no gh-pages branch yet\n"
    for night in ("first", "second"):
        (site / "asv").mkdir(parents=True, exist_ok=True)
        (site / "index.html").write_text(night)
        store.mkdir(parents=True, exist_ok=True)
        (store / f"{night}.json").write_text("{}")
        where = ("out/site", ".asv/results") if night == "second" else ("out/site",)
        done = repository.script("pages.sh", "publish", *where, GITHUB_TOKEN="t0ken")  # noqa: S106 - made up
        assert done.returncode == 0, done.stderr
        assert "t0ken" not in done.stdout + done.stderr
        subprocess.run(["rm", "-r", repository.path / ".asv"], check=True)
        assert repository.script("pages.sh", "fetch").returncode == 0
    assert sorted(path.name for path in store.iterdir()) == ["first.json", "second.json"]
    listed = repository.git("ls-tree", "-r", "--name-only", "gh-pages", folder=repository.origin).splitlines()
    assert listed == [".nojekyll", "index.html", "results/first.json", "results/second.json"]
    assert repository.git("show", "gh-pages:index.html", folder=repository.origin) == "second"
    assert repository.git("rev-list", "--count", "gh-pages", folder=repository.origin) == "1"
    assert repository.git("status", "--porcelain") == ""


def test_results_that_cannot_be_fetched_are_not_taken_for_none(repository, tmp_path):
    """The next publish would put one night's results in the place of all earlier ones."""
    store = repository.path / ".asv" / "results"
    repository.git("push", "-q", "origin", f"{repository.first}:refs/heads/gh-pages")
    done = repository.script("pages.sh", "fetch")
    assert (done.returncode, done.stdout) == (0, "pages.sh: gh-pages keeps no results yet\n")
    for remote in (tmp_path / "nowhere", "https://127.0.0.1:1/x.git"):
        done = repository.script("pages.sh", "fetch", PAGES_REMOTE=str(remote))
        assert (done.returncode, done.stdout) == (3, "")
        assert screen(done.stderr.splitlines()[-1], REMOTE=remote) == snapshot(
            "pages.sh: the results of earlier nights cannot be fetched from REMOTE: run this again"
        )
    assert not store.exists()


def test_an_empty_site_is_not_published(repository):
    """The last good one stays."""
    (repository.path / "out").mkdir()
    done = repository.script("pages.sh", "publish", "out")
    assert (done.returncode, done.stderr) == (3, "pages.sh: out has no index.html: nothing is published\n")
    assert repository.git("branch", "--list", "gh-pages", folder=repository.origin) == ""
    assert repository.script("pages.sh").returncode == 4
    assert repository.script("pages.sh", "publish").returncode == 4


def test_a_run_that_owes_no_verdict_renders_none(tmp_path):
    """Nobody's machine took a job: the folder is empty, and stays so."""
    done = run("render_verdicts.sh", str(tmp_path), cwd=ROOT)
    assert (done.returncode, done.stderr, list(tmp_path.iterdir())) == (0, "", [])
