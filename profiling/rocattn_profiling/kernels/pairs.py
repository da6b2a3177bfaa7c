"""Match the kernels of an earlier and a later audit by name, configuration, path and template arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, compress, pairwise
from typing import TypeVar

import msgspec

from rocattn_profiling.kernels.audit import Audit
from rocattn_profiling.kernels.facts import KernelFacts

Trait = tuple[str, str]
"""A property that distinguishes kernels of the same name: its kind ("num_warps") and value."""
PARTS_OF = ("constants", "tile", "signature")
"""Parts of a configuration whose words are traits as well."""
_LITERAL = re.compile(r"(L[a-z]n?\d+E)")
_PREFIX = re.compile(r"(?:N?[rVK]*(?:St|L)?)??(\d+)(?=[A-Za-z_])")  # length of the name that follows
_T = TypeVar("_T", bound=Hashable)
_Key = Callable[[KernelFacts], Hashable]


class AuditPairs(msgspec.Struct, frozen=True):
    """Every kernel of both audits, once.

    Attributes:
        both: The kernel before and now.
        new, missing: Kernels of only one audit.
        unclear: Kernels with several possible partners, from the audit that has more of them.
        several: (architecture, name) of kernels that occur in several files of an audit.
    """

    both: list[tuple[KernelFacts, KernelFacts]]
    new: list[KernelFacts]
    missing: list[KernelFacts]
    unclear: list[KernelFacts]
    several: set[tuple[str, str]]


def pairs_of(base: Audit, head: Audit) -> AuditPairs:
    """Match the kernels of two audits.

    A name that occurs once on each side is a pair. If it occurs several times (Triton's cache has one folder per
    variant, with equal file names), kernels pair up by the traits in `KernelFacts.config` that the sides have in
    common, then by the longest common end of their paths. Renamed C++ kernels are paired by the template arguments
    that the sides have in common. No pair is guessed, and every kernel is accounted for.
    """
    pairs, changed = AuditPairs([], [], [], [], set()), _Group([], [])
    for key, group in _groups(base.kernels, head.kernels, lambda facts: (facts.arch, facts.name)):
        if max(len(group.olds), len(group.news)) > 1:
            pairs.several.add(key)
            _pair_of_name(group, pairs)
        else:
            pairs.both.extend(group.taken(_any))
        changed.olds += group.olds
        changed.news += group.news
    whole = dict(_groups(base.kernels, head.kernels, _template))
    for template, group in _groups(changed.olds, changed.news, _template):
        if template and group.olds and group.news:
            pairs.both.extend(group.taken_by_place())
            agreed = _any if max(len(group.olds), len(group.news)) == 1 else whole[template].agreed(_arguments)
            pairs.both.extend(group.taken(agreed))
            pairs.unclear.extend(group.unclear(agreed))
        pairs.missing.extend(group.olds)
        pairs.new.extend(group.news)
    return pairs


def _pair_of_name(group: _Group, pairs: AuditPairs) -> None:
    kernels = [*group.olds, *group.news]
    configured = all(facts.config for facts in kernels)
    agreed = group.agreed(_configuration) if configured else _any
    if configured:
        pairs.both.extend(group.taken(agreed))
    deepest = max(facts.file.count("/") + 1 for facts in kernels)
    for depth in range(deepest, int(configured), -1):  # file names are the same in every cache folder
        pairs.both.extend(group.taken(partial(_end, depth)))
    pairs.unclear.extend(group.unclear(agreed))


def _end(depth: int, facts: KernelFacts) -> Hashable:
    return tuple(facts.file.split("/")[-depth:])


def _literals(facts: KernelFacts) -> list[str]:
    return _LITERAL.findall(facts.symbol)


def _kept(same: Sequence[bool], facts: KernelFacts) -> Hashable:
    return tuple(compress(_literals(facts), same))


def _any(_: KernelFacts) -> Hashable:
    """Return the same key for all kernels."""
    return None


class _Group:
    """Kernels of both audits that are not paired yet."""

    def __init__(self, olds: Sequence[KernelFacts], news: Sequence[KernelFacts]) -> None:
        self.olds, self.news = list(olds), list(news)

    def taken(self, key: _Key) -> list[tuple[KernelFacts, KernelFacts]]:
        """Remove and return the pairs whose key is unique on both sides."""
        found = [(olds[0], news[0]) for olds, news in self._alike(key) if len(olds) == len(news) == 1]
        self._drop(chain.from_iterable(found))
        return found

    def taken_by_place(self) -> list[tuple[KernelFacts, KernelFacts]]:
        """Remove and return the pairs that agree in all template arguments whose values are the same on both sides."""
        found = []
        for _, group in _groups(self.olds, self.news, lambda facts: _LITERAL.sub("#", facts.symbol)):
            if len(group.olds) == len(group.news) > 1:
                places = [zip(*map(_literals, side), strict=True) for side in (group.olds, group.news)]
                same = [sorted(old) == sorted(new) for old, new in zip(*places, strict=True)]
                found += group.taken(partial(_kept, same))
        self._drop(chain.from_iterable(found))
        return found

    def unclear(self, key: _Key) -> list[KernelFacts]:
        """Remove the kernels whose key occurs on both sides; return those of the side that has more."""
        alike = self._alike(key)
        self._drop(facts for olds, news in alike for facts in (*olds, *news))
        return [facts for olds, news in alike for facts in max(news, olds, key=len)]

    def agreed(self, traits: Callable[[KernelFacts], Iterable[Trait]]) -> _Key:
        """Return a key function: traits of those kinds for which the sides share a value; the other kinds changed."""
        sides = [{trait for facts in side for trait in traits(facts)} for side in (self.olds, self.news)]
        kinds = {kind for kind, _ in sides[0] & sides[1]}
        return lambda facts: frozenset(trait for trait in traits(facts) if trait[0] in kinds)

    def _alike(self, key: _Key) -> list[tuple[list[KernelFacts], list[KernelFacts]]]:
        groups = (group for _, group in _groups(self.olds, self.news, key))
        return [(group.olds, group.news) for group in groups if group.olds and group.news]

    def _drop(self, kernels: Iterable[KernelFacts]) -> None:
        dropped = {id(facts) for facts in kernels}
        self.olds, self.news = (
            [facts for facts in side if id(facts) not in dropped] for side in (self.olds, self.news)
        )


def _groups(
    olds: Iterable[KernelFacts], news: Iterable[KernelFacts], key: Callable[[KernelFacts], _T]
) -> Iterator[tuple[_T, _Group]]:
    """Yield the kernels of both sides grouped by a key, in the order of the newer side."""
    groups: dict[_T, tuple[list[KernelFacts], list[KernelFacts]]] = {}
    for number, side in ((1, news), (0, olds)):
        for facts in side:
            groups.setdefault(key(facts), ([], []))[number].append(facts)
    yield from ((each, _Group(*sides)) for each, sides in groups.items())


def _configuration(facts: KernelFacts) -> Iterator[Trait]:
    for kind, value in facts.config.items():
        if kind != "constants":  # source edits add constants; their words below still count
            yield kind, value
        if kind in PARTS_OF:
            yield from ((f"{kind} {word}", "") for word in value.split())


def _template(facts: KernelFacts) -> tuple[str, ...]:
    """Return the architecture and a C++ symbol's names, without arguments; () for other symbols."""
    names, _ = split_symbol(facts.symbol)
    return (facts.arch, *names) if names else ()


def called(facts: KernelFacts) -> tuple[str, str]:
    """Return a kernel's architecture and name, the latter without template arguments."""
    names, _ = split_symbol(facts.name)
    return facts.arch, "::".join(names) or facts.name


def split_symbol(symbol: str) -> tuple[list[str], str]:
    """Split a C++ symbol into its leading names (namespaces, then its own) and the rest, its arguments.

    Other symbols give no names.
    """
    at, names = len("_Z"), list[str]()
    while symbol.startswith("_Z") and (match := _PREFIX.match(symbol, at)):
        at = match.end() + int(match[1])
        names.append(symbol[match.end() : at])
    return names, symbol[at:] if names else ""


def _arguments(facts: KernelFacts) -> Iterator[Trait]:
    """Yield the integers among a symbol's template arguments, and each pair of adjacent parts."""
    parts = [part for part in _LITERAL.split(facts.symbol) if part]
    yield "integers", "".join(part for part in parts if _LITERAL.fullmatch(part) and not part.startswith("Lb"))
    yield from ((f"{part} {following}", "") for part, following in pairwise(parts))
