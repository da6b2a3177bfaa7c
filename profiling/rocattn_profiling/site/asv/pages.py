"""asv's own pages beside ours: published from a clean copy of the store, with their scripts brought along."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn.complaint import complaint
from rocattn.errors import RocattnError
from rocattn_profiling.asv.store import read_config
from rocattn_profiling.base.files import Staging
from rocattn_profiling.site.asv.publish import STEP_POINTS
from rocattn_profiling.site.asv.stage import stage
from rocattn_profiling.site.asv.vendor import VendorError, assets, localise

if TYPE_CHECKING:
    from rocattn_profiling.asv.store import AsvStore
    from rocattn_profiling.site.commits import History

PUBLISH_TIMEOUT_S = 300.0
DATA_LIMIT_BYTES = 24 << 20
MADE = "graphdisplay.js"
"""A file of every site of asv's, also of one without a graph."""
_PLAIN_NAME = re.compile(r"[\w.][\w.+/-]*")
_HEAD_END = "</head>"
_NAV_START = '<ul class="nav navbar-nav navbar-left">'
_AFTER_JQUERY = '<script language="javascript" type="text/javascript" src="jquery.flot.axislabels.js">'
_SERVE_FROM_DATA = """(function ($, files) {
  var ajax = $.ajax;
  $.ajax = function (request) {
    var name = decodeURIComponent(String(request.url).split('?')[0]);
    if (Object.prototype.hasOwnProperty.call(files, name)) {
      var answer = $.Deferred();
      // Later, as a server would: asv's pages register themselves after the first request.
      setTimeout(function () { answer.resolve(JSON.parse(JSON.stringify(files[name]))); }, 0);
      return answer.promise();
    }
    return ajax.apply(this, arguments);
  };
})(jQuery, window.ASV_FILES);
"""


@dataclass(slots=True)
class AsvPages:
    """What became of asv's pages.

    Attributes:
        published: Whether they are there; ``reason`` says why not.
        vendored: Whether their scripts lie beside them; ``vendor_reason`` says why not.
        from_disk: Whether they open without a web server.
        notes: One line for each thing that was left out.
    """

    published: bool = False
    reason: str = ""
    vendored: bool = False
    vendor_reason: str = ""
    from_disk: bool = False
    notes: list[str] = field(default_factory=list)


def publish(
    store: AsvStore,
    history: History,
    out: Path,
    *,
    offline: bool = False,
    cache: Path | None = None,
    staged: Path | None = None,
) -> AsvPages:
    """Publish a store with ``asv publish`` into ``out``, replacing what is there only when it worked.

    Args:
        store: The results; left as they are.
        history: The repository's commits; the graphs follow its branch whatever ``asv.conf.json`` lists.
        out: Folder of the pages (``site/asv``).
        offline: Take scripts from the cache only.
        cache: Folder of checked scripts; the user's cache folder if None.
        staged: An empty folder to leave the pages in, for the caller to put in the place of ``out``.

    Raises:
        RocattnError: When a folder does not take files, or ``out`` holds somebody else's. That asv fails is no error:
            ``reason`` says why.
    """
    if staged is None:
        with Staging() as staging:
            staged = staging.folder(out)
            pages = publish(store, history, out, offline=offline, cache=cache, staged=staged)
            if pages.published:
                staging.commit()
        return pages
    pages = AsvPages()
    if out.exists() and not (out / MADE).is_file() and any(out.iterdir()):
        raise RocattnError(f"{out} is there and was not made by asv publish: choose another output folder")
    try:
        with tempfile.TemporaryDirectory(prefix="rocattn-asv-") as scratch:
            _publish(store, history, Path(scratch), pages)
            if not pages.reason:
                _finish(Path(scratch) / "html", pages, offline=offline, cache=cache)
                shutil.copytree(Path(scratch) / "html", staged, dirs_exist_ok=True)
    except OSError as error:
        # copytree raises one error with the (source, target, reason) of every file: one says enough.
        reason = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror or error
        raise RocattnError(f"cannot write asv's pages to {out}: {reason}") from error
    pages.published = not pages.reason
    return pages


def _publish(store: AsvStore, history: History, scratch: Path, pages: AsvPages) -> None:
    """Make asv's pages in ``scratch/html``, or give the reason why not."""
    staged = stage(store, scratch / "results", history.commits.keys())
    pages.notes += staged.notes
    if not staged.results:
        pages.reason = "the store has no result of a commit of this repository"
        return
    if not store.benchmarks():
        pages.reason = (
            "the store has no benchmarks.json, without which asv shows nothing "
            "(`asv run --bench just-discover` writes it)"
        )
        return
    if off_branch := sum(not history.commits[sha].on_branch for sha in staged.commits):
        pages.notes.append(f"{off_branch} measured commits are not on {history.branch}: asv's graphs leave them out")
    if len(staged.commits) > STEP_POINTS:
        pages.notes.append(f"asv's own lists of regressions are about the newest {STEP_POINTS} results of each line")
    # Anyone names branches: one that could be markup or an option is published as what is checked out.
    branch = history.branch if _PLAIN_NAME.fullmatch(history.branch) else "HEAD"
    pages.reason = _run_publish(_config(store, branch, scratch), scratch)
    if not pages.reason and (odd := _drop_odd_tags(scratch / "html" / "index.json")):
        pages.notes.append(f"{odd} tags are not shown: asv puts their names into its pages as markup")


def _drop_odd_tags(index: Path) -> int:
    """Take tags out of asv's index whose names its script would write into the page as markup; returns how many."""
    data = json.loads(index.read_text(encoding="utf-8"))
    tags = data.get("tags", {})
    plain = {name: at for name, at in tags.items() if _PLAIN_NAME.fullmatch(name)}
    if len(plain) < len(tags):
        data["tags"] = plain
        index.write_text(json.dumps(data), encoding="utf-8")
    return len(tags) - len(plain)


def _config(store: AsvStore, branch: str, scratch: Path) -> Path:
    """Write asv's configuration for this build: the repository's own, with our copy, our output and its branch."""
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
    made = scratch / "asv.conf.json"
    made.write_text(json.dumps({k: v for k, v in conf.items() if v is not None}))
    return made


def _run_publish(config: Path, scratch: Path) -> str:
    """Run ``asv publish``; returns why it failed, in one line, or nothing.

    A process of its own: step detection runs in C++ and loops for ever on input it cannot take.
    """
    command = [sys.executable, "-m", "rocattn_profiling.site.asv.publish", str(config)]
    try:
        done = subprocess.run(
            command,
            cwd=scratch,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PUBLISH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"asv publish did not end within {PUBLISH_TIMEOUT_S:.0f} s: run it yourself, where nothing ends it"
    if done.returncode == 0 and (scratch / "html" / "index.html").is_file():
        return ""
    why = complaint(done.stdout + "\n" + done.stderr, "it said nothing")
    return f"asv publish failed (status {done.returncode}): {why}"


def _finish(html: Path, pages: AsvPages, *, offline: bool, cache: Path | None) -> None:
    """Bring scripts and data along, and link back to our pages."""
    index = html / "index.html"
    page = index.read_text(encoding="utf-8")
    local, unknown = localise(page)
    try:
        files = assets(offline=offline, cache=cache)
    except VendorError as error:
        pages.vendor_reason = str(error)
    else:
        if unknown:
            pages.vendor_reason = f"this asv loads {unknown[0]}, for which no file is known"
        else:
            for name, data in files.items():
                (html / "vendor" / name).parent.mkdir(parents=True, exist_ok=True)
                (html / "vendor" / name).write_bytes(data)
            page, pages.vendored = local, True
    if pages.vendored and _AFTER_JQUERY in page:
        pages.from_disk = _write_data(html)
    if pages.from_disk:
        page = page.replace(_AFTER_JQUERY, f'<script src="vendor/data.js"></script>\n    {_AFTER_JQUERY}', 1)
    if not pages.vendored:
        note = "<noscript>These pages need scripts from CDNs, which could not be brought along.</noscript>"
        page = page.replace(_HEAD_END, f"{_HEAD_END}{note}", 1)
    back = '<li><a href="../index.html">&larr; rocattn</a></li>'
    index.write_text(page.replace(_NAV_START, f"{_NAV_START}\n      {back}", 1), encoding="utf-8")


def _write_data(html: Path) -> bool:
    """Put all of asv's JSON into one script: browsers let a page from disk load scripts, not JSON."""
    files = {str(p.relative_to(html)): p for p in sorted(html.rglob("*.json"))}
    if sum(path.stat().st_size for path in files.values()) > DATA_LIMIT_BYTES:
        return False
    table = ",\n".join(f"{json.dumps(name)}: {path.read_text(encoding='utf-8')}" for name, path in files.items())
    script = f"window.ASV_FILES = {{\n{table}\n}};\n{_SERVE_FROM_DATA}"
    (html / "vendor" / "data.js").write_text(script, encoding="utf-8")
    return True
