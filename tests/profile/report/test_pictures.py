"""The pictures of a kernel say what its metrics say: rooflines, bars against the peaks, the memory chart."""

import html
import math
from dataclasses import replace
from itertools import combinations
from xml.etree import ElementTree as ET

import pandas as pd
import pytest
from inline_snapshot import snapshot

from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.pages.charts import LETTER, place_labels
from rocattn_profiling.profile.ingest.table import ROOF_DTYPES
from rocattn_profiling.profile.report.findings import TOO_LOW
from rocattn_profiling.profile.report.memory_chart import memory_chart
from rocattn_profiling.profile.report.pages import heading, profile_html, profile_markdown
from rocattn_profiling.profile.report.records import KernelFinding
from rocattn_profiling.profile.report.report import build
from rocattn_profiling.profile.report.roofline import hierarchical, levels_of, of_gpu
from rocattn_profiling.profile.report.speed_of_light import speed_of_light

from ...screens import line
from ..kit import agents
from .test_report import MI300X, profile

# What a real batched product in BF16 had on an MI300X (batched-gemm-bf16/bmm2 of the samples).
BMM2 = {
    "tflops": 57.29, "read_gbps": 1396.5, "write_gbps": 447.6, "memory_pct": 34.63, "l2_gbps": 7258.5, "l2_pct": 21.1,
    "l1_gbps": 37598.9, "l1_pct": 46.01, "lds_gbps": 60874.5, "lds_pct": 74.5, "matrix_bf16_tflops": 57.29,
    "vector_fp32_tflops": 0.2,
}  # fmt: skip


def kernel(values=BMM2, agent=None, roofs=()):
    """Return a kernel with these metrics and no others, and the measured roofs."""
    made = profile(("bmm2", 37_400))
    made.agents = agents(MI300X | (agent or {}))
    if roofs:
        facts = {"device": 0, "unit": "GB/s", "file": "run/roofline.csv"}
        made.roofs = pd.DataFrame([facts | {"roof": name, "mean": mean} for name, mean in roofs])
        made.roofs = made.roofs.reindex(columns=list(ROOF_DTYPES))
    (found,) = build(made).kernels
    (like, *_) = build(profile(("any", 1000))).kernels[0].values.values()
    return replace(found, values={key: replace(like, key=key, value=value) for key, value in values.items()}), made


def drawn(values=BMM2, **more):
    """Return the roofline of a kernel."""
    one, made = kernel(values, **more)
    return hierarchical(one, made.roofs, {})


def scales(roof):
    """Return what places on the two axes stand for, by their ticks."""

    def scale(ticks):
        (a, x), (b, y) = ((tick.at, math.log(float(tick.label))) for tick in (ticks[0], ticks[-1]))
        return lambda at: math.exp(x + (at - a) * (y - x) / (b - a))

    return scale(roof.x_ticks), scale(roof.y_ticks)


def places(roof):
    """Return the ends of each roof as FLOP/byte and TFLOP/s, by its first word."""
    x_of, y_of = scales(roof)
    ends = {}
    for each in roof.roofs:
        pixels = [tuple(map(float, point.split(","))) for point in each.points.split()]
        assert all(roof.left <= x <= roof.right and roof.top <= y <= roof.bottom for x, y in pixels)
        ends[each.label.split()[0].rstrip(",")] = [(x_of(x), y_of(y)) for x, y in pixels]
    return ends


def test_points_and_roofs_are_where_the_axes_say():
    """Read back off the ticks: a level at FLOPs over its bytes, memory rising by bandwidth, units level."""
    roof = drawn()
    x_of, y_of = scales(roof)
    for dot, bytes_of in zip(roof.dots, (1844.1, 7258.5, 37598.9, 60874.5), strict=True):
        assert x_of(dot.x) == pytest.approx(57290 / bytes_of, rel=0.02), dot.label
        assert y_of(dot.y) == pytest.approx(57.29, rel=0.02)
    ends = places(roof)
    for name, gbps in (("HBM", 5325), ("L2", 34400), ("L1", 81715)):
        for intensity, tflops in ends[name]:
            assert tflops == pytest.approx(intensity * gbps / 1000, rel=0.03), name
    assert [round(tflops, -1) for _, tflops in ends["BF16"]] == [pytest.approx(1307, rel=0.02)] * 2


def test_a_point_is_as_far_below_its_roof_as_its_share_says():
    """LDS of this kernel is at 74 %, HBM at 35 %; a point above its roof says why."""
    for row in drawn().rows:
        assert row.intensity * row.level.peak * row.level.pct / 100 == pytest.approx(57290, rel=0.01)
        assert row.level.pct <= 100
    above = drawn(BMM2 | {"memory_pct": 130.0})
    assert [row.level.key for row in above.rows if row.note and row.level.pct > 100] == ["memory"]
    assert places(above)["HBM"], "it is drawn nevertheless"


@pytest.mark.parametrize(
    ("rates", "types"),
    [
        ({}, ["BF16 matrix"]),
        ({"matrix_bf16_tflops": 0.0, "vector_fp32_tflops": 5.0}, ["FP32 vector"]),
        ({"matrix_fp8_tflops": 400.0, "vector_fp32_tflops": 30.0}, ["FP8 matrix", "BF16 matrix", "FP32 vector"]),
    ],
)
def test_only_types_that_ran_have_a_roof(rates, types):
    """A BF16 product had eleven roofs, FP8's among them; a type below 1 % of the FLOPs is none that ran."""
    roof = drawn(BMM2 | rates)
    assert [unit.name for unit in roof.units] == types
    assert {label for label in places(roof) if label[:2] in {"FP", "BF"}} == {name.split()[0] for name in types}


def test_no_two_roofs_have_one_color():
    """Nor two points; those that lie on each other are one line in both colors."""
    roof = drawn(BMM2 | {"matrix_fp8_tflops": 400.0, "vector_fp32_tflops": 30.0, "vector_fp64_tflops": 30.0})
    colours = [colour for each in roof.roofs for colour in each.colours]
    assert len(set(colours)) == len(colours) == 8
    assert [each.label for each in roof.roofs if len(each.colours) == 2] == ["L1, LDS 81.7 TB/s"]
    assert len({dot.colour for dot in roof.dots}) == 4


@pytest.mark.parametrize(
    "values", [BMM2, BMM2 | {"lds_gbps": 37599.0, "lds_pct": 46.0, "l2_gbps": 30000.0, "l2_pct": 87.0}]
)
def test_labels_neither_overlap_nor_leave_the_picture(values):
    """Wherever the points are."""
    roof = drawn(values)
    boxes = []
    for label in roof.labels:
        width = LETTER * 11.5 * len(label.text)
        left = label.x - width * {"start": 0, "middle": 0.5, "end": 1}[label.anchor]
        boxes.append((left, label.y - 9, left + width, label.y + 2))
    assert all(box[0] >= 0 and box[2] <= roof.width and box[1] >= 0 and box[3] <= roof.bottom for box in boxes)
    for a, b in combinations(boxes, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
    assert {"HBM", "L2", "L1", "LDS"} <= {label.text for label in roof.labels}


def test_a_label_without_room_is_left_out():
    """Rather than drawn over another."""
    wanted = [("one", 0, [(50.0, 50.0, "middle")]), ("two", 0, [(52.0, 50.0, "middle"), (50.0, 80.0, "start")])]
    assert [each.y for each in place_labels(wanted, [], (0, 0, 100, 100), 10)] == [50, 80]
    assert len(place_labels(wanted, [(0, 60, 100, 100)], (0, 0, 100, 100), 10)) == 1


def test_a_roof_that_lacks_is_named_with_its_command():
    """Without the counters of L1 and LDS the other two are drawn."""
    roof = drawn({key: value for key, value in BMM2.items() if key[:2] not in {"l1", "ld"}})
    assert [dot.label for dot in roof.dots] == ["HBM", "L2"]
    lacking = dict(roof.lacking)
    assert lacking.keys() == {"L1", "LDS"}
    assert {reason.code for reason in lacking.values()} == {"not_counted"}
    assert all(f"--metrics {group}" in lacking[name].remedy for name, group in (("L1", "caches"), ("LDS", "lds")))


@pytest.mark.parametrize(
    ("values", "agent", "code"),
    [
        (BMM2 | {"tflops": 0.0}, {}, "no_flops"),
        ({}, {}, "not_counted"),
        ({}, {"arch": "gfx1030", "product": "RX 6950 XT", "cus": 80, "simds": 160, "xccs": 1}, "not_countable"),
    ],
)
def test_a_kernel_without_a_roofline_has_a_reason(values, agent, code):
    """Copies compute nothing; without counters it is not known; on RDNA only a plan says how many FLOPs there were."""
    found = drawn(values, agent=agent)
    assert isinstance(found, Reason)
    assert found.code == code


def test_measured_bandwidths_are_of_this_machine():
    """rocprof-compute's roofline takes 64 bytes for a line of the L1, also on an MI300X, where it has 128."""
    one, made = kernel(roofs=[("HBM", 4234.0), ("L1", 33480.0), ("LDS", 69582.0), ("L2", 0.0), ("MFMA BF16", 516312.0)])
    assert {level.key: level.measured for level in levels_of(one, made.roofs)} == {
        "memory": 4234.0, "l2": None, "l1": 66960.0, "lds": 69582.0,
    }  # fmt: skip
    assert [unit.measured for unit in hierarchical(one, made.roofs, {}).units] == [pytest.approx(516.3, rel=0.001)]


def test_kernels_of_one_gpu_share_a_roofline_from_two_on():
    """Each leads to its section; those without FLOPs are counted."""
    report = build(profile(("far", 100_000), ("near", 50_000), ("uncounted", 10_000)))
    report.kernels[2].values.pop("tflops")
    (device,) = report.devices
    roof = of_gpu(device, list(enumerate(report.kernels, 1)))
    assert [(dot.label, dot.href) for dot in roof.dots] == [("2", "#k2"), ("1", "#k1")]
    assert roof.left_out == 1
    assert places(roof).keys() == {"HBM", "FP16"}
    assert roof.note == ""
    near = report.kernels[1].values
    near["tflops"] = replace(near["tflops"], value=near["arithmetic_intensity"].value * 6.0)
    assert of_gpu(device, list(enumerate(report.kernels, 1))).note, "above 5.3 TB/s"
    assert of_gpu(device, [(1, report.kernels[0])]) is None


def test_bars_are_the_limits_that_the_verdict_is_made_of():
    """In one order, the nearest marked; what has no counters says which command collects them."""
    made = profile(("attention", 100_000))
    (one,) = build(made).kernels
    bars = speed_of_light(one, dict.fromkeys(made.counters["counter"].unique()))
    assert [bar.key for bar in bars[:6]] == ["memory", "l2", "l1", "lds", "vector", "matrix"]
    for bar in bars:
        known = next((bound for bound in one.bounds.known if bound.key == bar.key), None)
        assert (bar.pct, bar.is_least) == ((known.pct, known.is_least) if known else (None, False))
        assert (bar.missing is None) == (known is not None)
        assert bar.is_nearest == (known is not None and known is one.bounds.nearest)
        assert not known or bar.formulas
    assert bars[3].missing.code == "not_counted"
    assert "--metrics lds" in bars[3].missing.remedy
    (rate,) = bars[5].rates
    assert (rate.name, rate.peak) == ("FP16 matrix", pytest.approx(1307.4, rel=0.001))


def test_traffic_above_the_peak_has_a_bar_and_is_no_bound():
    """An Infinity Cache answered a part."""
    one, _ = kernel(BMM2 | {"memory_pct": 130.0})
    memory = speed_of_light(replace(one, bounds=replace(one.bounds, known=())), {})[0]
    assert (memory.pct, memory.is_nearest, memory.missing) == (130.0, False, None)
    assert memory.notes


def test_arrows_grow_with_the_share_of_the_peak():
    """What was not collected is dashed and grey, never 0."""
    one, _ = kernel(BMM2 | {"lds_moved_gbps": 7160.0, "lds_time_pct": 78.9, "fabric_pct": 8.1, "l1_hit_pct": 80.8})
    chart = memory_chart(replace(one, bounds=None), {})
    edges = {edge.title.partition(":")[0]: edge for edge in chart.edges}
    assert {name: edge.tone for name, edge in edges.items()} == {
        "LDS traffic": "near", "vector L1 traffic": "busy", "L2 traffic": "calm", "reads by L2": "calm",
        "writes by L2": "calm", "memory reads": "unknown", "memory writes": "unknown",
    }  # fmt: skip
    widths = [edges[name].width for name in ("LDS traffic", "vector L1 traffic", "L2 traffic", "writes by L2")]
    assert widths == sorted(widths, reverse=True)
    assert (edges["reads by L2"].is_read, edges["reads by L2"].is_write) == (True, False)
    known = {box.name: box.is_known for box in chart.boxes}
    assert known["Vector L1"]
    assert not known["L2"]
    for box in chart.boxes:
        assert box.x >= 0
        assert box.x + box.width <= chart.width
        assert box.y + box.height <= chart.height
    assert {reason.code for _, reason in chart.lacking} == {"not_counted"}
    assert memory_chart(kernel({"valu_busy_pct": 3.0})[0], {}) is None


def test_pictures_are_described_and_hold_no_markup_of_names():
    """Each has a title and a description; a name from a binary stays text."""
    evil = '"><img src=x onerror=alert(1)>&'
    page = profile_html(build(profile((evil, 100_000), ("copy", 50_000))), 0)
    assert "<img" not in page
    pictures = [part.partition("</svg>")[0] for part in page.split("<svg ")[1:]]
    assert len(pictures) == 5, "of all kernels, and two of each"
    for picture in pictures:
        root = ET.fromstring(f"<svg {picture}</svg>")  # noqa: S314 - our own page
        named = {each.get("id"): each.text for each in root if each.get("id")}
        assert all(named[reference] for reference in root.get("aria-labelledby").split())


def test_a_caveat_stands_on_the_page_once():
    """It stood behind every finding of a short kernel, and behind its verdict."""
    report = build(profile(("attention", 100_000), ("copy", 50_000)))
    low = KernelFinding("k", "t", f"waits{TOO_LOW}", 0.3, 0.3, {}, "", is_too_low=True)
    for each in report.kernels:
        each.findings[:] = [low, replace(low, key="other")]
    for text in (profile_html(report, 0), profile_markdown(report)):
        assert html.unescape(text).count(TOO_LOW.strip(" ()")) == 1
        assert text.count("†") > 2


def test_the_title_names_workload_gpu_tool_release_and_date():
    """It was "Profile" for every page."""
    made = profile(("attention", 100_000))
    made.system = {"run/sysinfo.csv": {"command": "./bench  <b>", "timestamp": "Tue Dec  2 10:59:23 2025 (UTC)"}}
    report = build(made)
    title, facts = heading(report)
    assert (title, facts[0]) == ("Profile of ./bench <b> on Instinct MI300X", "Instinct MI300X (gfx942)")
    assert "Tue Dec 2 10:59:23 2025 (UTC)" in facts
    assert line(profile_html(report, 0), "<title>Profile") == snapshot(
        "<title>Profile of ./bench &lt;b&gt; on Instinct MI300X</title>"
    )
