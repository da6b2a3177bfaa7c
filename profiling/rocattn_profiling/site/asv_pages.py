"""asv's pages, published by asv from a cleaned copy of the store; they load their scripts from CDNs.

Our pages link to them before they exist: until then, or if there are none, a placeholder page says so.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rocattn
from rocattn.errors import RocattnError, complaint
from rocattn_profiling.asv.series import LARGEST, PassedOver
from rocattn_profiling.asv.store import NO_NUMPY, read_config, up_to_date
from rocattn_profiling.base.files import StagedFiles, open_regular, write_together
from rocattn_profiling.base.process import run_group
from rocattn_profiling.pages.render import count, moment, render
from rocattn_profiling.site.commits import History

if TYPE_CHECKING:
    from rocattn_profiling.asv.store import AsvStore

PUBLISH_TIMEOUT_S = 900.0
MADE = "graphdisplay.js"
"""A file that every asv site has, even one without graphs."""
RECORD = "rocattn.json"
"""A file next to asv's: what the pages were made from, and what is missing from them."""
RESULTS_VERSION = 2
COLUMNS = {"result", "params", "version", "started_at", "duration", "samples", "profile"}
"""Columns of asv's result files, apart from statistics."""
SHOWN = {"result", "params", "version", "stats_ci_99_a", "stats_ci_99_b"}
"""Columns that ``asv publish`` uses; it reads every file more than once, so the copy has only these."""
_PLAIN_NAME = re.compile(r"[\w.][\w.+/-]*")
_BODY_START = "<body>"
_NAV_START = '<ul class="nav navbar-nav navbar-left">'


@dataclass(slots=True)
class AsvPages:
    """The outcome for asv's pages.

    Attributes:
        published: Whether they exist or will; otherwise ``reason`` says why not.
        notes: One line for each omission.
    """

    published: bool = False
    reason: str = ""
    notes: list[str] = field(default_factory=list)


def publish(store: AsvStore, history: History, out: Path, say: Callable[[str], None] = lambda _: None) -> AsvPages:
    """Publish a store with ``asv publish``; keep earlier pages if new ones would be the same.

    Args:
        store: The results; not modified.
        history: The repository's commits; the graphs follow its branch, whatever ``asv.conf.json`` lists.
        out: Folder of the pages (``site/asv``), replaced as a whole.
        say: Called with one line about what is done.

    Raises:
        RocattnError: A folder cannot be written, or ``out`` contains files that are not asv's. A failure of asv is not
            an error: ``reason`` describes it, also on the placeholder page.
    """
    key = _key(store, history)
    if _is_made(out) and (notes := _notes_of(out, key)) is not None:
        say("asv's pages are kept from an earlier run: no result, setting, commit or tag on them has changed")
        return AsvPages(published=True, notes=notes)
    say(f"site: our pages are written; asv's follow, and asv publish may take up to {PUBLISH_TIMEOUT_S:.0f} s")
    pages = AsvPages()
    with StagedFiles() as staging:
        staged = staging.folder(out)
        try:
            with tempfile.TemporaryDirectory(prefix="rocattn-asv-") as scratch:
                _publish(store, history, Path(scratch), pages)
                if not pages.reason:
                    _link_back(Path(scratch) / "html/index.html", _project(store), left_out=bool(pages.notes))
                    shutil.copytree(Path(scratch) / "html", staged, dirs_exist_ok=True)
                    (staged / RECORD).write_text(json.dumps({"key": key, "left out": pages.notes}, indent=1))
        except OSError as error:
            # copytree collects a (source, target, reason) for every file: the first is enough.
            reason = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror or error
            raise RocattnError(f"cannot write asv's pages to {out}: {reason}") from error
        pages.published = not pages.reason
        if pages.reason:
            _write_instead(staged, pages.reason, store)
        staging.commit()
    return pages


def hold_place(store: AsvStore, out: Path, staging: StagedFiles) -> None:
    """Stage a placeholder page for links to asv's pages until `publish` is done, unless there are earlier pages.

    Raises:
        RocattnError: See `publish`.
    """
    if not _is_made(out):
        _write_instead(staging.folder(out), "asv publish is not done yet", store)


def remove(out: Path) -> None:
    """Remove the files of `publish` or `hold_place`, which nothing links to; any other folder stays."""
    if (out / RECORD).is_file():
        old = out.with_name(f".{out.name}.old")  # in one step: a half-removed folder would not be recognized as ours
        shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(out.rename(old), ignore_errors=True)


def _is_made(out: Path) -> bool:
    """Return whether the folder contains asv's pages, or our placeholder page.

    Raises:
        RocattnError: It contains something else.
    """
    made = (out / MADE).is_file() or (out / RECORD).is_file()
    if not made and out.is_dir() and any(out.iterdir()):
        raise RocattnError(f"{out} exists and was not made by asv publish: choose another output folder")
    return made


def _notes_of(out: Path, key: str) -> list[str] | None:
    """Return what is missing from the pages made from ``key``; None if the folder's pages were not."""
    try:
        record = json.loads((out / RECORD).read_text())
        return [*record["left out"]] if record["key"] == key and (out / MADE).is_file() else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _key(store: AsvStore, history: History) -> str:
    """Return a hash of everything that the pages are made from: results, settings, programs, and commit order."""
    results = sorted(path for pattern in ("benchmarks.json*", "*/*.json") for path in store.results_dir.glob(pattern))
    starts = {path.name.partition("-")[0] for path in results}
    lengths = {len(start) for start in starts}
    shown = [
        (commit.sha, commit.order, commit.on_branch) for commit in history.commits.values()
        if any(commit.sha[:length] in starts for length in lengths)
    ]  # fmt: skip
    tags = [(name, sha, history.commits[sha].order) for name, sha in history.tags]
    digest = hashlib.sha256(json.dumps([version("asv"), _project(store), history.branch, shown, tags]).encode())
    for path in (Path(__file__), *filter(None, [store.config_path]), *results):
        digest.update(f"\0{path.parent.name}/{path.name}\0".encode("utf-8", "surrogateescape"))
        with suppress(OSError), open_regular(path) as file:  # unreadable files are not on the pages
            digest.update(hashlib.sha256(file.read()).digest())
    return digest.hexdigest()


def _project(store: AsvStore) -> str:
    return store.project or store.repo_root.name


def _write_instead(folder: Path, reason: str, store: AsvStore) -> None:
    """Write the placeholder for asv's pages."""
    common = {"project": _project(store), "version": rocattn.__version__, "made": moment(int(time.time() * 1000))}
    links = [{"href": "index.html", "text": "Overview"}]
    page = render(
        "asv.html.j2",
        "asv's pages",
        root="../",
        here="asv/index.html",
        links=links,
        feed=False,
        reason=reason,
        **common,
    )
    write_together({folder / "index.html": page, folder / RECORD: json.dumps({"why there are none": reason})})


def _publish(store: AsvStore, history: History, scratch: Path, pages: AsvPages) -> None:
    """Make asv's pages in ``scratch/html``, or set ``pages.reason``."""
    staged = stage(store, scratch / "results", history.commits.keys())
    pages.notes += staged.notes
    if not staged.results:
        pages.reason = "the store has no result for any commit of this repository"
        return
    if not store.benchmarks():
        pages.reason = (
            "the store has no benchmarks.json, without which asv shows nothing "
            "(`asv run --bench just-discover` writes it)"
        )
        return
    if off_branch := sum(not history.commits[sha].on_branch for sha in staged.commits):
        pages.notes.append(f"{count(off_branch, 'measured commit')} not on {history.branch}: left out of asv's graphs")
    # A branch whose name could be interpreted as markup or as an option is published as HEAD.
    branch = history.branch if _PLAIN_NAME.fullmatch(history.branch) else "HEAD"
    pages.reason = _run_publish(_config(store, branch, scratch), scratch)
    if not pages.reason and (odd := _drop_odd_tags(scratch / "html" / "index.json")):
        pages.notes.append(f"{count(odd, 'tag')} not shown: asv would put such names into its pages as markup")


def _drop_odd_tags(index: Path) -> int:
    """Remove tags whose names asv's script would insert into the page as markup; return how many."""
    data = json.loads(index.read_text(encoding="utf-8"))
    tags = data.get("tags", {})
    plain = {name: at for name, at in tags.items() if _PLAIN_NAME.fullmatch(name)}
    if len(plain) < len(tags):
        data["tags"] = plain
        index.write_text(json.dumps(data), encoding="utf-8")
    return len(tags) - len(plain)


def _config(store: AsvStore, branch: str, scratch: Path) -> Path:
    """Write asv's configuration for this build: the repository's, with our paths and its current branch."""
    path, repo_root = store.config_path, store.repo_root
    conf = dict(vars(read_config(path))) if path else {"project": repo_root.name}
    beside = path.parent if path else repo_root
    conf |= {
        "version": 1,
        "repo": str(repo_root),
        "branches": [branch],
        "results_dir": str(scratch / "results"),
        "html_dir": str(scratch / "html"),
        "benchmark_dir": str(beside / str(conf.get("benchmark_dir", "benchmarks"))),
        "env_dir": str(scratch / "env"),
    }
    written = scratch / "asv.conf.json"
    written.write_text(json.dumps({k: v for k, v in conf.items() if v is not None}))
    return written


def _run_publish(config: Path, scratch: Path) -> str:
    """Run ``asv publish``; return why it failed, in one line, or "".

    It runs in a separate process because asv's step detection, in C++, never ends on some input.
    """
    command = [sys.executable, "-m", "asv", "publish", "--no-pull", "--config", str(config)]
    log = scratch / "printed"
    with log.open("wb") as printed:
        ended = run_group(
            command,
            env=os.environ,
            cwd=scratch,
            stdout=printed,
            stderr=printed,
            timeout_s=PUBLISH_TIMEOUT_S,
            grace_s=0.0,
        )
    if ended.status is None:
        return f"asv publish did not end within {PUBLISH_TIMEOUT_S:.0f} s: run it yourself, without that limit"
    if ended.status == 0 and (scratch / "html" / "index.html").is_file():
        return ""
    why = complaint(log.read_text(encoding="utf-8", errors="replace"), "it said nothing")
    return f"asv publish failed ({ended.how}): {why}"


def _link_back(index: Path, project: str, *, left_out: bool) -> None:
    """Add links to our pages and to the omissions, and a note that asv's pages need JavaScript."""
    page = index.read_text(encoding="utf-8")
    own = f'<a href="../index.html">{{}}{escape(project)}{{}}</a>'
    items = f"<li>{own.format('&larr; ', '')}</li>" + f'<li><a href="{RECORD}">left out</a></li>' * left_out
    page = page.replace(_NAV_START, f"{_NAV_START}\n      {items}", 1)
    without = f"asv's pages need JavaScript, which is off. {own.format('', ' without scripts')} shows the same results."
    hide = "<style>body > :not(noscript) { display: none !important; }</style>"  # overlapping empty frames
    note = f'<noscript>{hide}<p style="margin: 20px">{without}</p></noscript>'
    page = page.replace(_BODY_START, f"{_BODY_START}\n    {note}", 1)
    index.write_text(page, encoding="utf-8")


@dataclass(slots=True)
class Staged:
    """Contents of a staged copy.

    Attributes:
        results: Number of result files copied.
        commits: Their commits.
        notes: One line for each omission or change.
    """

    results: int = 0
    commits: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def stage(store: AsvStore, folder: Path, known: Collection[str]) -> Staged:
    """Copy a store for ``asv publish``; the original is not modified.

    Infinite and huge values become n/a (they hang asv's step detection), containers become failures (they crash it),
    benchmarks that ``asv run`` dropped from the list are added back, and an interpreter's path becomes "existing".
    Samples and start times, which no page shows, are left out.

    Args:
        store: The store to copy.
        folder: The destination; created if missing.
        known: Commits in the repository. asv fails on others (rebased away, or beyond a shallow clone).
    """
    staged = Staged()
    benchmarks = {k: _plain(v) for k, v in store.benchmarks(staged.notes.append).items() if _well_formed(k, v)}
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "benchmarks.json", {**benchmarks, "version": 2})
    unknown: set[str] = set()
    passed_over = PassedOver()
    machines = store.machines()
    for path in store.result_files(staged.notes.append):
        try:
            data = up_to_date(json.loads(path.read_bytes()))
            _check(data)
            if data["commit_hash"] not in known:
                unknown.add(data["commit_hash"])
                continue
            changed = _clean(data, benchmarks)
        except (RocattnError, OSError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            passed_over.add(path, error)
            continue
        if changed:
            staged.notes.append(f"{path.name}: {count(changed, 'value')} that asv cannot show left out")
        machine = folder / path.parent.name / "machine.json"
        if not machine.exists():
            facts = machines.get(path.parent.name, {})
            _write(machine, {**facts, "machine": path.parent.name, "version": 1})
        _write(folder / path.parent.name / path.name, data)
        staged.results += 1
        staged.commits.add(data["commit_hash"])
    staged.notes += passed_over.notes()
    if unknown:
        staged.notes.append(f"{count(len(unknown), 'measured commit')} not in this clone: left out of asv's graphs")
    return staged


def _check(data: dict[str, Any]) -> None:
    """Check the assumptions of asv's reader, without reading the file again.

    Raises:
        ValueError: asv would fail on the file.
        KeyError: The same.
    """
    for key in ("params", "requirements", "commit_hash", "date", "python", "env_name"):
        data[key]
    if data.get("version") != RESULTS_VERSION:
        raise ValueError(f"it has version {data.get('version')!r} of asv's result format, not {RESULTS_VERSION}")
    columns = data["result_columns"]
    unknown = {column for column in columns if not column.startswith("stats_")} - COLUMNS
    if unknown:
        raise ValueError(f"asv does not know its column {min(unknown)!r}")
    statistics = [at for at, column in enumerate(columns) if column.startswith("stats_")]
    for name, row in data["results"].items():
        lengths = {len(row[at]) for at in statistics if at < len(row) and row[at] is not None}
        if len(lengths) > 1:
            raise ValueError(f"the statistics of {name} differ in length")


def _well_formed(name: str, benchmark: dict[str, Any]) -> bool:
    """Return whether asv's pages can show a benchmark: no markup in names, and parameters are lists of strings."""
    params, names = benchmark.get("params", []), benchmark.get("param_names", [])
    return (
        not set(name) & set("<>\"'&")
        and isinstance(params, list)
        and isinstance(names, list)
        and len(params) == len(names)
        and all(isinstance(p, list) and all(isinstance(v, str) for v in p) for p in params)
        and not any("<" in str(name) for name in names)
    )


def _plain(benchmark: dict[str, Any]) -> dict[str, Any]:
    """Drop a pretty name or unit that asv's scripts would insert into a page as markup."""
    odd = {key for key in ("pretty_name", "unit") if "<" in str(benchmark.get(key) or "")}
    plain = {key: value for key, value in benchmark.items() if key not in odd}
    return plain | ({"unit": "unit"} if "unit" in odd else {})


def _clean(data: dict[str, Any], benchmarks: dict[str, dict[str, Any]]) -> int:
    """Clean and shorten one result file in place; returns how many values were replaced or dropped."""
    changed = 0
    params = data["params"]
    if "/" in str(params.get("python", "")):
        params["python"] = "existing"
    if str(data["env_name"]).endswith(NO_NUMPY):
        data["env_name"] = data["env_name"].removesuffix(NO_NUMPY)
        for table in (params, data["requirements"]):
            table.pop("numpy", None)
    columns = data["result_columns"]
    at_result, at_params = columns.index("result"), columns.index("params")
    kept = [at for at, column in enumerate(columns) if column in SHOWN]
    for name in list(data["results"]):
        row = data["results"][name]
        values = row[at_result]
        own = row[at_params] if len(row) > at_params else []
        expected = len(list(itertools.product(*(own or []))))
        if name not in benchmarks or (values is not None and len(values) != expected):
            changed += name in benchmarks
            del data["results"][name]
            continue
        for at, value in enumerate(values or []):
            if isinstance(value, (dict, list, str, bool)):
                values[at], changed = None, changed + 1
            elif value is not None and abs(value) > LARGEST:
                values[at], changed = math.nan, changed + 1
        data["results"][name] = [row[at] for at in kept if at < len(row)]
    data["result_columns"] = [columns[at] for at in kept]
    return changed


def _write(path: Path, data: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")
