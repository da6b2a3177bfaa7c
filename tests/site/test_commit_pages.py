"""What the page of a commit is compared with, and which numbers a kernel's page takes."""

import re
import subprocess

from rocattn_profiling.site.changes import find_changes
from rocattn_profiling.site.commits import CommitInfo, History, read_history
from rocattn_profiling.site.history import kernel_pages
from rocattn_profiling.site.history_charts import Around
from rocattn_profiling.site.site import Site, commit_pages, commit_paths, pages_of


def log_of(count, aside=()):
    """Commits 0, 1, 2 and so on, of which some are on another branch."""
    commits = {
        f"{n:040x}": CommitInfo(f"{n:040x}", 1 + n, f"Commit {n}", n, on_branch=n not in aside) for n in range(count)
    }
    return History(commits, "main", f"{count - 1:040x}")


def pages(series, log):
    """The pages of commits by number, in their order."""
    paths = commit_paths(series, log.commits)
    made = commit_pages(series, log, find_changes(series, log).listed, [], paths)
    return {page.commit.order: page for page in made}


def audited(series_of, metric, values, arch, **more):
    """A line of the audit of one kernel."""
    params = {"arch": arch, "kernel": "k"}
    return series_of(values, benchmark=f"bench_audit.K.track_{metric}", params=params, unit="", spread=0.0, **more)


def test_commits_of_other_branches_are_not_compared(series_of):
    """Commit 3 was an experiment of twice the time: it is not what became slower, and 4 did not become faster."""
    made = pages([series_of([1.0, 1.0, 1.0, 2.0, 1.0, 1.5])], log_of(6, aside={3}))
    assert list(made) == [5, 4, 3, 2, 1, 0]
    assert {number: len(page.hints) for number, page in made.items() if page.hints} == {5: 1}
    assert (made[2].following, made[4].previous) == (made[4].path, made[2].path)
    assert (made[3].previous, made[3].following) == ("", "")


def test_a_change_is_on_the_pages_of_its_possible_commits(series_of):
    """Commit 10 was measured by another benchmark only: the step came with it or with 11."""
    step = [(1.3 if n > 10 else 1) * (1 + 0.001 * (n % 3)) for n in range(20)]
    gap = [*step[:10], None, *step[11:]]
    made = pages([series_of(gap), series_of([1.0] * 20, benchmark="s.time_b")], log_of(20))
    assert {number for number, page in made.items() if page.brought} == {11}
    assert {number for number, page in made.items() if page.perhaps} == {10}


def test_what_came_from_nothing_went_up(series_of):
    """A first spill has no percentage, but a direction; the last one's end is -100 %."""
    made = pages([audited(series_of, "spills", [0.0, 43.0, 0.0], "gfx942")], log_of(3))
    ((came,), (gone,)) = (made[number].machine_code for number in (1, 2))
    assert (came.change, came.rose, came.tone) == ("", True, "bad")
    assert (gone.change, gone.rose, gone.tone) == ("-100 %", False, "good")


def test_a_kernels_numbers_come_from_the_longest_history(series_of):
    """Machine code does not depend on the machine. gfx90a has no hot loop here: its place stays empty."""
    log = log_of(12)
    series = [
        audited(series_of, "vgprs", [100.0], "gfx942", machine="new"),
        audited(series_of, "vgprs", [120.0] * 11 + [128.0], "gfx942", machine="old"),
        audited(series_of, "vgprs", [7.0], "gfx942", machine="newest"),
        audited(series_of, "vgprs", [90.0] * 12, "gfx90a"),
        audited(series_of, "hot_loop", [5.0] * 12, "gfx942"),
    ]
    (page,) = kernel_pages(series, Around(log.commits), {})
    assert page.archs == ["gfx90a", "gfx942"]
    assert [cells for _, cells in page.rows] == [["90", "128"], ["", "5"]]


def test_a_kernels_changes_are_newest_first(series_of):
    """A rise of commit 11 that ended with 22 is not open."""
    values = [8.0 if 11 <= n < 22 else 4.0 for n in range(32)]
    one, log = audited(series_of, "spills", values, "gfx942"), log_of(32)
    (page,) = kernel_pages([one], Around(log.commits), find_changes([one], log).by_series())
    assert [int(change.likeliest, 16) for change in page.changes] == [22, 11]
    assert page.open == 0


def test_tags_are_read_versions_first_newest_first(tmp_path):
    """Annotated and light ones, of other branches too; those of no commit of the history are left out."""

    def git(*words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    git("init", "-q", "-b", "main")
    for number, tags in enumerate((["v1.0"], ["nightly"], ["v1.1rc1"], ["v1.1", "<b>"])):
        git("commit", "-q", "--allow-empty", "-m", f"Commit {number}")
        for tag in tags:
            git("tag", *(["-a", "-m", "x"] if number % 2 == 0 else []), tag)
    git("tag", "tree", "HEAD^{tree}")
    history = read_history(tmp_path)
    assert [name for name, _ in history.tags] == ["v1.1", "v1.0", "<b>", "v1.1rc1", "nightly"]
    assert [history.commits[sha].subject[-1] for _, sha in history.tags] == ["3", "0", "3", "2", "1"]


def test_a_commit_page_shows_its_tags_and_leads_to_its_lines(series_of):
    """As does the list of commits; a difference leads to the chart of its line."""
    commits = log_of(6).commits
    log = History(commits, "main", f"{5:040x}", [("v1<2>", f"{5:040x}")])
    texts = dict(pages_of(Site([series_of([1.0, 1.0, 1.0, 2.0, 1.0, 1.5], benchmark="a.time_b", params={})], log)))
    page = texts[f"commits/{5:040x}.html"]
    assert '<span class="tag">v1&lt;2&gt;</span>' in page
    assert '<span class="tag">v1&lt;2&gt;</span>' in texts["commits.html"]
    (anchor,) = re.findall(r'href="\.\./history/a-time-b\.html#(line-\w+)"', page)
    assert f'<tr id="{anchor}">' in texts["history/a-time-b.html"]
