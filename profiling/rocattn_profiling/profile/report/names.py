"""Readable kernel names: short enough for a table, cut only at sensible places, and still distinct.

A C++ kernel's name can have thousands of characters: return type, namespaces, template arguments, parameters. The
function and its first few template arguments distinguish kernels, so the rest is dropped first, the least informative
part before the others. Identifiers and types are never cut in the middle.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Sequence

from rocattn.errors import RocattnError
from rocattn_profiling.kernels.read.cxx_names import readable

ELLIPSIS = "…"
NEAR_NAMES, NEAR_NAME = 6, 50
"""Number of kernels listed if no name matches, and the length of their names."""
_UNCUT = 10_000
_SUFFIX = re.compile(r"(?:\.kd| \(kd\)| \[clone [^\]]*\])+$")  # of a kernel descriptor or a compiler's clone
_UNNAMED = re.compile(r"\(anonymous namespace\)::|\{anonymous\}::|<unnamed>::")
_LAMBDA = re.compile(r"::\{lambda.*$", re.DOTALL)
_QUALIFIERS = re.compile(r"(?:\b\w+::)+(?=[\w~])")
_CAST = re.compile(r"\([\w:]+\)(?=-?\w)")  # (memory_space_t)0
_ADDRESS = re.compile(r"\(?&\(*(?=\w)")  # &(op_silu(float)): a function as an argument
_WORD = re.compile(r"\w+")
_SHORTEST = 6  # minimum length of a function's name if others take the room, in characters
_OPEN, _CLOSE = "<({[", ">)}]"


def short_names(names: Sequence[str], most: int) -> list[str]:
    """Return a name of limited length for each kernel; equal names show the argument that differs."""
    spelled = readable(name.removesuffix(".kd") for name in names)
    functions = [_function(spelled.get(name.removesuffix(".kd"), name)) for name in names]
    short = [_fit(name, arguments, most) for name, arguments in functions]
    count = Counter(short)
    for text in [text for text, number in count.items() if number > 1]:
        alike = [place for place, each in enumerate(short) if each == text]
        differing = _first_difference([functions[place][1] for place in alike])
        if differing is None:
            continue
        for place in alike:
            name, arguments = functions[place]
            if differing < len(arguments):
                short[place] = _with_argument(name, arguments, differing, most)
    texts = [spelled.get(each.removesuffix(".kd"), each) for each in names]
    # First the names that still look alike, then all instances of a function with such names.
    for by_function in (False, True):
        count = Counter(dict(zip(texts, short, strict=True)).values())
        same: dict[str, dict[str, list[int]]] = {}
        for place, text in enumerate(texts):
            same.setdefault(functions[place][0] if by_function else short[place], {}).setdefault(text, []).append(place)
        for group in same.values():
            if any(count[short[place]] > 1 for places in group.values() for place in places):
                words = [_words(functions[places[0]], text) for text, places in group.items()]
                for places, telling in zip(group.values(), _telling(words), strict=True):
                    for place in places:
                        short[place] = _with_words(*functions[place], telling, most)
    return short


def matching(names: Sequence[str], text: str) -> list[str]:
    """Return the kernels that a text matches: a name as printed, or a regular expression found in the name.

    Args:
        names: Kernels as in the files.
        text: What to find; an ellipsis stands for anything.

    Raises:
        RocattnError: If nothing matches; the message lists the existing kernels, the nearest first.
    """
    printed = re.compile(re.escape(text).replace(re.escape(ELLIPSIS), ".*"))
    short = dict(zip(names, short_names(names, _UNCUT), strict=True))
    found = [name for name in names if printed.fullmatch(short[name]) or printed.fullmatch(_no_scopes(short[name]))]
    if found:
        return found
    try:
        wanted = re.compile(text)
    except re.error as error:
        raise RocattnError(f"{text!r} is not a regular expression ({error}) or a kernel's name") from error
    spelled = readable(name.removesuffix(".kd") for name in names)
    found = [name for name in names if wanted.search(name) or wanted.search(spelled.get(name.removesuffix(".kd"), ""))]
    if not found:
        shown = list(dict.fromkeys(short_names(names, NEAR_NAME)))
        near = dict.fromkeys([*difflib.get_close_matches(text, shown, NEAR_NAMES, 0.3), *shown])
        more = f" and {len(near) - NEAR_NAMES} more" if len(near) > NEAR_NAMES else ""
        raise RocattnError(f"no kernel matches {text!r}: there are {', '.join([*near][:NEAR_NAMES])}{more}")
    return found


def _no_scopes(name: str) -> str:
    start = name.find("<")
    end = len(name) if start < 0 else start
    return name[:end].rpartition("::")[2] + name[end:]


def _words(function: tuple[str, list[str]], text: str) -> list[str]:
    """Return the words of a kernel's name that readers look at first: of its arguments or, without any, its own."""
    name, arguments = function
    return [*(_WORD.findall(" ".join(arguments)) if arguments else name.split("_")), *_WORD.findall(text)]


def _telling(names: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return for each name the first words that distinguish it from the others, types and functions before numbers."""
    common = set.intersection(*map(set, names))
    own = [sorted((word for word in dict.fromkeys(words) if word not in common), key=str.isdigit) for words in names]
    first = [each[0] if each else "" for each in own]
    if not any(first):  # the same words, at most in another order
        at = _first_difference(names)
        return [list(words[at : at + 1]) if at is not None else [] for words in names]
    told: list[list[str]] = [[word] if word else [] for word in first]
    for word in dict.fromkeys(first):
        alike = [place for place, each in enumerate(first) if each == word]
        if len(alike) > 1:
            for place, more in zip(alike, _telling([names[place] for place in alike]), strict=True):
                told[place] += more
    return told


def _with_words(name: str, arguments: Sequence[str], words: Sequence[str], most: int) -> str:
    """Return a function with the words that distinguish it from similar ones; the function is shortened first."""
    function = name.rpartition("::")[2]
    if not words:
        return _cut(function, most)
    for each in (2, 3, 5):
        told = (", " if arguments else "_").join(_cut(word, most // each) for word in words)
        text = f"<{ELLIPSIS}, {told}, {ELLIPSIS}>" if arguments else f"{ELLIPSIS}{told}"
        room = most - len(text)
        if room > _SHORTEST:
            break
    joint = function.rfind("_", 1, max(room, 1))
    head = function if len(function) <= room else function[: joint if joint > 0 else max(room - 1, 1)]
    return _cut(f"{head}{ELLIPSIS if arguments and head != function else ''}{text}", most)


def short_name(name: str, most: int) -> str:
    """Return one kernel's name in at most so many characters."""
    return short_names([name], most)[0]


def base_name(name: str) -> str:
    """Return the function's name without the parts that differ between instances: template arguments and numbers.

    The names of generated kernels contain the size of their tiles.
    """
    return re.sub(r"\d+", "#", _function(name)[0].rpartition("::")[2])


def _function(name: str) -> tuple[str, list[str]]:
    """Return a function's qualified name and its template arguments; names that are not C++ have none."""
    text = _UNNAMED.sub("", _SUFFIX.sub("", name.strip()))
    end = _top_level(text, "(")
    text = text[: end[0]] if end else text
    words = _top_level(text, " ")
    text = text[words[-1] + 1 :] if words else text  # after the return type
    start = _top_level(text, "<")
    if not start:
        return text, []
    return text[: start[-1]], [_argument(each) for each in _split(text[start[-1] + 1 :])]


def _top_level(text: str, wanted: str) -> list[int]:
    """Return the positions of a character outside all brackets."""
    places, depth = [], 0
    for place, character in enumerate(text):
        if depth == 0 and character == wanted and place:
            places.append(place)
        if character in _OPEN:
            depth += 1
        elif character in _CLOSE:
            depth = max(depth - 1, 0)
    return places


def _split(text: str) -> list[str]:
    """Return the elements of a comma-separated list that may be closed by its bracket."""
    parts: list[str] = []
    depth, start = 0, 0
    for place, character in enumerate(text):
        if character in _OPEN:
            depth += 1
        elif character in _CLOSE:
            depth -= 1
            if depth < 0:
                return [*parts, text[start:place].strip()]
        elif character == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]  # profilers truncate names: the last argument may be incomplete


def _argument(text: str) -> str:
    """Return a template argument without namespaces, parameters and casts; a lambda is named after its function."""
    text = _LAMBDA.sub("", _CAST.sub("", text))
    if address := _ADDRESS.match(text):
        return f"&{_function(text[address.end() :])[0].rpartition('::')[2]}"
    starts = _top_level(text, "(")
    text = text[: starts[0]] if starts else text
    return _QUALIFIERS.sub("", text).replace(" >", ">").strip()


def _fit(name: str, arguments: Sequence[str], most: int) -> str:
    """Return the longest form that fits: everything, no namespaces, the first arguments only, and finally truncated."""
    function = name.rpartition("::")[2]
    for form in (name, function):
        text = f"{form}<{', '.join(arguments)}>" if arguments else form
        if len(text) <= most:
            return text
    return _first_arguments(function, arguments, most) if arguments else _cut(function, most)


def _first_arguments(function: str, arguments: Sequence[str], most: int) -> str:
    """Return a function with as many of its first arguments as fit."""
    shown: list[str] = []
    for place, argument in enumerate(arguments, 1):
        rest = [] if place == len(arguments) else [ELLIPSIS]
        for form in (argument, _folded(argument)):
            if len(f"{function}<{', '.join([*shown, form, *rest])}>") <= most:
                shown.append(form)
                break
        else:
            shown.append(ELLIPSIS)
            break
    text = f"{function}<{', '.join(shown)}>"
    return text if len(text) <= most else _cut(function, most)


def _with_argument(name: str, arguments: Sequence[str], place: int, most: int) -> str:
    """Return a function with the argument that distinguishes it from similar ones, if there is room."""
    function = name.rpartition("::")[2]
    before, after = [ELLIPSIS] if place else [], [ELLIPSIS] if place + 1 < len(arguments) else []
    for form in (arguments[place], _folded(arguments[place])):
        text = f"{function}<{', '.join([*before, form, *after])}>"
        if len(text) <= most:
            return text
    return _fit(name, arguments, most)


def _first_difference(lists: Sequence[Sequence[str]]) -> int | None:
    for place in range(max(map(len, lists), default=0)):
        if len({tuple(each[place : place + 1]) for each in lists}) > 1:
            return place
    return None


def _folded(argument: str) -> str:
    """Return an argument without its own arguments: ``AbsFunctor<…>``."""
    start = argument.find("<")
    return f"{argument[:start]}<{ELLIPSIS}>" if start > 0 else argument


def _cut(function: str, most: int) -> str:
    """Return the first and last words of an identifier that is too long; only the first if it is much longer.

    The last words often say more (a tile's size), but generated names can have hundreds of characters.
    """
    if len(function) <= most:
        return function
    room = most - len(ELLIPSIS)
    if len(function) <= 2 * most:
        start = function.find("_", len(function) - room * 2 // 3)
        tail = function[start + 1 :] if start >= 0 else ""
        end = function.rfind("_", 1, room - len(tail) + 1)
        if tail and end > 0:
            return f"{function[:end]}{ELLIPSIS}{tail}"
    end = function.rfind("_", 1, room + 1)
    return f"{function[: end if end > room // 3 else room]}{ELLIPSIS}"
