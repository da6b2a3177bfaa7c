"""The website of a long history: how long `rocattn site` takes, and how large and how fast its pages are.

    python research/peers/site_scale.py [--commits 2000] [--lines 500] [--folder DIR]

Makes a git repository and an asv store (times with 2 % noise, machine code that seldom changes, steps now and then) in
a temporary folder, publishes it once with asv's pages, and prints wall and CPU seconds, the largest page of each kind,
and, where there is Chromium, milliseconds until a page is loaded and laid out. The machine should be idle.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

EPOCH_S = 1_700_000_000
FACTS = {"arch": "x86_64", "cpu": "CPU", "machine": "box", "num_cpu": "2", "os": "Linux", "ram": str(8 << 30)}
ARCHS = ["gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201"]
KERNELS = ["flash_attention_causal f16 D=128", "flash_decode f16 D=128"]
COLUMNS = ["result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b"]
LOADED = """<script>addEventListener("load", () => {
document.body.getBoundingClientRect(); document.body.setAttribute("data-ms", performance.now().toFixed(0)); });</script>
</body>"""


def benchmarks_of(lines: int) -> dict[str, dict[str, Any]]:
    """Return asv's description of about so many lines: half a bench grid, an eighth machine code, the rest singles."""
    found: dict[str, dict[str, Any]] = {}

    def add(name: str, params: list[list[str]], names: list[str], unit: str) -> int:
        found[name] = {
            "name": name, "params": [list(map(repr, values)) for values in params], "param_names": names, "unit": unit,
            "version": "1", "type": "time" if unit == "seconds" else "track", "code": "", "timeout": 60.0,
        }  # fmt: skip
        size = 1
        for values in params:
            size *= len(values)
        return size

    left = lines
    for metric in ("vgprs", "spills", "lost_wave_slots", "hot_loop")[: max(1, lines // 100)]:
        left -= add(f"bench_audit.Kernels.track_{metric}", [ARCHS, KERNELS], ["arch", "kernel"], "registers")
    for grid in range(max(1, lines // 48)):
        for backend in ("cpu", "cpu_flash"):
            left -= add(
                f"bench.grid{grid}.{backend}", [[f"b1-h4-q{128 * n}" for n in range(1, 13)]], ["config"], "seconds"
            )
    for number in range(max(0, left)):
        add(f"suite_{number % 14}.Class{number}.time_work", [], [], "seconds")
    return found


def make_repository(root: Path, commits: int) -> list[str]:
    """Make a repository of so many commits; returns their hashes, oldest first."""
    text = []
    for n in range(commits):
        subject, when = f"Change number {n}: part {n % 17}", EPOCH_S + 7200 * n
        person = f"A <a@b> {when} +0000"
        text.append(
            f"commit refs/heads/main\nauthor {person}\ncommitter {person}\ndata {len(subject)}\n{subject}\n"
            f"M 100644 inline n.txt\ndata {len(str(n))}\n{n}\n"
        )
    subprocess.run(["git", "init", "--quiet", "-b", "main", str(root)], check=True)
    git = ["git", "-C", str(root)]
    subprocess.run([*git, "fast-import", "--quiet"], input="".join(text), text=True, check=True)
    subprocess.run([*git, "checkout", "--quiet", "main"], check=True)
    listed = subprocess.run([*git, "rev-list", "--reverse", "main"], check=True, capture_output=True, text=True)
    return listed.stdout.split()


def fill_store(root: Path, shas: list[str], benchmarks: dict[str, dict[str, Any]]) -> int:
    """Write a result file for each commit; returns how many lines the store has."""
    rng = random.Random(1)  # noqa: S311 - test data, not secrets
    box = root / ".asv/results/box"
    box.mkdir(parents=True)
    (box / "machine.json").write_text(json.dumps(FACTS | {"version": 1}))
    (box.parent / "benchmarks.json").write_text(json.dumps(benchmarks | {"version": 2}))
    levels: dict[str, list[float]] = {}
    for name, benchmark in benchmarks.items():
        size = 1
        for values in benchmark["params"]:
            size *= len(values)
        timed = benchmark["type"] == "time"
        levels[name] = [rng.lognormvariate(-6, 1) if timed else float(rng.randrange(20, 250)) for _ in range(size)]
    for n, sha in enumerate(shas):
        rows = {}
        for name, level in levels.items():
            timed = benchmarks[name]["type"] == "time"
            if rng.random() < 0.002:
                at = rng.randrange(len(level))
                level[at] = (
                    level[at] * rng.choice([0.85, 1.1, 1.4]) if timed else max(1.0, level[at] + rng.choice([-8, 8]))
                )
            values = [v * rng.lognormvariate(0, 0.02) if timed else v for v in level]
            ends = [[v * 0.985 for v in values], [v * 1.015 for v in values]] if timed else [None, None]
            rows[name] = [values, benchmarks[name]["params"], "1", 0, 1.0, *ends]
        data = {
            "commit_hash": sha, "env_name": "py3.11-numpy2.4", "date": (EPOCH_S + 7200 * n) * 1000, "version": 2,
            "params": FACTS | {"python": "3.11", "numpy": "2.4"}, "python": "3.11", "requirements": {"numpy": "2.4"},
            "env_vars": {}, "result_columns": COLUMNS, "results": rows, "durations": {},
        }  # fmt: skip
        (box / f"{sha[:8]}-py3.11-numpy2.4.json").write_text(json.dumps(data))
    return sum(map(len, levels.values()))


def loaded_ms(page: Path, chromium: str) -> str:
    """Return milliseconds until headless Chromium has a page laid out, from disk."""
    copy = page.with_name(f"timed-{page.name}")
    copy.write_text(page.read_text().replace("</body>", LOADED))
    with tempfile.TemporaryDirectory() as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--dump-dom"]
        done = subprocess.run([chromium, *flags, copy.as_uri()], capture_output=True, text=True, check=True)
    copy.unlink()
    found = re.search(r'data-ms="(\d+)"', done.stdout)
    return found[1] if found else "not measured"


def measure(root: Path, commits: int, lines: int) -> None:
    """Make, publish and look; prints what was measured."""
    made = fill_store(root, make_repository(root, commits), benchmarks_of(lines))
    out = root / "out/site"
    started = time.perf_counter()
    command = [sys.executable, "-m", "rocattn_profiling.cli", "site", "--repo", str(root), "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    wall_s, used = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    pages = sorted(out.rglob("*.html"), key=lambda path: -path.stat().st_size)
    print(f"{commits} commits x {made} lines: {wall_s:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of CPU")
    print(f"largest process {used.ru_maxrss >> 10} MiB; {len(pages)} pages")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    for folder in (".", "history", "commits", "kernels"):
        page = next(path for path in pages if path.parent == out / folder)
        opened = f", {loaded_ms(page, chromium)} ms" if chromium else ""
        print(f"largest in {folder}: {page.name}, {page.stat().st_size >> 10} KiB{opened}")


def main() -> None:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--commits", type=int, default=2000)
    parser.add_argument("--lines", type=int, default=500)
    parser.add_argument("--folder", type=Path, help="keep everything here instead of in a temporary folder")
    options = parser.parse_args()
    if options.folder:
        options.folder.mkdir(parents=True)
        measure(options.folder.resolve(), options.commits, options.lines)
        return
    with tempfile.TemporaryDirectory() as scratch:
        measure(Path(scratch), options.commits, options.lines)


if __name__ == "__main__":
    main()
