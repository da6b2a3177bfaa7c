"""What ``rocattn report PATH…`` prints: what changed, what bounds the kernels, and what to run next."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocattn_profiling.profile.report.compare import Pair
    from rocattn_profiling.profile.report.report import ProfileReport


def lines(report: ProfileReport, pairs: list[Pair] | None = None) -> list[str]:
    """Return the lines of a report on the terminal; never none.

    Args:
        report: What was made of the files.
        pairs: The comparison with an earlier profile.
    """
    from rocattn_profiling.base.markup import terminal
    from rocattn_profiling.profile.report.summary import changes, summarise

    summary = summarise(report)
    found = changes(report, pairs) if pairs is not None else []
    if summary.why_none:
        found.append(summary.why_none)
    found += [f"{line.who}: {line.text}{f' ({line.gain})' if line.gain else ''}" for line in summary.lines]
    found += [text for text in (summary.more, summary.runtime) if text]
    found += [f"also {text}" for text in summary.also]
    found += [f"next: {command}" for command in summary.commands]
    return [terminal(line, 1000) for line in found]
