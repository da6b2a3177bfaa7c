"""Where records were measured: numbers of two places are never compared, whatever else they share.

A place is a machine with its software and, for what a fleet measured, one of its nodes. Two nodes of one type are two
places: their clocks, their cooling and who else works on them differ by more than many a speed-up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rocattn_profiling.measure.records import Machine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocattn_profiling.measure.records import Record


class Place(NamedTuple):
    """A machine, and the host name of the node where a fleet has several of that kind."""

    machine: Machine
    host: str

    @property
    def name(self) -> str:
        """The machine's name and, on a fleet, the node's."""
        return f"{self.machine.name} ({self.host})" if self.host else self.machine.name


def place_of(record: Record) -> Place:
    """Return where a record was measured."""
    return Place(record.machine, record.host)


def by_place(records: Iterable[Record]) -> dict[Place, list[Record]]:
    """Return records by where they were measured, in order of first appearance."""
    found: dict[Place, list[Record]] = {}
    for record in records:
        found.setdefault(place_of(record), []).append(record)
    return found


def place_names(places: Iterable[Place]) -> dict[Place, str]:
    """Return a name of each place that no other one has: what tells two of the same name apart is added to it."""
    places = list(dict.fromkeys(places))
    alike: dict[str, list[Place]] = {}
    for place in places:
        alike.setdefault(place.name, []).append(place)
    names = {}
    for name, members in alike.items():
        facts = {place: msgspec.to_builtins(place.machine) for place in members}
        differing = [key for key in Machine.__struct_fields__ if len({of[key] for of in facts.values()}) > 1]
        for place, of in facts.items():
            names[place] = ", ".join([name, *(f"{key} {of[key] or 'none'}" for key in differing)])
    return {place: names[place] for place in places}
