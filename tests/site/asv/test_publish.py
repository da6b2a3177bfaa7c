"""asv's pages and ours from one store: published from a clean copy, ours opened in a browser."""

import json
import math
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from rocattn.errors import RocattnError
from rocattn_profiling.asv.store import AsvStore
from rocattn_profiling.base.files import StagedFiles, append_line
from rocattn_profiling.cli import main
from rocattn_profiling.measure.records import Commit
from rocattn_profiling.site import asv_pages
from rocattn_profiling.site.asv_pages import AsvPages, publish
from rocattn_profiling.site.commits import read_history
from rocattn_profiling.site.site import Site, write_site

from ...asv.history import git
from ...screens import line
from ..reading import words

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


def dump_dom(url, profile):
    """The page's elements after its scripts have run, as headless Chromium prints them."""
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--virtual-time-budget=8000",
    ]
    command = [CHROMIUM, *flags, f"--user-data-dir={profile}", "--window-size=1400,900", "--dump-dom", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=True).stdout


@pytest.fixture(scope="module")
def site(made_history, tmp_path_factory):
    """(folder, AsvPages, History) of a site from the synthetic history."""
    root, _ = made_history
    out = tmp_path_factory.mktemp("site")
    history, store = read_history(root), AsvStore(root)
    asv = publish(store, history, out / "asv")
    write_site(out, Site(store.read(), history, store.machines(), asv=asv))
    return out, asv, history


def result_files(root):
    """The result files of a store."""
    return sorted(p for p in (root / ".asv/results").glob("*/*.json") if p.name != "machine.json")


def test_asv_finds_the_step_where_it_is(site, made_history):
    """Graphs have a point for each commit of the clone's branch, and asv's detector finds the planted step."""
    out, asv, _ = site
    _, commits = made_history
    assert (asv.published, asv.reason, asv.notes) == (True, "", [])
    index = json.loads((out / "asv/index.json").read_text())
    assert index["params"]["branch"] == ["trunk"]
    (graph,) = (out / "asv/graphs").glob("arch-*/**/bench.inference.cpu_flash.json")
    points = json.loads(graph.read_text())
    assert len(points) == len(commits)
    assert all(isinstance(v, float) for _, values in points for v in values)
    found = json.loads((out / "asv/regressions.json").read_text())["regressions"]
    assert {entry[0].split("(")[0] for entry in found} == {"bench.inference.cpu_flash"}
    revisions = {jump[1] for entry in found for jump in entry[6]}
    assert {index["revision_to_hash"][str(r)] for r in revisions} == {commits[8].sha}


def test_infinite_and_broken_values_of_others_do_not_reach_asv(history):
    """Inf hangs asv's step detection for ever and a dict crashes it: the copy has neither, the original keeps both."""
    root, _ = history
    files = result_files(root)
    for path, value in zip(files, (math.inf, -math.inf, {"a": 1}), strict=False):
        data = json.loads(path.read_text())
        at = data["result_columns"].index("result")
        data["results"]["bench.inference.cpu"][at][0] = value
        path.write_text(json.dumps(data))
    before = {path: path.read_bytes() for path in files}
    asv = publish(AsvStore(root), read_history(root), root / "out/asv")
    assert asv.published
    assert sum("asv cannot show" in note for note in asv.notes) == 3
    assert {path: path.read_bytes() for path in files} == before


def test_a_broken_file_costs_its_own_points_only(history):
    """One file cut off in the middle: it is named, the other eleven commits are published."""
    root, _ = history
    broken = result_files(root)[0]
    broken.write_text(broken.read_text()[:99])
    asv = publish(AsvStore(root), read_history(root), root / "out/asv")
    assert asv.published
    assert [note for note in asv.notes if broken.name in note]
    (graph,) = (root / "out/asv/graphs").glob("arch-*/**/bench.inference.cpu.json")
    assert len(json.loads(graph.read_text())) == 11


def test_commits_this_clone_lacks_are_counted_not_fatal(history, record_of):
    """Results of a commit that was rebased away, or is beyond a shallow clone, are left out and counted."""
    root, commits = history
    from rocattn.config import AttentionConfig

    config = AttentionConfig(batch=1, num_heads=4, seq_q=128, seq_k=128, head_dim=64)
    AsvStore(root).add_records([record_of(Commit(sha="e" * 40, date_ms=commits[0].date_ms), config)])
    asv = publish(AsvStore(root), read_history(root), root / "out/asv")
    assert asv.published
    assert asv.notes == ["1 measured commit not in this clone: left out of asv's graphs"]
    assert '<a href="rocattn.json">left out</a>' in (root / "out/asv/index.html").read_text()


def test_asv_s_pages_lead_back_also_without_scripts(history):
    """The link has the project's name; without JavaScript a line, and no empty frames."""
    root, _ = history
    config = root / "asv.conf.json"
    config.write_text(re.sub(r'"project": "[^"]*"', '"project": "a <b> c"', config.read_text()))
    publish(AsvStore(root), read_history(root), root / "out/asv")
    page = (root / "out/asv/index.html").read_text()
    assert '<li><a href="../index.html">&larr; a &lt;b&gt; c</a></li>' in page
    (without,) = re.findall(r"<body>\s*<noscript>(.*?)</noscript>", page)
    assert "body > :not(noscript) { display: none" in without
    assert "need JavaScript" in without
    assert '<a href="../index.html">a &lt;b&gt; c without scripts</a>' in without
    assert "https://code.jquery.com" in page


def test_publishing_errors_are_one_line(tmp_path, history, monkeypatch):
    """A folder without git, an empty store, a path that cannot be written: each says so in one line."""
    root, _ = history
    (tmp_path / "plain").mkdir()
    with pytest.raises(RocattnError, match="has no git history") as caught:
        read_history(tmp_path / "plain")
    assert "\n" not in str(caught.value)
    empty = publish(AsvStore(root, tmp_path / "empty"), read_history(root), tmp_path / "x")
    assert (empty.published, empty.reason) == (False, "the store has no result for any commit of this repository")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RocattnError, match=r"cannot write .*asv: Not a directory") as caught:
        publish(AsvStore(root), read_history(root), tmp_path / "file" / "asv")
    assert "\n" not in str(caught.value)

    def full(source, target, **_):
        raise shutil.Error([(f"{source}/{name}", f"{target}/{name}", "No space left on device") for name in "abc"])

    monkeypatch.setattr(shutil, "copytree", full)
    out = tmp_path / "full" / "asv"
    with pytest.raises(RocattnError) as caught:
        publish(AsvStore(root), read_history(root), out)
    assert str(caught.value) == f"cannot write asv's pages to {out}: No space left on device"


@pytest.mark.browser
@needs_chromium
def test_our_pages_draw_their_graphs_without_scripts(site, tmp_path):
    """From disk, Chromium shows every line of the history page as a polyline with a point a commit."""
    out, _, history = site
    dom = dump_dom((out / "history/bench-inference.html").as_uri(), tmp_path)
    lines = re.findall(r'<polyline class="trace" points="([^"]+)"', dom)
    assert len(lines) == 8 * 3  # eight lines in the overview, its narrow form and the small charts
    assert all(len(points.split()) == len(history.commits) for points in lines)
    assert "Change &lt;b&gt;3&lt;/b&gt; &amp; go on" in dom
    front = dump_dom((out / "index.html").as_uri(), tmp_path)
    assert '<polyline class="spark"' in front


def test_pages_of_gone_benchmarks_go_too(site, tmp_path):
    """A second build over the first leaves no page that nothing links to."""
    out, _, history = site
    copy = tmp_path / "site"
    shutil.copytree(out, copy)
    (copy / "history/mine.html").write_text("somebody else's page")
    write_site(copy, Site([], history, asv=AsvPages(reason="nothing")))
    assert sorted(p.name for p in copy.glob("**/*.html") if "asv" not in p.parts) == ["index.html", "mine.html"]


def test_open_regressions_are_listed_until_waived(history, capsys):
    """The planted step in JSON, at its commit; a waiver that allows as much closes it, with its reason."""
    root, commits = history
    asked = ["site", "--repo", str(root), "--out", str(root / "out/site"), "--json"]
    assert main(asked) == 0
    told = json.loads(capsys.readouterr().out)
    found = told["open_regressions"]
    listed = {cause["commit"]: [change["kind"] for change in cause["changes"]] for cause in told["causes"]}
    assert listed[commits[8].sha].count("open") == len(found)
    assert {entry["label"].split("(")[0] for entry in found} == {"bench.inference.cpu_flash"}
    assert {entry["commit"] for entry in found} == {commits[8].sha}
    assert all(1.25 < entry["ratio"] < 1.35 for entry in found)
    (root / ".rocattn").mkdir()
    for ceiling, still in ((1.1, len(found)), (1.5, 0)):
        rows = [
            f"[[waiver]]\nbenchmark = {json.dumps(entry['label'])}\nmetric = 'time'\nceiling = {ceiling}\n"
            "expires = 2999-12-31\nissue = '#7'\nreason = 'known'\n"
            for entry in found
        ]
        (root / ".rocattn/waivers.toml").write_text("\n".join(rows))
        assert main(asked) == 0
        assert len(json.loads(capsys.readouterr().out)["open_regressions"]) == still
    assert "accepted: known (#7" in (root / "out/site/changes.html").read_text()


@pytest.mark.parametrize("url", ["javascript:alert(1)", "example.org", 'https://a"b'])
def test_an_address_that_is_none_is_refused(history, capsys, url):
    """The feed's address goes into its links: what is no http address is one line and status 4."""
    root, _ = history
    assert main(["site", "--repo", str(root), "--out", str(root / "out/site"), "--url", url]) == 4
    assert capsys.readouterr().err == f"rocattn site: {url!r} is not the URL of a site: it begins with https://\n"


def test_a_folder_of_somebody_else_is_left_alone(history, tmp_path):
    """``--out .`` in a checkout with a folder named asv must not delete it."""
    root, _ = history
    (tmp_path / "asv").mkdir()
    (tmp_path / "asv/precious.py").write_text("x = 1")
    with pytest.raises(RocattnError, match="was not made by asv publish"):
        publish(AsvStore(root), read_history(root), tmp_path / "asv")
    assert (tmp_path / "asv/precious.py").read_text() == "x = 1"


def test_a_store_without_benchmarks_json_is_republished(history):
    """Ours are made, asv's need the list and say so; asv's pages without a graph are asv's all the same."""
    root, _ = history
    for path in (root / ".asv/results").glob("benchmarks.json*"):
        path.unlink()
    asv = publish(AsvStore(root), read_history(root), root / "out/asv")
    assert not asv.published
    assert "has no benchmarks.json" in asv.reason
    other = {"version": 2, "gone.time_x": {"name": "gone.time_x", "params": [], "param_names": [], "version": "1"}}
    (root / ".asv/results/benchmarks.json").write_text(json.dumps(other))
    for _ in range(2):
        asv = publish(AsvStore(root), read_history(root), root / "out/asv")
        assert asv.published, asv.reason
    assert not (root / "out/asv/graphs").exists()


def test_links_between_pages_lead_somewhere(site):
    """Every relative link of every page of ours, asv's entry included, is a file."""
    out, _, _ = site
    pages = [p for p in out.rglob("*.html") if "asv" not in p.relative_to(out).parts]
    assert len(pages) == 5 + 12  # overview, changes, compare, commits, the family, and the commits
    for page in pages:
        for link in re.findall(r'href="([^"]+)"', page.read_text()):
            assert link.startswith("#") or (page.parent / link.split("#")[0]).is_file(), (page, link)


def test_our_pages_are_in_place_before_asv_begins(history, monkeypatch):
    """Whatever ends the wait leaves ours, whose links lead to a page that says so; then a failure's reason is there."""
    root, _ = history
    out = root / "out/site"
    asked = ["site", "--repo", str(root), "--out", str(out), "--json"]

    def interrupted(*_):
        assert "in asv</a>" in (out / "changes.html").read_text()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(asv_pages, "stage", interrupted)
        assert main(asked) == 130
    ours = {path: path.read_bytes() for path in out.rglob("*.html")}
    told = words(ours[out / "asv/index.html"].decode().partition("<h1>")[2].partition("<footer")[0])
    assert told == snapshot("""\
asv's pages
There are none: asv publish is not done yet. Our own pages show the same results.\
""")
    assert 'href="asv/index.html"' in ours[out / "index.html"].decode()
    (root / ".asv/results/benchmarks.json").unlink()
    (root / ".asv/results/benchmarks.json.rocattn").unlink()
    assert main(asked) == 0
    assert "has no benchmarks.json" in (out / "asv/index.html").read_text()
    assert not list(out.rglob("*.partial"))


def test_each_page_of_ours_is_written_once(history, monkeypatch, tmp_path):
    """A long history's pages take the most time of ours; several processes write them."""
    root, _ = history
    told, add = tmp_path / "told", StagedFiles.add

    def noted(self, path, pieces):
        append_line(told, os.fsencode(path))
        add(self, path, pieces)

    monkeypatch.setattr(StagedFiles, "add", noted)
    assert main(["site", "--repo", str(root), "--out", str(root / "out/site")]) == 0
    written = told.read_bytes().split(b"\n")
    assert len(written) == len(set(written)) > 12
    assert (root / "out/site/asv/regressions.json").is_file()


def test_pages_without_links_to_asv_s_leave_none_there(history, capsys):
    """--no-asv removes what we made, done or not, and what somebody else put there stays."""
    root, _ = history
    out = root / "out/site"
    asked = ["site", "--repo", str(root), "--out", str(out)]
    assert main([*asked, "--no-asv"]) == 0
    assert line(capsys.readouterr().err, "not made") == "note: asv's pages were not made: --no-asv was given"
    assert main(asked) == 0
    assert (out / "asv/graphs").is_dir()
    assert main([*asked, "--no-asv"]) == 0
    assert "asv/" not in (out / "index.html").read_text().replace("benchmarks/asv", "")
    assert not [path for path in out.iterdir() if "asv" in path.name]
    (out / "asv").mkdir()
    (out / "asv/precious.py").touch()
    assert main([*asked, "--no-asv"]) == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert main(asked) == 4
    refused = f"rocattn site: {out / 'asv'} exists and was not made by asv publish: choose another output folder"
    assert capsys.readouterr().err.splitlines()[-1] == refused
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


@pytest.fixture
def published(history, monkeypatch):
    """(repository, function that publishes and returns whether asv ran): asv itself is replaced."""
    root, _ = history
    runs = []

    def asv(_, scratch):
        runs.append(scratch)
        (scratch / "html").mkdir()
        (scratch / "html/index.html").write_text("<body>")
        (scratch / "html/index.json").write_text("{}")
        (scratch / "html/graphdisplay.js").touch()
        return ""

    def ran():
        runs.clear()
        said = []
        assert publish(AsvStore(root), read_history(root), root / "out/asv", said.append).published
        assert ("earlier run" in said[0]) != bool(runs)
        return bool(runs)

    monkeypatch.setattr(asv_pages, "_run_publish", asv)
    return root, ran


def test_what_is_on_none_of_asv_s_pages_makes_none_anew(published):
    """An unchanged store, a commit that was not measured, another time of a file; notes are said again."""
    root, ran = published
    broken = result_files(root)[0]
    broken.write_text(broken.read_text()[:99])
    assert ran()
    noted = json.loads((root / "out/asv/rocattn.json").read_text())["left out"]
    assert publish(AsvStore(root), read_history(root), root / "out/asv").notes == noted
    assert broken.name in noted[0]
    os.utime(result_files(root)[1], (1, 1))
    git(root, "commit", "--quiet", "--allow-empty", "-m", "Not measured")
    assert not ran()


@pytest.mark.parametrize(
    "change",
    [
        lambda root: result_files(root)[3].unlink(),
        lambda root: result_files(root)[3].write_text(result_files(root)[3].read_text().replace("1", "2", 1)),
        lambda root: (root / "asv.conf.json").write_text((root / "asv.conf.json").read_text() + "// a comment\n"),
        lambda root: next(root.glob(".asv/results/*/machine.json")).write_text("{}"),
        lambda root: (root / ".asv/results/benchmarks.json.rocattn").write_text("{}"),
        lambda root: git(root, "tag", "v1"),
        lambda root: git(root, "checkout", "--quiet", "-b", "other"),
        lambda root: git(root, "reset", "--quiet", "--hard", "HEAD~2"),
        lambda root: (root / "out/asv/graphdisplay.js").unlink(),
        lambda root: (root / "out/asv/rocattn.json").write_text("[]"),
    ],
    ids=["fewer", "other value", "settings", "machine", "benchmarks", "tag", "branch", "reset", "pages", "record"],
)
def test_asv_s_pages_are_made_anew_of_what_changed(published, change):
    """Each of what they are made from, and pages that are not whole."""
    root, ran = published
    assert ran()
    change(root)
    assert ran()
    assert not ran()


@pytest.mark.parametrize(
    ("error", "raised"), [(OSError(28, "full"), RocattnError), (KeyboardInterrupt(), KeyboardInterrupt)]
)
def test_torn_pages_of_asv_leave_the_earlier_ones(published, monkeypatch, error, raised):
    """The disk is full, or Ctrl-C comes, in the middle of the copy; the next run makes them."""
    root, ran = published
    assert ran()
    before = {path: path.read_bytes() for path in (root / "out").rglob("*") if path.is_file()}
    result_files(root)[3].unlink()

    def torn(source, target, **_):
        (target / "index.html").write_text("half")
        raise error

    whole = shutil.copytree
    monkeypatch.setattr(shutil, "copytree", torn)
    with pytest.raises(raised):
        ran()
    monkeypatch.setattr(shutil, "copytree", whole)
    assert {path: path.read_bytes() for path in (root / "out").rglob("*") if path.is_file()} == before
    assert ran()


def test_another_asv_makes_its_pages_anew(published, monkeypatch):
    """As it would after an update of the environment."""
    _, ran = published
    assert ran()
    monkeypatch.setattr(asv_pages, "version", lambda _: "99.0")
    assert ran()


def test_nothing_of_asv_is_left_when_it_takes_too_long(history, tmp_path, monkeypatch):
    """Its workers, in which a step detection that never ends would go on, end with it; the page says why."""
    root, _ = history
    worker = tmp_path / "worker"
    (tmp_path / "asv.py").write_text(
        "import multiprocessing, os, pathlib, time\n"
        f"def work():\n    pathlib.Path({str(worker)!r}).write_text(str(os.getpid()))\n    time.sleep(600)\n"
        "multiprocessing.Process(target=work).start()\ntime.sleep(600)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(asv_pages, "PUBLISH_TIMEOUT_S", 5.0)
    asv = publish(AsvStore(root), read_history(root), root / "out/asv")
    assert asv.reason.startswith("asv publish did not end within 5 s")
    assert asv.reason in (root / "out/asv/index.html").read_text()
    state = Path(f"/proc/{worker.read_text()}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"
