"""The GPUs and processes of a profile as text, and which of them are slower than others for the same work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rocattn_profiling.pages.render import count
from rocattn_profiling.profile.metrics.aggregate import LaunchGroup
from rocattn_profiling.profile.metrics.units import AGREE, LaunchPlace

if TYPE_CHECKING:
    import pandas as pd


class Places:
    """The GPUs and processes on which the groups of a profile ran.

    Args:
        agents: `Profile.agents`.
        groups: All groups.
    """

    def __init__(self, agents: pd.DataFrame, groups: Sequence[LaunchGroup]) -> None:
        numbers = agents["number"].fillna(agents["node"]).astype("Int64")
        self._numbers = {row: int(number) for row, number in numbers.dropna().items()}
        self._all = sorted({place for group in groups for place in group.unit.places})
        self._agents = {place.agent for place in self._all}
        self._beside: dict[object, list[LaunchGroup]] = defaultdict(list)
        for group in groups:
            self._beside[self._work(group)].append(group)

    @staticmethod
    def _work(group: LaunchGroup) -> object:
        """Return the key of groups with the same work on equal GPUs."""
        unit = group.unit
        return unit.kernel, unit.label, unit.shape, unit.kind

    def gpus(self, group: LaunchGroup) -> tuple[int, ...]:
        """Return the profiler's numbers of a group's GPUs, if the files have them."""
        rows = {place.agent for place in group.unit.places}
        return tuple(sorted(self._numbers[row] for row in rows if row in self._numbers))

    def text(self, group: LaunchGroup) -> str:
        """Return which of several GPUs or processes ran a group: "GPU 5", "8 GPUs"; "" if there is only one."""
        return self._text(group.unit.places) if len(self._all) > 1 else ""

    def _text(self, places: Sequence[LaunchPlace]) -> str:
        agents = {place.agent for place in places}
        words = []
        if len(self._agents) > 1:
            row = min(agents)
            one = f"GPU {self._numbers[row]}" if row in self._numbers else "a GPU without a number"
            words.append(one if len(agents) == 1 else count(len(agents), "GPU"))
        numbers = [self._numbers.get(row, -1) for row in self._agents]
        if len(self._all) > len(self._agents) or len(set(numbers)) < len(numbers):
            ranks, every = {place.rank for place in places}, {place.rank for place in self._all}
            one = f"process {min(ranks) + 1} of {len(every)}"
            if len(every) > 1:
                words.append(one if len(ranks) == 1 else count(len(ranks), "process", "processes"))
        return ", ".join(words)

    def slower(self, group: LaunchGroup) -> tuple[dict[str, float], dict[str, str]]:
        """Return how many times as long as elsewhere a group's launches take, and both places; empty if not longer."""
        if len(group.rows) < 2:  # single launches do not tell GPUs apart
            return {}, {}
        others = [each for each in self._beside[self._work(group)] if each is not group and each.time_ns]
        if not others or not group.time_ns:
            return {}, {}
        medians = np.repeat([each.time_ns[50] for each in others], [len(each.unit.places) for each in others])
        times = group.time_ns[50] / float(np.median(medians))
        if times < AGREE:
            return {}, {}
        elsewhere = [place for each in others for place in each.unit.places]
        said = self._text(elsewhere) if len(elsewhere) == 1 else "the others"
        return {"times_the_others": times}, {"place": self._text(group.unit.places), "others": said}
