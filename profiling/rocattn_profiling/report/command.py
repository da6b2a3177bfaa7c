"""``rocattn report``: measured records and the gate's verdict, or profiles, as HTML, Markdown, JSON or CSV."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn_profiling.base.console import add_common, emit_json, say
from rocattn_profiling.base.status import NOT_MEASURED, OK, CommandError
from rocattn_profiling.profile.report import command as report_profile
from rocattn_profiling.report.sources import find_records, find_verdict

if TYPE_CHECKING:
    import argparse

    from rocattn_profiling.gate.verdict import GateResult
    from rocattn_profiling.measure.records import Record

FILES = {"html": "index.html", "md": "report.md", "json": "report.json", "csv": "results.csv", "samples": "samples.csv"}


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_common(parser, out="out/report")
    parser.add_argument("--records", metavar="PATH", help="records.jsonl, or a folder of them (default OUT/../bench)")
    parser.add_argument("--gate", metavar="PATH", help="verdict.json of the gate, or its folder")
    parser.add_argument(
        "--format", action="extend", nargs="+", choices=FILES, metavar="FORMAT",
        help="html (one self-contained file), md (short, for a comment), json (with raw samples), csv (a row a "
        "measurement), samples (CSV, a row a sample); default html md json",
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
    gate = find_verdict(arguments.gate, out.parent / "gate", notes) if arguments.gate else None
    for note in notes:
        say(f"note: {note}")
    if not records and gate is None:
        remedy = "name a profiler's files, or a verdict with --gate, or run `rocattn bench` first"
        raise CommandError(f"nothing to report: no records and no verdict ({remedy})", NOT_MEASURED)
    made_ms = int(time.time() * 1000)
    written, texts = {}, {}
    for name in dict.fromkeys(arguments.format or ["html", "md", "json"]):
        if name in {"csv", "samples"} and not records:
            say(f"note: no {name}: there are no records")
            continue
        written[name] = out / FILES[name]
        texts[written[name]] = _text(name, records, gate, made_ms)
    write_together(texts)
    if arguments.json:
        emit_json({"files": {name: str(path) for name, path in written.items()}, "notes": notes})
    say(f"The report is at {next(iter(written.values()), out)}")
    return OK


def _text(name: str, records: list[Record], gate: GateResult | None, made_ms: int) -> str:
    import msgspec

    from rocattn_profiling.bench import report as bench_report
    from rocattn_profiling.report import frame, page

    if name in {"csv", "samples"}:
        made = frame.to_frame(records) if name == "csv" else frame.samples_frame(records)
        return str(made.to_csv(index=False))
    report = bench_report.build(records) if records else None
    if name == "html":
        return page.report_html(report, gate, made_ms)
    if name == "md":
        return page.report_markdown(report, gate)
    content = bench_report.to_json(report) if report else {"schema": bench_report.SCHEMA}
    content["gate"] = msgspec.to_builtins(gate)
    return msgspec.json.format(msgspec.json.encode(content), indent=1).decode() + "\n"
