"""``rocattn gate show`` and ``rocattn gate comment``: a stored verdict in another form."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn_profiling.base.console import print_utf8, say
from rocattn_profiling.base.status import NOT_MEASURED, OK, CommandError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from rocattn_profiling.gate.verdict import GateResult

FORMATS = ("text", "markdown", "junit", "sarif", "summary", "annotations", "json")
_RUN_URL = re.compile(r"https?://[A-Za-z0-9.-]+(:\d+)?/[A-Za-z0-9_./-]+")
_REMARK = (
    "Taken from the run's verdict: names and numbers only. Its reasons and explanations are in the run's own summary "
    "and files."
)


def prepare_show(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``show``."""
    parser.description = "Print a stored verdict, or write it to a file."
    parser.add_argument("verdict", metavar="VERDICT.json", help="of rocattn gate run, or the folder it is in")
    parser.add_argument(
        "--format", choices=FORMATS, default="text",
        help="markdown: a comment (below 64 kB); summary: the same for a step's summary (below 1 MiB); annotations: "
        "GitHub workflow commands (default text)",
    )  # fmt: skip
    parser.add_argument("--out", metavar="FILE", help="write it there instead of printing it")
    parser.add_argument("--exit-status", action="store_true", help="end with the verdict's status instead of 0")
    parser.add_argument("--strict", action="store_true", help="with --exit-status: 2 if anything is undecided")
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")


def run_show(arguments: argparse.Namespace) -> int:
    """Print or write a verdict; the status is 0, or the verdict's own if asked for."""
    from rocattn_profiling.gate import verdict

    path = Path(arguments.verdict)
    result = verdict.read(path / verdict.FILE if path.is_dir() else path)
    text = _form(arguments.format)(result)
    if arguments.format == "text" and arguments.out in {None, "-"}:
        print(text, end="")
    else:
        _give(text, arguments.out)
    if not arguments.exit_status:
        return OK
    return result.strict_status if arguments.strict else result.status


def _form(name: str) -> Callable[[GateResult], str]:
    from rocattn_profiling.gate import verdict
    from rocattn_profiling.gate.formats import junit, markdown, outputs, render, sarif

    return {
        "text": render.text, "markdown": markdown.comment, "junit": junit.to_xml, "sarif": sarif.to_sarif,
        "summary": markdown.summary, "annotations": outputs.workflow_commands, "json": verdict.to_json,
    }[name]  # fmt: skip


def prepare_comment(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``comment``."""
    parser.description = (
        "Print the comment for a pull request from a verdict that foreign code may have written: its numbers and names "
        "are taken, nothing else, and the conclusion is drawn anew. Without a readable verdict the comment says that "
        "nothing was measured, and the status is 3."
    )
    parser.add_argument("verdict", metavar="VERDICT.json", help="the untrusted verdict")
    parser.add_argument("--out", metavar="FILE", help="write the comment there instead of printing it")
    parser.add_argument("--run-url", default="", metavar="URL", help="address of the workflow's run, to link to")
    parser.add_argument(
        "--explain", action="store_true",
        help="also show reasons and explanations: text of the verdict's, harmless as markup but not checked by anyone",
    )  # fmt: skip


def run_comment(arguments: argparse.Namespace) -> int:
    """Print or write the comment; 3 when there is no verdict to show."""
    if arguments.run_url and not _RUN_URL.fullmatch(arguments.run_url):
        raise CommandError("--run-url must be a plain address, as in https://github.com/owner/project/actions/runs/1")
    from rocattn_profiling.gate.formats import markdown, untrusted

    try:
        result = untrusted.read(Path(arguments.verdict), explain=arguments.explain)
    except untrusted.UntrustedError as error:
        _give(markdown.unreadable(arguments.run_url), arguments.out)
        say(f"rocattn gate comment: {error}")
        return NOT_MEASURED
    remark = "" if arguments.explain else _REMARK
    _give(markdown.comment(result, run_url=arguments.run_url, remark=remark), arguments.out)
    return OK


def _give(text: str, out: str | None) -> None:
    if out is None or out == "-":
        print_utf8(text)
        return
    from rocattn_profiling.base.files import write_text

    say(f"written: {write_text(Path(out), text)}")
