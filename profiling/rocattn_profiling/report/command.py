"""``rocattn report``: measured records or profiles as HTML, Markdown, JSON or CSV."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn_profiling.base.console import add_common, emit_json, say
from rocattn_profiling.base.status import NOT_MEASURED, OK, CommandError
from rocattn_profiling.profile.report import command as report_profile

if TYPE_CHECKING:
    import pandas as pd

    from rocattn_profiling.bench.report import BenchReport
    from rocattn_profiling.measure.records import Record

RECORDS = "records.jsonl"
FILES = {"html": "index.html", "md": "report.md", "json": "report.json", "csv": "results.csv", "samples": "samples.csv"}
MARKDOWN_ROWS = 20
CONFIG_COLUMNS = (
    "batch", "num_heads", "num_kv_heads", "seq_q", "seq_k", "head_dim", "head_dim_v", "dtype", "layout", "causal",
    "direction",
)  # fmt: skip
CHECK_COLUMNS = ("ok", "max_abs_error", "max_rel_error", "rms_error", "naive_max_abs_error")


_EPILOG = """\
  rocattn report                                what rocattn bench measured
  rocattn report out/profile                    a profile: what bounds each kernel, and what to do about it
  rocattn report out/after --against out/before
                                                two profiles: what changed, and why

exit status: 0 the report is written
             3 there is nothing to report, or with --against nothing to compare
             4 usage or environment error, such as a file that cannot be read
             130 interrupted: an earlier report is left as it was"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, _EPILOG
    add_common(parser, out="out/report")
    parser.add_argument("--records", metavar="PATH", help="records.jsonl, or a folder of them (default OUT/../bench)")
    parser.add_argument(
        "--format", action="extend", nargs="+", choices=FILES, metavar="FORMAT",
        help="html (one self-contained file), md (short, for a comment), json (with raw samples), csv (one row per "
        "measurement), samples (CSV, one row per sample); default html md json",
    )  # fmt: skip
    report_profile.add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the report in every format asked for; status 3 when there is nothing to report."""
    from rocattn_profiling.base.files import write_together

    if arguments.paths:
        return report_profile.run(arguments)

    out = Path(arguments.out).resolve()
    notes: list[str] = []
    records = find_records(arguments.records, out.parent / "bench", notes)
    for note in notes:
        say(f"note: {note}")
    if not records:
        remedy = "name a profiler's files, or run `rocattn bench` first"
        raise CommandError(f"nothing to report: no records ({remedy})", NOT_MEASURED)
    made_ms = int(time.time() * 1000)
    written, texts = {}, {}
    for name in dict.fromkeys(arguments.format or ["html", "md", "json"]):
        written[name] = out / FILES[name]
        texts[written[name]] = _text(name, records, made_ms)
    write_together(texts)
    if arguments.json:
        emit_json({"files": {name: str(path) for name, path in written.items()}, "notes": notes})
    say(f"The report is at {next(iter(written.values()), out)}")
    return OK


def find_records(given: str | None, default: Path, notes: list[str]) -> list[Record]:
    """Return the records of a file, or of every record file below a folder.

    A folder without any is noted, not an error: an earlier step may have been skipped. A named file must be there.

    Raises:
        RocattnError: When a file cannot be read.
    """
    from rocattn_profiling.measure.records import read_records

    place = Path(given) if given else default
    if place.suffix in {".jsonl", ".json"} or place.is_file():
        return list(read_records(place))
    files = sorted(place.rglob(RECORDS)) if place.is_dir() else []
    if given and not files:
        notes.append(f"no {RECORDS} in {place}" if place.exists() else f"{place} does not exist")
    return [record for path in files for record in read_records(path)]


def _text(name: str, records: list[Record], made_ms: int) -> str:
    """Return the report in one format."""
    import msgspec

    from rocattn_profiling.bench import report as bench_report

    if name in {"csv", "samples"}:
        frame = to_frame(records) if name == "csv" else samples_frame(records)
        return str(frame.to_csv(index=False))
    report = bench_report.build(records)
    if name == "html":
        return report_html(report, made_ms)
    if name == "md":
        return report_markdown(report)
    content = bench_report.to_json(report)
    return msgspec.json.format(msgspec.json.encode(content), indent=1).decode() + "\n"


def report_html(report: BenchReport, made_ms: int) -> str:
    """Return the standalone report: one file, without links to other pages."""
    from rocattn_profiling.bench.report import prepare_templates
    from rocattn_profiling.pages.render import standalone

    prepare_templates()
    return standalone("bench.html.j2", "Bench report", made_ms, report=report, heading="Bench report")


def report_markdown(report: BenchReport, rows: int = MARKDOWN_ROWS) -> str:
    """Return Markdown short enough for a comment: at most ``rows`` rows a table, and how many were left out."""
    from rocattn_profiling.bench.report import BASELINE, prepare_templates
    from rocattn_profiling.pages.render import markdown_text

    prepare_templates()
    return markdown_text("report.md.j2", report=report, limit=rows, baseline=BASELINE)


def to_frame(records: Iterable[Record]) -> pd.DataFrame:
    """Return one row per measurement: the problem, the machine, `Summary`'s numbers (units in the names) and the check.

    A record of ``status`` "skipped" or "failed" has its reason in ``skipped`` and no numbers; ``undecided`` names the
    numbers that were measured and say nothing, each with its reason's code.
    """
    import msgspec
    import pandas as pd

    from rocattn_profiling.measure.stats import newest, summarize

    rows = []
    for record in newest(records):
        row = _identity(record)
        row |= {name: record.config.get(name) for name in CONFIG_COLUMNS}
        row |= {
            "machine": record.machine.name,
            "host": record.host,
            "commit": record.commit.sha if record.commit else "",
        }
        row |= {"dirty": bool(record.commit and record.commit.dirty), "threads": record.threads}
        if record.launches:
            summary = summarize(record)
            row |= msgspec.to_builtins(summary)
            row["undecided"] = "; ".join(f"{name}: {reason.code}" for name, reason in summary.undecided.items())
        check = msgspec.to_builtins(record.check) or {}
        row |= {f"check_{name}": check.get(name) for name in CHECK_COLUMNS}
        row |= {"peak_rss_bytes": record.peak_rss_bytes, "status": record.status, "skipped": record.skipped}
        rows.append(row)
    return pd.DataFrame(rows)


def samples_frame(records: Iterable[Record]) -> pd.DataFrame:
    """Return one row per sample: problem, machine, launch, sample, time_ns and, if recorded, cpu_ns."""
    import pandas as pd

    from rocattn_profiling.measure.stats import newest

    rows = [
        _identity(record)
        | {
            "machine": record.machine.name,
            "host": record.host,
            "launch": launch.pos,
            "sample": at,
            "time_ns": value,
            "cpu_ns": launch.cpu_ns[at] if at < len(launch.cpu_ns) else None,
        }
        for record in newest(records)
        for launch in record.launches
        for at, value in enumerate(launch.samples_ns)
    ]
    columns = ["suite", "backend", "label", "machine", "host", "launch", "sample", "time_ns", "cpu_ns"]
    return pd.DataFrame(rows, columns=columns)


def _identity(record: Record) -> dict[str, object]:
    return {"suite": record.suite, "backend": record.backend, "label": record.label}
