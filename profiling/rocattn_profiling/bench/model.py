"""Add up a model's passes from its layers' records: time to first token and decoding speed, in tables and charts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from rocattn_profiling.base.console import print_table, say
from rocattn_profiling.bench.view import count, duration
from rocattn_profiling.measure.records import by_place, place_names
from rocattn_profiling.measure.stats import newest, summarize
from rocattn_profiling.pages.charts import Chart, ChartLine, ChartPoint, colour_of, line_chart
from rocattn_profiling.pages.quantities import digits, quantity

if TYPE_CHECKING:
    from rocattn_profiling.measure.records import Record
    from rocattn_profiling.measure.stats import Summary


SUITE_PREFIX = "model-"
DISCLAIMER = "attention layers only: no projections, no feed-forward layers, no sampling; a whole model takes longer"


class ModelPass(msgspec.Struct, frozen=True, kw_only=True):
    """One pass over all attention layers of a model.

    Attributes:
        suite, backend: As in the records.
        step: True for a decode step, False for a whole prompt.
        length: Tokens of the prompt; for a step, tokens in the cache, including the new one.
        layers: Attention layers passed.
        p50_ns: Sum over layers of the median time; for a prompt, the time to first token.
        min_ns, p95_ns: Sums of each layer's fastest sample and 95th percentile.
        tokens_per_s: Prompt tokens for a prompt; new tokens of one sequence for steps.
        disturbed: Whether launches constantly lost the CPU to other processes.
        machine: The place, if the records are from several places (`records.place_names`); else "".
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


def passes(records: Iterable[Record]) -> list[ModelPass]:
    """Return the passes with all layers measured in one place, sorted by place, prompts first, length and backend.

    A pass with a skipped layer (too large, or its backend failed) is left out, since its sum would be too small.
    Times from different machines are never added up.
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
    whole: dict[str, int] = defaultdict(int)  # every pass has all layers of the model, wherever they were measured
    for (suite, *_), of_pass in layers_of.items():
        whole[suite] = max(whole[suite], sum(of_pass.values()))
    complete = []
    for (machine, suite, step, length, backend), members in sorted(groups.items()):
        measured = [(record.layers, summarize(record)) for record in members if record.launches and not record.skipped]
        layers = sum(count for count, _ in measured)
        if layers == whole[suite]:
            whole_pass = _pass(suite, backend, length, measured, step=step, layers=layers)
            complete.append(msgspec.structs.replace(whole_pass, machine=machine))
    return complete


def _pass(
    suite: str, backend: str, length: int, measured: list[tuple[int, Summary]], *, step: bool, layers: int
) -> ModelPass:
    p50_ns = sum(count * summary.p50_ns for count, summary in measured)
    return ModelPass(
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


def print_passes(records: Sequence[Record]) -> dict[str, Any]:
    """Print the passes as tables, and return them as JSON-ready values."""
    complete = passes(records)
    backends = list(dict.fromkeys(record.backend for record in records))
    for step, title in ((False, "time to first token"), (True, "decoding, tokens/s of one sequence")):
        for machine in dict.fromkeys(each.machine for each in complete):
            chosen = [each for each in complete if each.step == step and each.machine == machine]
            by_length = {each.length: {} for each in chosen}  # type: dict[int, dict[str, str]]
            for each in chosen:
                text = count(each.tokens_per_s) if step else duration(each.p50_ns)
                by_length[each.length][each.backend] = text + (" !" if each.disturbed else "")
            rows = [(str(n), *(by.get(name, "not all layers") for name in backends)) for n, by in by_length.items()]
            if rows:
                where = f" on {machine}" if machine else ""
                print_table(f"{title}, {chosen[0].layers} attention layers{where}", ("tokens", *backends), rows)
    if not complete:
        say("no length has all of the model's layers measured: see what was skipped")
    say(DISCLAIMER)
    return {"model": {"note": DISCLAIMER, "passes": msgspec.to_builtins(complete)}}


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model on the page.

    Attributes:
        layers: Its attention layers.
        note: What the numbers do not include.
        rows: (tokens, passes of a prompt by backend, decode steps by backend), by length.
        charts: Time to first token and decoding speed, if there are at least two lengths.
    """

    layers: int
    note: str
    rows: list[tuple[int, dict[str, ModelPass], dict[str, ModelPass]]]
    charts: list[Chart] = field(default_factory=list)


def model_view(records: Iterable[Record], backends: Sequence[str]) -> ModelView | None:
    """Return the view of a suite's records; None if no pass of a model is complete.

    Args:
        records: Records by suite.
        backends: All backends of the report, in color order.
    """
    complete = passes(records)
    if not complete:
        return None
    rows = [
        (length, _by_backend(complete, length, step=False), _by_backend(complete, length, step=True))
        for length in sorted({each.length for each in complete})
    ]
    charts = []
    for step in (False, True):
        chosen = [each for each in complete if each.step == step]
        if len({each.length for each in chosen}) > 1:
            charts.append(_chart(chosen, backends, step=step))
    return ModelView(complete[0].layers, DISCLAIMER, rows, charts)


def _by_backend(complete: Iterable[ModelPass], length: int, *, step: bool) -> dict[str, ModelPass]:
    return {each.backend: each for each in complete if each.length == length and each.step == step}


def _chart(chosen: Sequence[ModelPass], backends: Sequence[str], *, step: bool) -> Chart:
    title = "Decoding, tokens/s" if step else "Time to first token"
    traces = []
    for backend in backends:
        own = sorted((each for each in chosen if each.backend == backend), key=lambda each: each.length)
        if own:
            traces.append(ChartLine(backend, colour_of(backend, backends), [_value(each) for each in own]))
    names, where = ", ".join(trace.name for trace in traces), "cached" if step else "prompt"
    return line_chart(
        traces,
        title=title,
        description=f"{title.lower()} of the attention layers against {where} tokens for {names}",
        unit="tokens/s" if step else "seconds",
        x_ticks=[(n, str(n)) for n in sorted({each.length for each in chosen})],
        x_label="tokens in the cache" if step else "prompt tokens",
        x_log=True,
        size=(360, 240),
        tick_text=(lambda y: f"{y:g}") if step else None,  # its unit, in the title, is too wide for the axis
    )


def _value(each: ModelPass) -> ChartPoint:
    """Return a point with its tooltip; its bar spans from the sum of fastest samples to the sum of 95th percentiles."""
    text = f"{each.backend}, {each.length} tokens, {each.layers} layers: {quantity(each.p50_ns / 1e9, 'seconds')}"
    text += f", {digits(each.tokens_per_s)} tokens/s"
    if each.step:
        return ChartPoint(each.length, each.tokens_per_s, text, 1e9 / each.p95_ns, 1e9 / each.min_ns)
    return ChartPoint(each.length, each.p50_ns / 1e9, text, each.min_ns / 1e9, each.p95_ns / 1e9)
