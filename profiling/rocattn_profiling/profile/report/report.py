"""The profile report: kernels with metrics, findings and problems, as a pure function of a profiler's files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from rocattn.errors import RocattnError
from rocattn_profiling.kernels.model.occupancy import Occupancy, occupancy
from rocattn_profiling.pages.quantities import quantity
from rocattn_profiling.pages.render import count
from rocattn_profiling.profile.ingest.runs import several
from rocattn_profiling.profile.ingest.table import Profile
from rocattn_profiling.profile.metrics.aggregate import LaunchGroup, by_kernel, by_launch
from rocattn_profiling.profile.metrics.attribution import attribute
from rocattn_profiling.profile.metrics.definitions import definitions
from rocattn_profiling.profile.metrics.devices import UNKNOWN_AGENT, Device, devices_of
from rocattn_profiling.profile.metrics.evaluate import TOO_SHORT, Evaluation, evaluate
from rocattn_profiling.profile.metrics.formula import Between
from rocattn_profiling.profile.metrics.launches import find_launches
from rocattn_profiling.profile.metrics.places import Places
from rocattn_profiling.profile.metrics.timeline import Timeline, kind_of, timeline
from rocattn_profiling.profile.metrics.timeline import to_json as time_json
from rocattn_profiling.profile.report import hot_spots
from rocattn_profiling.profile.report.findings import find
from rocattn_profiling.profile.report.groups import group_findings
from rocattn_profiling.profile.report.groups import to_json as groups_json
from rocattn_profiling.profile.report.limits import bounds, measured_bandwidths
from rocattn_profiling.profile.report.records import Bounds, HotSpots, KernelFinding, KernelProfile, ProfileReport
from rocattn_profiling.profile.report.verdict import verdict

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pandas.api.extensions import ExtensionArray

    from rocattn.gpu.launch import LaunchPlan

SCHEMA = 1
DYNAMIC_LDS = "at most: it uses LDS that is allocated at launch, and the files do not say how much"
_COLUMNS = ("process", "dispatch", "agent", "grid", "block", "vgprs", "agprs", "sgprs", "lds_bytes", "scratch_bytes",
            "wave_size")  # fmt: skip
RESOURCES = ("vgprs", "agprs", "sgprs", "lds_bytes", "scratch_bytes", "wave_size")


def build(
    profile: Profile, *, per: str = "kernel", gpu: str | None = None, ran: Sequence[tuple[LaunchPlan, int]] = (),
    peaks: Mapping[str, float] | None = None, chosen: str = "",
) -> ProfileReport:  # fmt: skip
    """Compute the report of a profile.

    Args:
        profile: The result of `rocattn_profiling.profile.ingest.read`.
        per: "kernel", or "dispatch" for single launches.
        gpu: The GPU product, for files that do not name it.
        ran: The plans that ran (`rocattn_profiling.profile.metrics.attribution.read_plans`).
        peaks: Peaks that override those of files and tables (`devices.given_peaks`).
        chosen: Which launches the profile contains, in words; "" for all launches of its GPUs.

    Raises:
        GpuFactsError: If `gpu` is not a known product.
        RocattnError: If the files contain no dispatch and no samples, or come from several runs.
    """
    if profile.runs:
        raise RocattnError(several(profile.runs))
    devices = devices_of(profile, gpu, peaks)
    if not len(profile.dispatches):
        if not len(profile.samples):
            raise RocattnError("nothing to report: the files contain no kernel dispatch")
        spots, left_out = hot_spots.hot_spots(profile.samples, {}, devices.get(UNKNOWN_AGENT))
        problems = [str(problem) for problem in profile.problems]
        gpus = [devices[UNKNOWN_AGENT]] if UNKNOWN_AGENT in devices else []
        shown = [_judged(each, devices.get(UNKNOWN_AGENT)) for each in spots]
        return ProfileReport(per, [], gpus, profile, problems, hot_spots=shown, not_hot=left_out)
    attributed = attribute(find_launches(profile).table, ran) if ran else None
    evaluation = evaluate(profile, devices, attributed.work if attributed else None)
    labels = attributed.labels if attributed else None
    groups = by_kernel(evaluation, labels) if per == "kernel" else by_launch(evaluation, labels)
    total = sum(group.total_ns for group in groups)
    table = evaluation.launches.table
    columns = {name: table[name].array for name in _COLUMNS}
    sizes: NDArray[np.int64] = np.asarray(table.groupby(["grid", "block"], sort=False).ngroup(), np.int64)
    unnamed, whole_kernels = devices.get(UNKNOWN_AGENT), per == "kernel"  # samples do not identify a dispatch
    ran_on = {}
    for group in reversed(groups) if whole_kernels and len(profile.samples) else ():
        agent, lanes = (columns[name][group.rows[0]] for name in ("agent", "wave_size"))
        ran_on[group.name] = _device(agent, devices), None if _nothing(lanes) else int(lanes)
    spots, left_out = hot_spots.hot_spots(profile.samples, ran_on, unnamed)
    of_kernel: dict[str, list[HotSpots]] = defaultdict(list)
    for each in spots if whole_kernels else ():
        of_kernel[each.kernel].append(each)
    sampled = {each.kernel for each in spots if not each.few}
    places = Places(profile.agents, groups)
    measured = {id(each): measured_bandwidths(each, profile.roofs) for each in devices.values()}
    kernels: list[KernelProfile] = []
    told: dict[tuple[str, str], HotSpots] = {}
    for group in groups:
        # If launches of a kernel are judged separately, its samples count for those that take most of the time.
        kernel, own = _kernel(
            group, evaluation, devices, per, total, measured, places, columns, sizes, of_kernel.pop(group.name, []),
            sampled=group.name in sampled,
        )  # fmt: skip
        kernels.append(kernel)
        told |= {(each.kernel, each.method): each for each in own}
    if whole_kernels:
        kernels.sort(key=lambda kernel: ("", "collective", "runtime").index(kernel.kind))
    number_of = {kernel.name: number for number, kernel in reversed([*enumerate(kernels, 1)])} if whole_kernels else {}
    shown = [
        replace(told.get((each.kernel, each.method)) or _judged(each, unnamed), number=number_of.get(each.kernel))
        for each in spots
    ]
    used = {id(kernel.device): kernel.device for kernel in kernels if kernel.device}
    return ProfileReport(
        per, kernels, list(used.values()), profile,
        [*(str(problem) for problem in profile.problems), *evaluation.launches.problems],
        evaluation.left_out, evaluation.missing, shown, left_out,
        timeline=Timeline(unknown="part") if chosen else timeline(profile),
        counters_left_out={
            name: int(where.sum()) for name, where in evaluation.launches.left_out.items()
            if where.any() and name not in evaluation.values
        },
    )  # fmt: skip


def _device(agent: Any, devices: Mapping[int, Device]) -> Device | None:
    unnamed = devices.get(UNKNOWN_AGENT)
    return unnamed if _nothing(agent) else devices.get(int(agent), unnamed)


def _judged(
    spots: HotSpots, device: Device | None, near: Bounds | None = None, share: float | None = None, *,
    judged: bool = False,
) -> HotSpots:  # fmt: skip
    """Return hot spots with their advice and next command."""
    remedy = hot_spots.next_of(spots, device, judged=judged)
    return replace(spots, finding=hot_spots.finding_of(spots, near, share, remedy), remedy=remedy)


def _kernel(
    group: LaunchGroup,
    evaluation: Evaluation,
    devices: Mapping[int, Device],
    per: str,
    total_ns: float,
    measured: Mapping[int, Mapping[str, float]],
    places: Places,
    columns: Mapping[str, ExtensionArray],
    sizes: NDArray[np.int64],
    spots: Sequence[HotSpots],
    *,
    sampled: bool,
) -> tuple[KernelProfile, list[HotSpots]]:
    """Return a group of launches as one judged kernel, and its hot spots as they are shown."""
    first = {name: values[group.rows[0]] for name, values in columns.items()}
    device = _device(first["agent"], devices)
    resources = {name: None if _nothing(first[name]) else int(first[name]) for name in RESOURCES}
    _, firsts, counts = np.unique(sizes[group.rows], return_index=True, return_counts=True)
    grids: Counter[tuple[int, int]] = Counter()
    for at, number in sorted(zip(firsts.tolist(), counts.tolist(), strict=True)):
        grids[columns["grid"][group.rows[at]], columns["block"][group.rows[at]]] = number
    theory, why = _occupancy(device, resources, int(first["block"]), _lanes(group, device, resources, grids))
    share = group.total_ns / total_ns if total_ns else 0.0
    numbers = _numbers(group, device, resources, evaluation.values["launched_waves"][group.rows])
    if device:
        numbers |= measured[id(device)]
    if group.time_ns:
        numbers |= {"median_ns": group.time_ns[50], "time_share": share}
    if theory:
        numbers["theoretical_occupancy_pct"] = theory.occupancy_pct
        if numbers.get("lds_bytes") == 0 and max(
            numbers.get("lds_instructions", 0), numbers.get("lds_conflict_pct", 0)
        ):
            numbers["dynamic_lds"] = 1.0  # allocated at launch and not in the files, so fewer blocks may fit
            theory = replace(theory, sentence=f"{theory.sentence} ({DYNAMIC_LDS})")
        elif theory.blocks and "cus" in numbers:
            numbers["blocks_that_fit"] = theory.blocks * numbers["cus"] / (2 if theory.unit == "WGP" else 1)
    kind = kind_of(group.name)
    judged = not kind
    too_low = {key for key, value in group.values.items() if any(TOO_SHORT in flag for flag in value.flags)}
    limiter, arch = theory.sentence if theory else "", device.arch if device else ""
    if stall := hot_spots.stall_of(spots):
        numbers["stalled_pct"] = stall.pct
    near = bounds(numbers, arch, too_low, sampled=sampled) if judged else None
    slower, words = places.slower(group)
    if group.long:
        slower["long_excess"], words["long"] = group.long.excess, group.long.text
        words["median"] = quantity(group.time_ns[50] / 1e9, "seconds")
    own = [_judged(each, device, near, share if group.time_ns else None, judged=judged) for each in spots]
    findings: list[KernelFinding] = []
    if near:
        findings = find(numbers | slower, near, limiter, too_low, arch, words, sampled=sampled)
        findings += [each.finding for each in own if each.finding]
        findings.sort(key=lambda each: (-each.rank, each.key))
    counted = {
        counter: float(np.nanmean(values[group.rows]))
        for counter, values in evaluation.launches.joined.counters.items()
        if judged and not np.isnan(values[group.rows]).all()
    }
    judgement = None
    if near:
        launches = evaluation.launches
        left_out = {name for name, where in launches.left_out.items() if where[group.rows].any()}
        judgement = verdict(
            near, findings, device, counted, numbers.get("median_ns"), stood_still=launches.stood_still,
            left_out=left_out, stall=stall, sampled=sampled,
        )  # fmt: skip
    told = KernelProfile(
        group.name, group.label,
        int(first["dispatch"]) if per == "dispatch" else None, int(first["process"]) if per == "dispatch" else None,
        device, len(group.rows), group.unit.shape, places.text(group), places.gpus(group), group.long,
        tuple((int(grid), int(block)) for (grid, block), _ in grids.most_common()),
        resources, group.time_ns, group.total_ns, share, group.values, counted, theory, why, near, findings, judgement,
        kind,
    )  # fmt: skip
    return told, own


def _nothing(value: object) -> bool:
    import pandas as pd

    return bool(pd.isna(value))  # type: ignore[call-overload]  # a scalar of a nullable column


def _lanes(
    group: LaunchGroup, device: Device | None, resources: Mapping[str, int | None], grids: Counter[tuple[int, int]]
) -> int | None:
    """Return the lanes of a wave: as reported, or the size that fits the counted waves best.

    rocprofv3 does not report for which of RDNA's two wave sizes a kernel was compiled; a wave64 has half the registers.
    """
    if resources["wave_size"] or device is None or device.known is None:
        return resources["wave_size"]
    sizes, counted = device.known.arch.wave_sizes, group.values.get("launched_waves")
    if counted is None or counted.value is None or not all(block > 0 for _, block in grids):
        return sizes[0]
    waves = {
        size: sum(-(-grid // block) * -(-block // size) * n for (grid, block), n in grids.items()) / grids.total()
        for size in sizes
    }
    return min(sizes, key=lambda size: abs(waves[size] - (counted.value or 0.0)))


def _occupancy(
    device: Device | None, resources: Mapping[str, int | None], block: int, lanes: int | None
) -> tuple[Occupancy | None, str]:
    """Return the occupancy that the reported registers and LDS allow, or why it is unknown."""
    if device is None:
        return None, "no file says which GPU it was"
    vgprs, lds = resources["vgprs"], resources["lds_bytes"]
    if vgprs is None or block <= 0:
        return None, "the files do not say how many VGPRs or threads per block it has"
    if not lanes:
        return None, f"no facts are known about {device.arch}"
    try:
        # Profilers print the same constant for every kernel's SGPRs, so these are left out.
        return occupancy(
            device.arch, wave_size=lanes, vgprs=vgprs, agprs=resources["agprs"] or 0, lds_bytes=lds or 0, block=block
        ), ""
    except RocattnError as error:
        return None, str(error)


def _numbers(
    group: LaunchGroup, device: Device | None, resources: Mapping[str, int | None], waves: NDArray[np.float64]
) -> dict[str, float]:
    """Return the known numbers that rules can use, except times."""
    numbers = dict(device.constants) if device else {}
    numbers |= {key: value.value for key, value in group.values.items() if value.value is not None}
    numbers["launches"] = float(len(group.rows))
    shape = group.unit.shape
    known = {name: resources[name] for name in ("vgprs", "lds_bytes", "scratch_bytes")}
    if shape.block:
        numbers |= {"block_threads": float(shape.block), "blocks_least": float(shape.least)}
        numbers["blocks"] = Between(shape.least, shape.most)
        if "launched_waves" in numbers and shape.least != shape.most:
            numbers["launched_waves"] = Between(float(np.nanmin(waves)), float(np.nanmax(waves)))
    if known["vgprs"] is not None:
        known["agprs"] = resources["agprs"] or 0
    return numbers | {name: float(value) for name, value in known.items() if value is not None}


def to_json(report: ProfileReport) -> dict[str, Any]:
    """Return the report as JSON-ready values: all metrics of each kernel or dispatch, with their provenance."""
    titles = {metric.key: metric for metric in definitions().metrics}
    return {
        "schema": SCHEMA,
        "per": report.per,
        "chosen": report.chosen,
        "timeline": time_json(report.timeline),
        "kernels": [_kernel_json(kernel) for kernel in report.kernels],
        "groups": groups_json(group_findings(report)),
        "devices": [
            {"name": each.name, "arch": each.arch, "constants": each.constants, "origin": each.origin}
            for each in report.devices
        ],
        "not_measured": {key: {"title": titles[key].title, "why": why} for key, why in report.missing.items()},
        "left_out": report.left_out
        | {
            name: [f"left out in {count(number, 'launch', 'launches')}"]
            for name, number in report.counters_left_out.items()
        },
        "hot_spots": [hot_spots.to_json(each) for each in report.hot_spots],
        "problems": report.problems,
        "files": [asdict(source) for source in report.profile.provenance],
        "roofs": report.profile.roofs.to_dict("records"),
        "about": {key: {"title": each.title, "unit": each.unit, "about": each.about} for key, each in titles.items()},
    }


def dump(content: dict[str, Any]) -> str:
    """Return `to_json`'s values as JSON text; NaN and inf become null, because JSON does not have them."""
    return msgspec.json.format(msgspec.json.encode(content), indent=1).decode() + "\n"


def _kernel_json(kernel: KernelProfile) -> dict[str, Any]:
    return {
        "kernel": kernel.name,
        "label": kernel.label,
        "kind": kernel.kind,
        "dispatch": kernel.dispatch,
        "process": kernel.process,
        "gpu": kernel.device.name if kernel.device else None,
        "launches": kernel.launches,
        "shape": {"block": kernel.shape.block, "blocks": [kernel.shape.least, kernel.shape.most]},
        "where": kernel.where,
        "gpu_ids": list(kernel.gpus),
        "long_launches": asdict(kernel.long) if kernel.long else None,
        "grids": [{"work_items": grid, "block": block} for grid, block in kernel.grids],
        "resources": kernel.resources,
        "time_ns": {f"p{percentile}": value for percentile, value in kernel.time_ns.items()},
        "total_ns": kernel.total_ns,
        "time_share": kernel.time_share if kernel.time_ns else None,
        "metrics": {
            key: {name: value for name, value in asdict(each).items() if name not in {"key", "title", "counters"}}
            for key, each in kernel.values.items()
        },
        "theoretical_occupancy": asdict(kernel.occupancy)
        if kernel.occupancy
        else {"unknown": kernel.occupancy_unknown},
        "verdict": msgspec.to_builtins(kernel.verdict),
        "limits": _limits_json(kernel.bounds) if kernel.bounds else None,
        "findings": [asdict(finding) for finding in kernel.findings],
    }


def _limits_json(near: Bounds) -> dict[str, Any]:
    return {
        "known": [
            {"limit": each.key, "name": each.name, "pct": each.pct, "at_least": each.is_least, "notes": each.notes}
            for each in near.known
        ],
        "not_counted": [limit.key for limit in near.uncounted],
        "cannot_be_counted": [limit.key for limit in near.uncountable],
    }
