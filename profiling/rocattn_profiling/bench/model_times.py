"""Passes over a model's attention layers, added up from the records of its different layers."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from rocattn_profiling.measure.records import by_place, place_names
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
        machine: Where, if the records are of several places (`places.place_names`); else "".
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
    machine: str = ""


def passes(records: Iterable[Record]) -> list[Pass]:
    """Return every pass whose layers were all measured in one place: by place, prompts first, by length and backend.

    A pass with a layer that was skipped (for its size, or because a backend failed) is left out: a sum without it
    would be too small. Times of two machines are never added up.
    """
    groups: dict[tuple[str, str, bool, int, str], list[Record]] = defaultdict(list)
    places = by_place(record for record in newest(records) if record.layers)
    names = place_names(places) if len(places) > 1 else dict.fromkeys(places, "")
    for place, of_place in places.items():
        for record in of_place:
            seq_q, seq_k = record.config["seq_q"], record.config["seq_k"]
            groups[names[place], record.suite, seq_q < seq_k, seq_k, record.backend].append(record)
    layers_of: dict[tuple[str, bool, int], dict[str, int]] = defaultdict(dict)
    for (_, suite, step, length, _), members in groups.items():
        layers_of[suite, step, length] |= {record.label: record.layers for record in members}
    whole: dict[str, int] = defaultdict(int)  # every pass of a model has all of its layers, wherever they were measured
    for (suite, *_), of_pass in layers_of.items():
        whole[suite] = max(whole[suite], sum(of_pass.values()))
    found = []
    for (machine, suite, step, length, backend), members in sorted(groups.items()):
        measured = [(record.layers, summarize(record)) for record in members if record.launches and not record.skipped]
        layers = sum(count for count, _ in measured)
        if layers == whole[suite]:
            made = _pass(suite, backend, length, measured, step=step, layers=layers)
            found.append(msgspec.structs.replace(made, machine=machine))
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
