"""Others' names and suites on asv's pages and ours: whole, and never as markup."""

import json
import re
import shutil
import subprocess

from inline_snapshot import snapshot

from rocattn_profiling.asv.store import AsvStore
from rocattn_profiling.cli import main
from rocattn_profiling.site.asv_pages import publish, stage
from rocattn_profiling.site.commits import read_history

from ...screens import line, screen


def test_suites_that_asv_discovers_do_not_hide_bench_results(history, tmp_path):
    """asv run rewrites benchmarks.json with the suites only: the copy has both."""
    root, _ = history
    own = {"version": 2, "suite.time_x": {"name": "suite.time_x", "params": [], "param_names": [], "version": "1"}}
    (root / ".asv/results/benchmarks.json").write_text(json.dumps(own))
    stage(AsvStore(root), tmp_path / "copy", read_history(root).commits)
    kept = json.loads((tmp_path / "copy/benchmarks.json").read_text())
    assert kept.keys() == {"version", "suite.time_x", "bench.inference.cpu", "bench.inference.cpu_flash"}


def test_markup_and_interpreter_paths_stay_out_of_asvs_pages(history, tmp_path):
    """A hostile benchmark name is dropped from the copy; an interpreter's path is no selector value."""
    root, _ = history
    name = "<img src=x onerror=alert(1)>"
    listed = json.loads((root / ".asv/results/benchmarks.json").read_text())
    cpu = listed["bench.inference.cpu"]
    listed[name] = {**cpu, "name": name}
    listed["bench.params"] = {**cpu, "name": "bench.params", "param_names": [name] * len(cpu["param_names"])}
    listed["bench.inference.cpu"] = {**cpu, "pretty_name": name, "unit": name}
    listed["bench.inference.cpu_flash"]["pretty_name"] = "Flash & co"
    (root / ".asv/results/benchmarks.json").write_text(json.dumps(listed))
    path = min(p for p in (root / ".asv/results").glob("*/*.json") if p.name != "machine.json")
    data = json.loads(path.read_text())
    data["results"][name] = data["results"]["bench.inference.cpu"]
    data["params"]["python"] = "/home/me/venv/bin/python3"
    path.write_text(json.dumps(data))
    staged = stage(AsvStore(root), tmp_path / "copy", read_history(root).commits)
    assert staged.results == 12
    text = "".join(p.read_text() for p in (tmp_path / "copy").rglob("*.json"))
    assert "onerror" not in text
    assert "/home/me" not in text
    kept = json.loads((tmp_path / "copy/benchmarks.json").read_text())
    assert "bench.params" not in kept
    assert kept["bench.inference.cpu"]["unit"] == "unit"
    assert kept["bench.inference.cpu_flash"]["pretty_name"] == "Flash & co"


def test_tags_and_branches_cannot_be_markup_on_asvs_pages(history):
    """asv writes tags into its page as they are: such a tag is left out, a branch of such a name goes as HEAD."""
    root, _ = history
    evil = "<img/src=x/onerror=alert(1)>"
    for command in (["tag", "v1.0"], ["tag", evil], ["checkout", "--quiet", "-b", evil]):
        subprocess.run(["git", "-C", str(root), *command], check=True, capture_output=True)
    asv = publish(AsvStore(root), read_history(root), root / "out/asv")
    assert asv.published, asv.reason
    assert asv.notes == ["1 tag not shown: asv would put such names into its pages as markup"]
    index = json.loads((root / "out/asv/index.json").read_text())
    assert list(index["tags"]) == ["v1.0"]
    assert "onerror" not in "".join(p.read_text() for p in (root / "out/asv").rglob("*.json"))


def test_another_project_s_site_is_its_own(history):
    """Its configuration lies in benchmarks/: the store is beside that, and the pages bear its name, not ours."""
    root, _ = history
    (root / "asv.conf.json").unlink()
    (root / "benchmarks").mkdir(exist_ok=True)
    (root / "benchmarks/asv.conf.json").write_text('{"version": 1, "project": "other <i>", "repo": ".."}')
    shutil.move(root / ".asv/results", root / "benchmarks/results")
    store = AsvStore(root)
    assert (store.results_dir, store.project) == (root.resolve() / "benchmarks/results", "other <i>")
    out = root / "out/site"
    assert main(["site", "--repo", str(root), "--out", str(out)]) == 0
    assert (out / "asv/index.html").is_file()
    text = (out / "index.html").read_text()
    assert "<h1>other &lt;i&gt;, measured commit by commit</h1>" in text
    assert "attention" not in text
    titles = re.findall("<title>(.*?)</title>", (out / "feed.xml").read_text())
    assert titles[0] == "other &lt;i&gt;: regressions on trunk"
    (root / "perf").mkdir()
    shutil.copy(root / "benchmarks/asv.conf.json", root / "perf")  # nobody says which of the two
    assert AsvStore(root).results_dir == root.resolve() / ".asv/results"


def test_results_kept_apart_from_the_project_need_its_clone(history, tmp_path, capsys):
    """In the repository of the results alone nothing is searched, and it is said how; with the clone they are shown."""
    root, _ = history
    (root / "asv.conf.json").unlink()
    apart = tmp_path / "apart"
    shutil.copytree(root / ".asv/results", apart / ".asv/results")
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "--quiet"], [*who, "commit", "--quiet", "--allow-empty", "-m", "Results"]):
        subprocess.run(["git", "-C", str(apart), *command], check=True, capture_output=True)
    store, out = apart / ".asv/results", tmp_path / "out/site"
    assert main(["site", "--repo", str(apart), "--out", str(out)]) == 0
    said = capsys.readouterr().err
    assert screen(line(said, "none of"), APART=apart) == snapshot(
        "note: none of the 12 measured commits is in APART: no change can be found. If results are kept apart from the "
        "project, name a clone of it: --repo CLONE --store APART/.asv/results. In a shallow clone, fetch the history."
    )
    assert "not searched" in (out / "index.html").read_text()
    assert main(["site", "--repo", str(root), "--store", str(store), "--out", str(out)]) == 0
    assert "none of the" not in capsys.readouterr().err
    text = (out / "index.html").read_text()
    assert f"<h1>{root.name}, measured commit by commit</h1>" in text
    assert "not searched" not in text
