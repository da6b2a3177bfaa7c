"""Pages of commits and kernels, the front page's state, lines with fewer points than commits."""

import dataclasses
import json
import math
import os
import random
import re
import shutil
import subprocess

import msgspec
import numpy as np
import pytest
from inline_snapshot import snapshot

from rocattn_profiling.asv.store import AsvStore
from rocattn_profiling.kernels.pins import Pin, Pins
from rocattn_profiling.pages.charts import thin
from rocattn_profiling.pages.render import GENERATOR
from rocattn_profiling.site.changes import find_changes, rules_of_asv
from rocattn_profiling.site.commits import History, branch_with, commit_url, read_history
from rocattn_profiling.site.history import LINES, TABLE_COLUMNS
from rocattn_profiling.site.site import HINTS, Site, commit_pages, commit_paths, pages_of, write_site
from rocattn_profiling.site.state import HEADLINE, arch_state, broken_lines, last_measured, read_standing

from .reading import card, section, words

KERNEL = "flash_attention_causal f16 D=128"


def audited(series_of, metric, values, arch="gfx942", kernel=KERNEL, unit="registers"):
    """A history line as the audit of machine code stores it."""
    params = {"arch": arch, "kernel": kernel}
    return series_of(values, benchmark=f"bench_audit.Kernels.track_{metric}", params=params, unit=unit, spread=0.0)


def page_of(series, history, n):
    """The view of commit n's page."""
    paths = commit_paths(series, history.commits)
    pages = commit_pages(series, history, find_changes(series, history).listed, [], paths)
    return next(page for page in pages if page.commit.sha == f"{n:040x}")


def test_a_commits_page_says_what_its_machine_code_did(series_of, history):
    """120 to 128 VGPRs at commit 7 is on that page, exactly; the commits beside it are quiet."""
    series = [audited(series_of, "vgprs", [120.0] * 7 + [128.0] * 5), audited(series_of, "spills", [0.0] * 12)]
    (move,) = page_of(series, history, 7).machine_code
    assert (move.label, move.where, move.before, move.after, move.tone) == (
        f"{KERNEL}: vgprs", "gfx942", "120 registers", "128 registers", "bad",
    )  # fmt: skip
    assert page_of(series, history, 6).quiet
    assert page_of(series, history, 8).quiet
    first_spill = [audited(series_of, "spills", [0.0] * 3 + [43.0] * 9)]
    assert page_of(first_spill, history, 3).machine_code[0].change == ""  # from nothing there is no percentage


def test_a_commit_page_lists_failures_and_largest_differences(series_of, history):
    """What stopped running, and at most ten differences, largest first; small ones and overlaps are no rows."""
    series = [
        series_of([1.0] * 5 + [1.0 + 0.03 * (n + 1)] * 7, benchmark=f"s.time_{n}", spread=0.001) for n in range(14)
    ]
    series += [series_of([1.0, 1.0, None, 1.0], benchmark="s.time_broken"), series_of([1.0, 1.3], spread=0.5)]
    page = page_of(series, history, 5)
    assert len(page.hints) == HINTS
    assert [move.label for move in page.hints][:2] == ["s.time_13('b1-h3-q33')", "s.time_12('b1-h3-q33')"]
    assert [label for label, _ in page_of(series, history, 2).failed] == ["s.time_broken('b1-h3-q33')"]
    assert page_of(series, history, 1).hints == []


def test_only_measured_commits_have_pages_with_unique_names(series_of, history):
    """Five measured commits are five pages; equal first digits make the names whole hashes."""
    paths = commit_paths([series_of([1.0] * 5)], history.commits)
    assert len(paths) == len(set(paths.values())) == 5
    assert paths[f"{3:040x}"] == f"commits/{3:040x}.html"  # all begin with eight zeros


def test_commit_pages_link_before_next_and_the_commit_itself(series_of, history):
    """The way through the history, and out to the forge where there is one."""
    site = Site([series_of([1.0] * 3)], history, commit_url="https://github.com/o/r/commit/")
    text = dict(pages_of(site))[f"commits/{1:040x}.html"]
    assert f'href="../commits/{0:040x}.html"' in text
    assert f'href="../commits/{2:040x}.html"' in text
    assert f'href="https://github.com/o/r/commit/{1:040x}"' in text


def test_the_verdict_is_on_the_page_of_its_commit(series_of, history, verdict):
    """The gate's word and a link on the head's page; not on others, nor for a tree with changes of its own."""
    sha = f"{1:040x}"

    def texts(**changes):
        revision = msgspec.structs.replace(verdict.head.revision, sha=sha, **changes)
        head = msgspec.structs.replace(verdict.head, revision=revision)
        pages = dict(pages_of(Site([series_of([1.0] * 3)], history, gate=msgspec.structs.replace(verdict, head=head))))
        return [name for name, text in pages.items() if name.startswith("commits/") and "The gate</a> says" in text]

    assert texts() == [f"commits/{sha}.html"]
    assert texts(dirty=True) == []


def test_a_verdict_counts_only_for_the_branch_of_its_commit(series_of, history, verdict):
    """Red on the front page is the state of main; the verdict of a branch, a tree or environments is named, in grey."""

    def card(branch="", revision=None, **changes):
        found = msgspec.structs.replace(verdict.head.revision, **changes) if revision is None else None
        head = msgspec.structs.replace(verdict.head, revision=found)
        gate = msgspec.structs.replace(verdict, head=head)
        text = dict(pages_of(Site([series_of([1.0] * 3)], history, gate=gate, gate_branch=branch)))["index.html"]
        (title,) = re.findall(r'<div class="what">(gate: [^<]*) against', text)
        return title, 'class="card bad" href="gate.html"' in text, "Not the state of main." in text

    newest, older = f"{11:040x}", f"{8:040x}"
    assert card(sha=newest) == (f"gate: main at {newest[:10]}", True, False)
    assert card(sha=older) == (f"gate: main at {older[:10]}, 3 commits ago,", True, False)
    assert card(sha="a" * 40, branch="feature") == (f"gate: feature at {'a' * 10}", False, True)
    assert card(sha="a" * 40) == (f"gate: {'a' * 10}", False, True)
    assert card(sha=newest, dirty=True) == ("gate: uncommitted changes", False, True)
    assert card(revision="none")[1:] == (False, True)


def test_the_branch_of_a_commit_is_found(repo):
    """One that ends there before one that contains it; none for the site's own branch or an unknown commit."""
    first = repo.commit("first")
    repo.git("branch", "later")
    repo.git("checkout", "--quiet", "-b", "feature")
    second = repo.commit("second")
    repo.git("checkout", "--quiet", "-b", "above")
    repo.commit("third")
    assert branch_with(repo.root, second, "main") == "feature"
    assert branch_with(repo.root, first, "main") == "later"
    repo.git("branch", "--delete", "--force", "feature", "later")
    assert branch_with(repo.root, second, "main") == "above"
    assert branch_with(repo.root, second, "above") == ""
    assert branch_with(repo.root, "a" * 40, "main") == ""


def test_a_kernel_page_has_a_chart_for_each_number(series_of, history):
    """All tracked numbers of a kernel on one page: charts, the newest values as a table, changes marked."""
    series = [
        audited(series_of, metric, [value] * 6 + [value + step] * 6, arch, unit=unit)
        for arch, value in (("gfx942", 120.0), ("gfx1100", 200.0))
        for metric, step, unit in (("vgprs", 8, "registers"), ("lds_bytes", 0, "bytes"), ("hot_loop", 0, "cycles"))
    ]
    pages = dict(pages_of(Site(series, history, changes=find_changes(series, history))))
    text = pages["kernels/flash-attention-causal-f16-d-128.html"]
    assert text.count('<section class="panel"') == 3
    assert "208 registers" in text
    assert "1 regression open" in text  # of two numbers at one commit
    assert text.index("gfx942") < text.index("gfx1100")
    assert "kernels/flash-attention-causal-f16-d-128.html" in pages["kernels.html"]


@pytest.mark.parametrize("metric", ["code_bytes", "lds_bytes", "sgprs"])
@pytest.mark.parametrize("rise", [6, 11])
def test_what_is_neither_good_nor_bad_is_so_on_every_page(series_of, history, metric, rise):
    """Larger code is a change without a verdict: neither an open regression nor an improvement, on no page."""
    series = [audited(series_of, metric, [9000.0] * rise + [9900.0] * (12 - rise), unit="bytes")]
    changes = find_changes(series, history)
    assert [(c.worse, c.better, c.tone) for c in changes.listed] == [(False, False, "")] * (rise == 6)
    pages = dict(pages_of(Site(series, history, changes=changes)))
    assert bool(section(pages["changes.html"], "Neither better nor worse")) == (rise == 6)
    assert "0 regressions open" in pages["index.html"]
    for name, text in pages.items():
        if name.startswith(("history/", "kernels/")) and name.endswith(".html"):
            assert not re.search("(Low|High)er is better[^;]", text)
            assert "+10.0 %" in text
            assert 'class="tag warn"' not in text
    assert page_of(series, history, rise).machine_code[0].tone == ""


def test_what_fell_to_nothing_is_told_as_that(series_of, history):
    """43 spilled registers, then none: -100 %; from none there is no ratio."""
    series = [
        audited(series_of, "spills", [43.0] * 11 + [0.0]),
        audited(series_of, "spills", [0.0] * 11 + [43.0], "gfx90a"),
    ]
    text = dict(pages_of(Site(series, history)))["kernels/flash-attention-causal-f16-d-128.html"]
    gone, came = re.findall(r"<td class=\"num\" title=\"[^\"]*\"><b>([^<]*)</b></td><td class=\"num\">(.*?)</td>", text)
    assert {gone[0], came[0]} == {"0 registers", "43 registers"}
    fell = gone if gone[0].startswith("0") else came
    rose = came if fell is gone else gone
    assert "-100 %" in fell[1]
    assert "—" in rose[1]


def encoded(values):
    """Values as lines have them: infinite where one failed."""
    return np.array([math.inf if value is None else value for value in values])


@pytest.mark.parametrize("count", [1, 2, 3, 61, 400, 2003])
def test_a_thinned_line_keeps_ends_extremes_failures_and_gaps(count):
    """Of every stretch its lowest and highest stay, and one failure; the number of points is bounded."""
    rng = random.Random(count)  # noqa: S311 - test data, not secrets
    values = [rng.gauss(1, 0.1) for _ in range(count)]
    for at in range(0, count, 97):
        values[at] = None
    if count > 300:
        values[100:350] = [math.nan] * 250
    kept = thin(encoded(values), 40, {count // 3})
    known = [(v, i) for i, v in enumerate(values) if v is not None and v == v]  # noqa: PLR0124 - not NaN
    assert {0, count - 1, count // 3} <= set(kept)
    assert kept == sorted(set(kept))
    assert not known or {min(known)[1], max(known)[1]} <= set(kept)
    assert len(kept) <= max(40, 40 * 1.5 + 3)
    if count > 300:
        assert any(values[i] is None for i in kept)
        assert any(values[i] is not None and math.isnan(values[i]) for i in kept)
    # Of two failures in one stretch the first stands for all; it is neither its lowest nor its highest.
    values = [1.0 + 0.001 * (n % 7) for n in range(2000)]
    values[777] = values[778] = None
    kept = thin(encoded(values), 40)
    assert [i for i in kept if values[i] is None] == [777]
    assert len(kept) <= 61


def test_pages_of_long_histories_stay_small(series_of, log_of):
    """Three hundred lines on one page: few enough elements for any browser, and it says what is left out."""
    rng = random.Random(7)  # noqa: S311 - test data, not secrets
    series = [
        series_of([rng.uniform(1, 1.1) for _ in range(150)], params={"n": str(n)}, benchmark="s.time_x")
        for n in range(LINES + 5)
    ]
    text = dict(pages_of(Site(series, log_of(150))))["history/s-time-x.html"]
    assert len(text) < 6 << 20
    assert len(re.findall("<(circle|line|path|text|polyline|td)[ >]", text)) < 40_000
    combinations = f"{LINES + 5} combinations"
    shown = [each for each in re.split(r"\n|(?<=\.) ", words(text).replace("\n  ", " ")) if "combinations" in each]
    assert shown == [
        f"{LINES + 5} parameter combinations over 150 commits.",
        "5 combinations are not drawn here.",
        f"The same as a table (the newest 100 commits, the first {TABLE_COLUMNS} of {combinations}, newest first)",
    ]


def pin(**changes):
    """A pin of a small kernel."""
    return Pin(**{"vgprs": 120, "sgprs": 40, "lds_bytes": 1024, "block": 128, "lost_wave_slots": 4.0, **changes})


def test_kernels_are_summed_up_by_architecture():
    """Spilling kernels, the worst of them, waves as slots less what is lost, and the headline kernels by name."""
    kernels = {HEADLINE[0]: pin(), "b": pin(vgpr_spills=3, lost_wave_slots=6.5), "c": pin(sgpr_spills=9, vgprs=90)}
    state = arch_state(Pins(arch="gfx942", compiler="c", rates="r", kernels=kernels))
    assert (state.kernels, state.vgpr_spilling, state.sgpr_spilling, state.worst) == (3, 1, 1, ("b", 3))
    assert state.waves == (1.5, 4.0, 4.0)
    assert state.headline == [(120, 4.0), None, None]


def test_the_front_page_shows_what_other_commands_left(tmp_path, history):
    """Verification, PyTorch's ratios and standalone pages are found; broken and foreign files are noted, not fatal."""
    made = {
        "verify/verify.json": json.dumps({"cases": 7, "ran": 13, "failed": 0, "skipped": 2, "level": "core"}),
        "verify/index.html": f'<!doctype html><html><head>{GENERATOR}1"></head><p>verified</html>',
        "memory/memory.html": "<html><script>alert(1)</script></html>",
        "profile/profile.json": "{}",
        "peers/against_torch.json": json.dumps({
            "threads": 2, "torch": "2.13", "rows": [
                {"group": "decode", "config": {}, "torch_s": [4.0, 4.0, 9.0], "ours_s": [1.0], "error": 0.0},
                {"group": "decode", "config": {}, "torch_s": [1.0], "ours_s": [1.0]},
                {"group": "peak", "config": {}, "torch_s": [1.0], "ours_s": [1.0]},
            ],
        }),
    }  # fmt: skip
    for name, text in made.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    notes = []
    standing = read_standing(tmp_path, tmp_path / "none", GENERATOR, notes.append)
    pages = dict(pages_of(Site([], history, standing=standing)))
    assert "13 checks right" in pages["index.html"]
    assert '<b class="t-good">2.00x</b>' in pages["index.html"]
    assert pages["reports/verify-index.html"] == made["verify/index.html"]
    assert not any("alert" in text for text in pages.values())
    assert sorted(note.rpartition(str(tmp_path))[2][:22] for note in notes) == [
        "/memory/memory.html wa", "/profile/profile.json ",
    ]  # fmt: skip


def test_a_failed_verification_is_red(tmp_path, history):
    """One wrong output colours the card; no output at all is no pass."""
    (tmp_path / "verify").mkdir()
    for ran, failed, expected in ((9, 1, 'class="card bad"'), (0, 0, 'class="card warn"')):
        text = json.dumps({"cases": 1, "ran": ran, "failed": failed, "skipped": 0})
        (tmp_path / "verify/verify.json").write_text(text)
        standing = read_standing(tmp_path, tmp_path, GENERATOR, lambda _: None)
        assert expected in dict(pages_of(Site([], history, standing=standing)))["index.html"]


def test_pages_that_are_gone_are_removed_and_others_stay(tmp_path, series_of, history):
    """A second build with fewer commits leaves no page of a commit behind; somebody's own file stays."""
    out = tmp_path / "site"
    write_site(out, Site([series_of([1.0] * 4)], history))
    (out / "commits/mine.html").write_text("my own")
    (out / "profile.html").write_text(f'{GENERATOR}1">: of another command')
    write_site(out, Site([series_of([1.0] * 2)], history))
    assert len(list((out / "commits").glob("*.html"))) == 3
    assert (out / "commits/mine.html").read_text() == "my own"
    assert (out / "profile.html").exists()


@pytest.fixture
def repository(tmp_path):
    """An empty git repository."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    who = {f"GIT_{a}_{b}": "t@t" for a in ("AUTHOR", "COMMITTER") for b in ("NAME", "EMAIL")}

    def git(*arguments):
        command = ["git", "-c", "init.defaultBranch=trunk", *arguments]
        subprocess.run(command, cwd=tmp_path, env=os.environ | who, check=True, capture_output=True)

    git("init", "--quiet")
    return tmp_path, git


def test_subjects_with_odd_ends_of_line_are_one_commit(repository):
    """Line separators, vertical tabs and escapes in a subject do not tear the log apart."""
    root, git = repository
    subject = "one\u2028two\x0bthree\x85four\x1cfive\rsix \x1b[31m<b>"
    git("commit", "--quiet", "--allow-empty", "-m", subject)
    (info,) = read_history(root).commits.values()
    assert info.subject == subject
    (root / "message").write_bytes("Gr\xf6\xdfe".encode("latin-1"))
    git("-c", "i18n.commitEncoding=of-nobody", "commit", "--quiet", "--allow-empty", "-F", "message")
    history = read_history(root)
    assert history.commits[history.head].subject == "Gr\ufffd\ufffde"


def test_the_history_does_not_depend_on_git_settings(repository, tmp_path_factory, monkeypatch):
    """Shown signatures and another encoding are a user's settings; GIT_DIR is what a hook of another repository has."""
    root, git = repository
    git("config", "log.showSignature", "true")
    git("config", "i18n.logOutputEncoding", "ISO-8859-1")
    git("commit", "--quiet", "--allow-empty", "-m", "Größe in µs")
    monkeypatch.setenv("GIT_DIR", str(tmp_path_factory.mktemp("other")))
    (info,) = read_history(root).commits.values()
    assert info.subject == "Größe in µs"


def test_a_history_is_in_git_s_order_with_its_side_branches(repository, monkeypatch):
    """Parents before children whatever their clocks said; merged commits are in it, and are none of the branch."""
    root, git = repository

    def commit(subject, day):
        monkeypatch.setenv("GIT_AUTHOR_DATE", f"2026-01-{day:02}T12:00:00Z")
        monkeypatch.setenv("GIT_COMMITTER_DATE", f"2026-02-{day:02}T12:00:00Z")
        git("commit", "--quiet", "--allow-empty", "-m", subject)

    commit("first", 9)
    git("checkout", "--quiet", "-b", "side")
    commit("aside", 11)
    git("checkout", "--quiet", "-b", "open")
    commit("never merged", 12)
    git("checkout", "--quiet", "trunk")
    commit("with a slow clock", 3)
    git("merge", "--quiet", "--no-ff", "-m", "merge", "side")
    history = read_history(root)
    found = {info.subject: info for info in history.commits.values()}
    assert (history.branch, history.commits[history.head].subject) == ("trunk", "merge")
    for way in (["first", "aside", "merge"], ["first", "with a slow clock", "merge"], ["aside", "never merged"]):
        assert sorted(way, key=lambda name: found[name].order) == way
    assert {name for name, info in found.items() if info.on_branch} == {"first", "with a slow clock", "merge"}
    assert found["first"].date_ms == 1_767_960_000_000  # the author's date, 2026-01-09, as asv stores it
    git("checkout", "--quiet", "--detach")
    commit("of a pull request, on no branch", 20)
    detached = read_history(root)
    assert detached.branch == "HEAD"
    assert detached.commits[detached.head].subject == "of a pull request, on no branch"


def test_the_commits_address_never_holds_a_password(repository):
    """Owner and name are taken from GitHub addresses of every form; asv's setting comes first; others have none."""
    root, git = repository
    assert commit_url(root) == ""
    git("remote", "add", "origin", "x")
    for address, expected in (
        ("https://x-access-token:secret@github.com/own/re.po.git", "https://github.com/own/re.po/commit/"),
        ("git@github.com:own/repo.git", "https://github.com/own/repo/commit/"),
        ("ssh://git@github.com/own/repo", "https://github.com/own/repo/commit/"),
        ("https://evil.example/github.com/own/repo", ""),
        ('https://github.com/own/repo"><script>', ""),
    ):
        git("remote", "set-url", "origin", address)
        assert commit_url(root, "#") == expected
    assert commit_url(root, "https://forge.example/c/") == "https://forge.example/c/"
    assert commit_url(root, "javascript:alert(1)//") == ""


def test_asvs_rules_for_regressions_are_obeyed_or_said(repository):
    """The largest threshold that matches counts, as in asv; a first commit that is not there is one line."""
    root, git = repository
    for number in range(3):
        git("commit", "--quiet", "--allow-empty", "-m", str(number))
        if number == 1:
            git("tag", "v1")
    first = {"^old": None, "^cut": "v1", "^gone": "v9"}
    settings = {"regressions_thresholds": {"": 0.2, "^loose": 0.5, "(": 1}, "regressions_first_commits": first}
    config = {"version": 1, "project": "p", "repo": ".", **settings}
    (root / "asv.conf.json").write_text(json.dumps(config))
    notes = []
    accepted, limit_of = rules_of_asv(AsvStore(root), read_history(root), notes.append)
    assert [limit_of(label) for label in ("any.time", "loose.time", "tight.time")] == [0.2, 0.5, 0.2]
    assert accepted("old.time(1)", 2) == "regressions_first_commits: not watched"
    assert accepted("cut.time", 0) == "regressions_first_commits: before v1"
    assert (accepted("cut.time", 1), accepted("gone.time", 0), accepted("any.time", 0)) == ("", "", "")
    assert len(notes) == 2
    assert "regressions_thresholds of '('" in notes[0]
    assert "v9" in notes[1]


def test_a_benchmark_that_stopped_working_is_on_the_front_page(series_of, history):
    """With the commit since when it fails; what never ran comes after it, what is measured no more is left out."""
    broke = [1.0] * 7 + [None] * 5
    series = [
        series_of([1.0] * 12, benchmark="s.time_fine"),
        series_of([None] * 12, benchmark="s.time_never"),
        series_of([1.0] * 3 + [None] * 2, benchmark="s.time_removed"),
        series_of([None] * 11 + [2.0], benchmark="s.time_mended"),
        series_of(broke, benchmark="s.time_late", params={"n": "1"}),
        series_of(broke, benchmark="s.time_late", params={"n": "2"}),
        series_of([1.0] * 11 + [float("nan")], benchmark="s.time_skipped"),
    ]
    found = [(one.label, one.since, one.commits, one.lines) for one in broken_lines(series, history)]
    assert found == [("s.time_late('1')", f"{7:040x}", 5, 2), (series[1].label, "", 12, 1)]
    text = dict(pages_of(Site(series, history)))["index.html"]
    assert section(text, "Benchmarks that do not run") == snapshot("""\
s.time_late('1') and 1 more line of it, box, py3.11-numpy2.4: since 00000000 , 5 commits
s.time_never('b1-h3-q33') box, py3.11-numpy2.4: never ran, at 12 commits\
""")
    assert section(dict(pages_of(Site(series[:1], history)))["index.html"], "Benchmarks that do not run") == ""


@pytest.mark.parametrize(
    ("days", "age"), [(0, "0 days and 4 commits"), (59, "59 days and 4 commits"), (547, "18 months and 4 commits")]
)
def test_the_age_of_the_last_measurement_is_on_the_front_page(series_of, history, days, age):
    """Against the branch's newest commit, not the day that the site is made; months are a warning."""
    commits = {
        sha: dataclasses.replace(info, date_ms=86_400_000 * days * (info.order > 7))
        for sha, info in history.commits.items()
    }
    told = History(commits, "main", history.head)
    last = last_measured([series_of([1.0] * 8)], told)
    assert (last.commit.order, last.behind, last.age, last.old) == (7, 4, age, days >= 60)
    pages = dict(pages_of(Site([series_of([1.0] * 8)], told)))
    assert card(pages, "last measured").splitlines()[2] == f"{age} behind main's newest commit: 00000000 Commit 7"
    assert ('class="card warn" href="commits/' in pages["index.html"]) == (days >= 60)
    assert "behind main" not in dict(pages_of(Site([series_of([1.0] * 12)], told)))["index.html"]


def test_a_foreign_project_is_told_nothing_of_the_gate(series_of, history):
    """It has none; ours is told how to run it."""
    series = [series_of([1.0] * 12)]
    assert "gate" not in dict(pages_of(Site(series, history, project="foreign")))["index.html"]
    assert "rocattn gate run" in dict(pages_of(Site(series, history)))["index.html"]
