"""Passes over a model's attention layers, added up from the records of its different layers."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from rocattn_profiling.measure.stats import newest, summarize

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocattn_profiling.measure.records import Record
    from rocattn_profiling.measure.stats import Summary

SUITE_PREFIX = "model-"
DISCLAIMER = "attention layers only: no projections, no feed-forward layers, no sampling; a whole model takes longer"


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """One pass over all attention layers of a model.

    Attributes:
        suite, backend: As in the records.
        step: Whether it is one decode step; else a whole prompt.
        length: Tokens of the prompt; of a step, tokens in the cache, the new one included.
        layers: Attention layers passed.
        p50_ns: Sum over layers of the median time: of a prompt, the time to first token.
        min_ns, p95_ns: Sums of each layer's fastest sample and 95th percentile.
        tokens_per_s: Of a prompt, prompt tokens; of steps, new tokens of one sequence.
        disturbed: Whether launches lost the CPU to other processes all the time.
    """

    suite: str
    backend: str
    step: bool
    length: int
    layers: int
    p50_ns: float
    min_ns: float
    p95_ns: float
    tokens_per_s: float
    disturbed: bool


def passes(records: Iterable[Record]) -> list[Pass]:
    """Return every pass whose layers were all measured, prompts first, by length and backend.

    A pass with a layer that was skipped (for its size, or because a backend failed) is left out: a sum without it
    would be too small.
    """
    groups: dict[tuple[str, bool, int, str], list[Record]] = defaultdict(list)
    for record in newest(records):
        if record.layers:
            seq_q, seq_k = record.config["seq_q"], record.config["seq_k"]
            groups[record.suite, seq_q < seq_k, seq_k, record.backend].append(record)
    whole: dict[str, int] = defaultdict(int)  # every pass of a model has all of its layers
    for (suite, *_), members in groups.items():
        whole[suite] = max(whole[suite], sum(record.layers for record in members))
    found = []
    for (suite, step, length, backend), members in sorted(groups.items()):
        measured = [(record.layers, summarize(record)) for record in members if record.launches and not record.skipped]
        layers = sum(count for count, _ in measured)
        if layers == whole[suite]:
            found.append(_pass(suite, backend, length, measured, step=step, layers=layers))
    return found


def _pass(
    suite: str, backend: str, length: int, measured: list[tuple[int, Summary]], *, step: bool, layers: int
) -> Pass:
    p50_ns = sum(count * summary.p50_ns for count, summary in measured)
    return Pass(
        suite=suite,
        backend=backend,
        step=step,
        length=length,
        layers=layers,
        p50_ns=p50_ns,
        min_ns=sum(count * summary.min_ns for count, summary in measured),
        p95_ns=sum(count * summary.p95_ns for count, summary in measured),
        tokens_per_s=(1 if step else length) * 1e9 / p50_ns,
        disturbed=any(summary.disturbed_launches for _, summary in measured),
    )
