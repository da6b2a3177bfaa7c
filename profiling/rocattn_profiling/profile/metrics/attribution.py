"""Which attention problem each dispatch solved: launches of a profile matched with the plans of a process.

A dispatch matches a plan's launch if kernel, work-items and block are equal. If several plans have such a launch, the
order in which they ran decides (`rocattn.gpu.plan_log`); without it, the label lists all of them.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rocattn.config import AttentionConfig
from rocattn.errors import RocattnError
from rocattn.gpu.launch import LaunchPlan

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Key = tuple[str, int, int]

_DECORATION = re.compile(r"(?:\s*\[clone \.kd\]|\s*\(\.kd\)|\.kd)$")
_GRIDS = 1 << 32  # rocprofv3's counter files have the grid's work-items modulo 2**32, its traces and databases in full
# Kernels that do all matrix products of a forward problem: its FLOPs and compulsory traffic are theirs.
_WHOLE = frozenset({"flash_attention", "flash_attention_causal", "flash_attention_nocausal", "flash_decode"})


class PlanFileError(RocattnError):
    """The file contains no plans."""


@dataclass(frozen=True)
class Attribution:
    """The attention problem of each launch of a profile.

    Attributes:
        labels: The config's label; several joined by " or " if the plans are ambiguous; "" if no plan matches.
        work: "work_flops" and "work_bytes" per launch; NaN if it is unmatched, or only part of the problem.
    """

    labels: list[str]
    work: dict[str, NDArray[np.float64]]


def read_plans(paths: Iterable[Path]) -> list[tuple[LaunchPlan, int]]:
    """Return the plans in the order in which they ran, each with the number of consecutive runs.

    Args:
        paths: Plan logs, or plans of `rocattn plan --json` (each counts as one run).

    Raises:
        PlanFileError: If a file cannot be read or contains something else.
    """
    ran: list[tuple[LaunchPlan, int]] = []
    for path in paths:
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise PlanFileError(f"cannot read {path}: {error}") from error
        try:
            ran += _read(text)
        except (ValueError, KeyError, TypeError, RocattnError) as error:
            raise PlanFileError(f"{path} is neither a plan of `rocattn plan --json` nor a plan log: {error}") from error
    return ran


def _read(text: str) -> list[tuple[LaunchPlan, int]]:
    try:
        return [(LaunchPlan.from_dict(json.loads(text)), 1)]
    except (ValueError, RocattnError):
        pass  # not a single plan, so a log
    known: dict[tuple[int, int], LaunchPlan] = {}
    runs: dict[int, list[tuple[LaunchPlan, int]]] = defaultdict(list)
    for line in text.splitlines():
        entry = json.loads(line)
        process = int(entry["process"])
        if "plan" in entry:
            known[process, int(entry["number"])] = LaunchPlan.from_dict(entry["plan"])
            continue
        plan = known[process, int(entry["ran"])]
        own = runs[process]
        if own and own[-1][0] is plan:
            own[-1] = (plan, own[-1][1] + 1)
        else:
            own.append((plan, 1))
    # As in profiles, launches are numbered per process, in the order of process ids.
    return [run for process in sorted(runs) for run in runs[process]]


def attribute(table: pd.DataFrame, ran: Sequence[tuple[LaunchPlan, int]]) -> Attribution:
    """Match the launches of a profile with plans.

    Args:
        table: `Launches.table`.
        ran: The result of `read_plans`.
    """
    expected: dict[Key, list[tuple[AttentionConfig, str, int]]] = defaultdict(list)
    for plan, times in ran:
        config = AttentionConfig.from_dict(plan.config)
        whole = sum(launch.kernel in _WHOLE for launch in plan.launches) == 1  # otherwise each does some features of v
        for launch in plan.launches:
            block = prod(launch.block)
            key = (launch.symbol, prod(launch.grid) * block % _GRIDS, block)
            expected[key].append((config, launch.kernel if whole else "", times))
    counts = {key: sum(times for _, _, times in runs) for key, runs in expected.items()}
    measured: dict[Key, int] = defaultdict(int)
    keys = [
        (_DECORATION.sub("", str(kernel)), int(grid) % _GRIDS, int(block))
        for kernel, grid, block in zip(table["kernel"], table["grid"], table["block"], strict=True)
    ]
    for key in keys:
        measured[key] += 1
    labels, flops, moved = [], [], []
    for key, ordinal in zip(keys, table["ordinal"].to_list(), strict=True):
        candidates = _candidates(expected.get(key, []), ordinal, ordered=measured[key] == counts.get(key))
        labels.append(" or ".join(dict.fromkeys(config.label for config, _ in candidates)))
        works = {(float(config.flops), float(config.bytes_moved)) for config, kernel in candidates if kernel in _WHOLE}
        work = works.pop() if len(works) == 1 else (np.nan, np.nan)
        flops.append(work[0])
        moved.append(work[1])
    return Attribution(labels, {"work_flops": np.array(flops, float), "work_bytes": np.array(moved, float)})


def _candidates(
    runs: Sequence[tuple[AttentionConfig, str, int]], ordinal: int, *, ordered: bool
) -> list[tuple[AttentionConfig, str]]:
    """Return candidates for the n-th launch of a key: the n-th run if the counts agree, otherwise every such plan."""
    if not ordered:
        return [(config, kernel) for config, kernel, _ in runs]
    for config, kernel, times in runs:
        if ordinal < times:
            return [(config, kernel)]
        ordinal -= times
    return []
