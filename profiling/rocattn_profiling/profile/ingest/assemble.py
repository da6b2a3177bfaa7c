"""Joins the parts of all files into one `Profile`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rocattn_profiling.profile.ingest.merge import apart, arrange
from rocattn_profiling.profile.ingest.parts import MISSING, Part, agent_frame, categorical, nullable
from rocattn_profiling.profile.ingest.table import (
    AGENT_DTYPES,
    COUNTER_DTYPES,
    DISPATCH_DTYPES,
    INSTANCE_DTYPES,
    ROOF_DTYPES,
    SUMMARY_DTYPES,
    Profile,
    empty,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def assemble(parts: list[Part]) -> Profile:
    """Return the profile of all parts. The parts are used up."""
    arrange(parts)
    apart(parts)
    profile = Profile(provenance=[part.source for part in parts])
    _number_agents(profile, parts)
    offsets = np.cumsum([0, *(len(part.dispatches) for part in parts)])
    for part, offset in zip(parts, offsets, strict=False):
        if offset:
            for frame in (part.counters, part.instances):
                frame["row"] = frame["row"].to_numpy(np.int32) + np.int32(offset)
    profile.dispatches = _stack(parts, "dispatches", DISPATCH_DTYPES)
    profile.counters = _stack(parts, "counters", COUNTER_DTYPES)
    profile.instances = _stack(parts, "instances", INSTANCE_DTYPES)
    profile.summaries = _stack(parts, "summaries", SUMMARY_DTYPES)
    profile.roofs = _stack(parts, "roofs", ROOF_DTYPES)
    profile.system = {part.source.file: part.system for part in parts if part.system}
    profile.problems = [problem for part in parts for problem in part.problems]
    return profile


def _stack(parts: Sequence[Part], name: str, dtypes: dict[str, str]) -> pd.DataFrame:
    """Join one frame of every part, a column at a time, letting go of each part's column once it is copied."""
    frames = [getattr(part, name) for part in parts if len(getattr(part, name))]
    if not frames:
        return empty(dtypes)
    if len(frames) == 1:
        whole: pd.DataFrame = frames[0]
        whole.index = pd.RangeIndex(len(whole))  # in place: reset_index copies in pandas 2
        return whole
    made: dict[str, Any] = {}
    for column, dtype in dtypes.items():
        pieces = [frame.pop(column) for frame in frames]
        if dtype == "category":
            made[column] = _union([piece.array for piece in pieces])
        else:
            made[column] = pd.concat(pieces, ignore_index=True).astype(dtype).array
    return pd.DataFrame(made, copy=False)


def _union(pieces: list[Any]) -> Any:
    """Join categoricals whose categories differ."""
    names: dict[str, int] = {}
    codes = []
    for piece in pieces:
        own = np.array([names.setdefault(name, len(names)) for name in piece.categories], np.int32)
        codes.append(own[piece.codes] if len(own) else np.zeros(0, np.int32))
    return categorical(np.concatenate(codes), list(names))


def _number_agents(profile: Profile, parts: Sequence[Part]) -> None:
    """Make one table of the GPUs, and let every dispatch point into it.

    A dispatch's GPU is looked for in its own file, then in its folder, then in the folders above; numbers of another
    folder mean nothing, because that may be another machine. The files of every pass describe the same GPUs: equal
    ones are one row.
    """
    rows: list[dict[str, Any]] = []
    known: dict[tuple[Any, ...], int] = {}
    described: dict[str, dict[int | None, int]] = {}
    for part in parts:
        for record in part.agents.astype("object").where(part.agents.notna(), None).to_dict("records"):
            agent = {str(name): value for name, value in record.items()}
            place = known.setdefault(tuple(agent[name] for name in AGENT_DTYPES if name != "file"), len(rows))
            if place == len(rows):
                rows.append(agent)
            for scope in (part.source.file, part.scope):
                described.setdefault(scope, {}).setdefault(agent["number"], place)
                described[scope].setdefault(_by_node(agent["node"]), place)
    for part in parts:
        if len(part.dispatches):
            numbers = part.dispatches["agent"].to_numpy(np.int64, na_value=MISSING)
            if part.by_node:
                numbers = np.where(numbers == MISSING, MISSING, _by_node(numbers))
            part.dispatches["agent"] = nullable(_places(part, numbers, described, rows), "Int32")
    tables = [agent_frame([row], row["file"]) for row in rows]
    profile.agents = pd.concat(tables, ignore_index=True) if tables else empty(AGENT_DTYPES)


def _by_node(number: Any) -> Any:
    """Return the key of a GPU that a file calls by its node id: rocprofv3 did so up to 6.4, where later ones number."""
    return None if number is None else -1 - number


def _places(
    part: Part, numbers: NDArray[np.int64], described: dict[str, dict[int | None, int]], rows: list[dict[str, Any]]
) -> NDArray[np.int64]:
    """Return the row in the agents' table of each dispatch's number."""
    places = np.full(len(numbers), MISSING, np.int64)
    folders = [part.source.file, part.scope]
    while "/" in folders[-1]:
        folders.append(folders[-1].rpartition("/")[0])
    for number in np.unique(numbers):
        shown = None if number == MISSING else int(number)
        keys = [(f, key) for f in folders for key in (shown, None) if key in described.get(f, {})]
        if keys:
            place = described[keys[0][0]][keys[0][1]]
        elif shown is None:
            continue
        else:
            place = len(rows)
            stated = -1 - shown if part.by_node else shown
            about = {"arch": "", "product": "", "number": stated, "file": part.source.file}
            rows.append(dict.fromkeys(AGENT_DTYPES) | about)
            described.setdefault(part.scope, {})[shown] = place
        places[numbers == number] = place
    return places
