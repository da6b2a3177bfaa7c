"""Which kernel of an earlier audit is which of a later one: by name, configuration, path and template arguments."""

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
"""Something by which kernels of one name are told apart: what it is ("num_warps"), and its value."""
PARTS_OF = ("constants", "tile", "signature")
"""Parts of a configuration whose words are traits, too."""
_LITERAL = re.compile(r"(L[a-z]n?\d+E)")
_PREFIX = re.compile(r"(?:N?[rVK]*(?:St|L)?)??(\d+)(?=[A-Za-z_])")  # of a name, which is so many characters
_T = TypeVar("_T", bound=Hashable)
_Key = Callable[[KernelFacts], Hashable]


class AuditPairs(msgspec.Struct, frozen=True):
    """Every kernel of both audits, once.

    Attributes:
        both: Before and now.
        new, missing: Those of one audit only.
        unclear: Those that may be a pair with several, of the audit that has more of them.
        several: Architecture and name of kernels that several files of an audit have.
    """

    both: list[tuple[KernelFacts, KernelFacts]]
    new: list[KernelFacts]
    missing: list[KernelFacts]
    unclear: list[KernelFacts]
    several: set[tuple[str, str]]


def pairs_of(base: Audit, head: Audit) -> AuditPairs:
    """Find the pairs.

    One kernel of a name on either side is a pair. Of several (Triton's cache has a folder for each variant, with files
    that are called the same) those are a pair that agree in `KernelFacts.config` where the sides have anything in
    common, then those whose paths agree in the most last parts. C++ kernels of another name now are paired by the
    template arguments that the sides have in common. None is guessed, none left out.
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
    for depth in range(deepest, int(configured), -1):  # every cache calls its files alike
        pairs.both.extend(group.taken(partial(_end, depth)))
    pairs.unclear.extend(group.unclear(agreed))


def _end(depth: int, facts: KernelFacts) -> Hashable:
    return tuple(facts.file.split("/")[-depth:])


def _literals(facts: KernelFacts) -> list[str]:
    return _LITERAL.findall(facts.symbol)


def _kept(same: Sequence[bool], facts: KernelFacts) -> Hashable:
    return tuple(compress(_literals(facts), same))


def _any(_: KernelFacts) -> Hashable:
    """Return a key that all kernels have."""
    return None


class _Group:
    """Kernels of both audits that may be pairs, and are none yet."""

    def __init__(self, olds: Sequence[KernelFacts], news: Sequence[KernelFacts]) -> None:
        self.olds, self.news = list(olds), list(news)

    def taken(self, key: _Key) -> list[tuple[KernelFacts, KernelFacts]]:
        """Take out the pairs whose key no other kernel of their sides has."""
        found = [(olds[0], news[0]) for olds, news in self._alike(key) if len(olds) == len(news) == 1]
        self._drop(chain.from_iterable(found))
        return found

    def taken_by_place(self) -> list[tuple[KernelFacts, KernelFacts]]:
        """Take out the pairs that agree in each template argument of which both sides have the same values."""
        found = []
        for _, group in _groups(self.olds, self.news, lambda facts: _LITERAL.sub("#", facts.symbol)):
            if len(group.olds) == len(group.news) > 1:
                places = [zip(*map(_literals, side), strict=True) for side in (group.olds, group.news)]
                same = [sorted(old) == sorted(new) for old, new in zip(*places, strict=True)]
                found += group.taken(partial(_kept, same))
        self._drop(chain.from_iterable(found))
        return found

    def unclear(self, key: _Key) -> list[KernelFacts]:
        """Take out the kernels whose key the other side has as well; return those of the side that has more."""
        alike = self._alike(key)
        self._drop(facts for olds, news in alike for facts in (*olds, *news))
        return [facts for olds, news in alike for facts in max(news, olds, key=len)]

    def agreed(self, traits: Callable[[KernelFacts], Iterable[Trait]]) -> _Key:
        """Return a key: the traits of each kind in which the sides have a value in common; the others changed."""
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
    """Yield the kernels of both sides by a key, in the order of the newer side."""
    groups: dict[_T, tuple[list[KernelFacts], list[KernelFacts]]] = {}
    for number, side in ((1, news), (0, olds)):
        for facts in side:
            groups.setdefault(key(facts), ([], []))[number].append(facts)
    yield from ((each, _Group(*sides)) for each, sides in groups.items())


def _configuration(facts: KernelFacts) -> Iterator[Trait]:
    for kind, value in facts.config.items():
        if kind != "constants":  # an edit of the source adds some, but leaves those of the configuration
            yield kind, value
        if kind in PARTS_OF:
            yield from ((f"{kind} {word}", "") for word in value.split())


def _template(facts: KernelFacts) -> tuple[str, ...]:
    """Return the architecture, and what a C++ symbol has before its arguments; nothing of another symbol."""
    names, _ = split_symbol(facts.symbol)
    return (facts.arch, *names) if names else ()


def called(facts: KernelFacts) -> tuple[str, str]:
    """Return the architecture and the name by which a kernel is known: of a C++ one, what stands before arguments."""
    names, _ = split_symbol(facts.name)
    return facts.arch, "::".join(names) or facts.name


def split_symbol(symbol: str) -> tuple[list[str], str]:
    """Return the names that a C++ symbol begins with (namespaces, then its own), and the rest: its arguments.

    None of another symbol.
    """
    at, names = len("_Z"), list[str]()
    while symbol.startswith("_Z") and (match := _PREFIX.match(symbol, at)):
        at = match.end() + int(match[1])
        names.append(symbol[match.end() : at])
    return names, symbol[at:] if names else ""


def _arguments(facts: KernelFacts) -> Iterator[Trait]:
    """Yield the integers among a symbol's template arguments, and each part of it with the one behind it."""
    parts = [part for part in _LITERAL.split(facts.symbol) if part]
    yield "integers", "".join(part for part in parts if _LITERAL.fullmatch(part) and not part.startswith("Lb"))
    yield from ((f"{part} {following}", "") for part, following in pairwise(parts))
