"""Which kernel of one audit is which of another: by architecture and name; where several files have one, by path."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocattn_profiling.kernels.audit import Audit
    from rocattn_profiling.kernels.facts import KernelFacts

    _Groups = dict[tuple[str, str], list[KernelFacts]]


class AuditPairs(msgspec.Struct, frozen=True):
    """Every kernel of both audits, once.

    Attributes:
        both: Before and now.
        new, missing: Those of one audit only.
        several: Architecture and name of kernels that several files of an audit have.
    """

    both: list[tuple[KernelFacts, KernelFacts]]
    new: list[KernelFacts]
    missing: list[KernelFacts]
    several: set[tuple[str, str]]


def pairs_of(base: Audit, head: Audit) -> AuditPairs:
    """Find the pairs.

    Of kernels with one name (Triton's cache has a folder for each variant, with files that are called the same) those
    are a pair whose paths agree in the most last parts, if no other agrees in as many: none is guessed, none left out.
    """
    before, after = _groups(base), _groups(head)
    found = AuditPairs([], [], [], set())
    for key in dict.fromkeys(chain(after, before)):
        olds, news = before.get(key, []), after.get(key, [])
        if max(len(olds), len(news)) > 1:
            found.several.add(key)
            made = _by_path(olds, news)
        else:
            made = list(zip(olds, news, strict=False))
        found.both.extend(made)
        paired = {id(one) for pair in made for one in pair}
        found.new.extend(one for one in news if id(one) not in paired)
        found.missing.extend(one for one in olds if id(one) not in paired)
    return found


def _groups(audit: Audit) -> _Groups:
    found: _Groups = {}
    for facts in audit.kernels:
        found.setdefault((facts.arch, facts.name), []).append(facts)
    return found


def _by_path(olds: list[KernelFacts], news: list[KernelFacts]) -> list[tuple[KernelFacts, KernelFacts]]:
    """Return pairs of files, those first that agree in the most last parts of their paths."""
    made: list[tuple[KernelFacts, KernelFacts]] = []
    for depth in range(max(len(_parts(one)) for one in chain(olds, news)), 0, -1):
        ends, others = _unique(olds, depth), _unique(news, depth)
        made += [(ends[end], others[end]) for end in others if end in ends]
        paired = {id(one) for pair in made for one in pair}
        olds = [one for one in olds if id(one) not in paired]
        news = [one for one in news if id(one) not in paired]
    return made


def _unique(kernels: Iterable[KernelFacts], depth: int) -> dict[tuple[str, ...], KernelFacts]:
    """Return the kernels by the ends of their paths, without those that share one."""
    found: dict[tuple[str, ...], list[KernelFacts]] = {}
    for one in kernels:
        found.setdefault(_parts(one)[-depth:], []).append(one)
    return {end: several[0] for end, several in found.items() if len(several) == 1}


def _parts(facts: KernelFacts) -> tuple[str, ...]:
    return tuple(facts.file.split("/"))
