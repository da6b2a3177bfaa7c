"""A model's passes in the report: time to first token and decoding speed against length, as charts and a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocattn_profiling.bench.model_times import DISCLAIMER, passes
from rocattn_profiling.pages.charts import Chart, ChartLine, ChartPoint, colour_of, line_chart
from rocattn_profiling.pages.quantities import digits, quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rocattn_profiling.bench.model_times import Pass
    from rocattn_profiling.measure.records import Record


@dataclass(frozen=True, slots=True)
class ModelView:
    """What the page shows of one model.

    Attributes:
        layers: Its attention layers.
        note: What the numbers leave out.
        rows: (tokens, passes of a prompt by backend, decode steps by backend), by length.
        charts: Of time to first token, and of decoding, where there are two lengths or more.
    """

    layers: int
    note: str
    rows: list[tuple[int, dict[str, Pass], dict[str, Pass]]]
    charts: list[Chart] = field(default_factory=list)


def model_view(records: Iterable[Record], backends: Sequence[str]) -> ModelView | None:
    """Return the view of one suite's records; None if no pass of a model is whole.

    Args:
        records: Of one suite.
        backends: All of the report, in the order of their colours.
    """
    found = passes(records)
    if not found:
        return None
    rows = [
        (length, _by_backend(found, length, step=False), _by_backend(found, length, step=True))
        for length in sorted({one.length for one in found})
    ]
    charts = []
    for step in (False, True):
        chosen = [one for one in found if one.step == step]
        if len({one.length for one in chosen}) > 1:
            charts.append(_chart(chosen, backends, step=step))
    return ModelView(found[0].layers, DISCLAIMER, rows, charts)


def _by_backend(found: Iterable[Pass], length: int, *, step: bool) -> dict[str, Pass]:
    return {one.backend: one for one in found if one.length == length and one.step == step}


def _chart(chosen: Sequence[Pass], backends: Sequence[str], *, step: bool) -> Chart:
    title = "Decoding, tokens/s" if step else "Time to first token"
    traces = []
    for backend in backends:
        own = sorted((one for one in chosen if one.backend == backend), key=lambda one: one.length)
        if own:
            traces.append(ChartLine(backend, colour_of(backend, backends), [_value(one) for one in own]))
    names, where = ", ".join(trace.name for trace in traces), "cached" if step else "prompt"
    return line_chart(
        traces,
        title=title,
        description=f"{title.lower()} of the attention layers against {where} tokens for {names}",
        unit="tokens/s" if step else "seconds",
        x_ticks=[(n, str(n)) for n in sorted({one.length for one in chosen})],
        x_label="tokens in the cache" if step else "prompt tokens",
        x_log=True,
        size=(360, 240),
        tick_text=(lambda y: f"{y:g}") if step else None,  # its unit, in the title, is too wide for the axis
    )


def _value(one: Pass) -> ChartPoint:
    """Return a point with its tooltip; the bar reaches over the sums of fastest samples and of 95th percentiles."""
    told = f"{one.backend}, {one.length} tokens, {one.layers} layers: {quantity(one.p50_ns / 1e9, 'seconds')}"
    told += f", {digits(one.tokens_per_s)} tokens/s"
    if one.step:
        return ChartPoint(one.length, one.tokens_per_s, told, 1e9 / one.p95_ns, 1e9 / one.min_ns)
    return ChartPoint(one.length, one.p50_ns / 1e9, told, one.min_ns / 1e9, one.p95_ns / 1e9)
