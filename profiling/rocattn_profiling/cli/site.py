"""``rocattn site``: the history website, asv's pages beside our own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rocattn_profiling.cli.console import add_common, emit_json, say
from rocattn_profiling.cli.sources import find_records, find_verdict
from rocattn_profiling.cli.status import NOT_MEASURED, OK, CommandError

if TYPE_CHECKING:
    import argparse


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_common(parser, out="out/site")
    parser.add_argument("--repo", default=".", metavar="DIR", help="the repository whose history it is (default .)")
    parser.add_argument("--store", metavar="DIR", help="asv results folder (default: the one asv.conf.json names)")
    parser.add_argument("--records", metavar="PATH", help="bench records to show as the latest (default OUT/../bench)")
    parser.add_argument("--gate", metavar="PATH", help="verdict.json of the gate (default OUT/../gate)")
    parser.add_argument("--offline", action="store_true", help="do not fetch the scripts of asv's pages; use the cache")
    parser.add_argument("--open", action="store_true", help="open the front page in a browser")


def run(arguments: argparse.Namespace) -> int:
    """Write the site; status 3 when there is nothing to publish."""
    from rocattn_profiling.measure.asv_store import AsvStore
    from rocattn_profiling.report import asv_pages, bench_report
    from rocattn_profiling.report.commits import read_history
    from rocattn_profiling.report.pages import Site, write_site

    out = Path(arguments.out).resolve()
    notes: list[str] = []
    history = read_history(Path(arguments.repo).resolve())
    store = AsvStore(Path(arguments.repo), Path(arguments.store) if arguments.store else None)
    series = store.read(notes.append)
    records = find_records(arguments.records, out.parent / "bench", notes)
    gate = find_verdict(arguments.gate, out.parent / "gate", notes)
    if not series and not records and gate is None:
        raise CommandError(
            f"nothing to publish: {store.results_dir} has no results, and there are no records or verdict beside {out} "
            "(run `rocattn bench` or `asv run` first)",
            NOT_MEASURED,
        )
    asv = asv_pages.publish(store, history, out / "asv", offline=arguments.offline)
    report = bench_report.build(records) if records else None
    asv.notes = [note for note in asv.notes if note not in notes]
    site = Site(series, history, store.machines(), report, gate, asv, notes)
    written = write_site(out, site)
    for note in [*notes, *asv.notes]:
        say(f"note: {note}")
    if not asv.published:
        say(f"note: asv's pages were not made: {asv.reason}")
    elif not asv.vendored:
        say(f"note: asv's pages keep their CDN links, and need a network: {asv.vendor_reason}")
    if arguments.json:
        emit_json({"index": str(written[0]), "pages": [str(p) for p in written], "asv": asv, "notes": notes})
    if arguments.open:
        import webbrowser

        webbrowser.open(written[0].as_uri())
    say(f"The site is at {written[0]}")
    return OK
