"""Evaluate a register for every lane of a block, backwards from its use, in machine code from any compiler.

Only integer arithmetic on the thread index is followed, as in LDS addresses. Unknown scalars (arguments, block indices)
are the same in all lanes of a wave: added to or XORed with an address, they shift all lanes equally, which does not
change bank conflicts. An unknown number times the lane index (a row's pitch) separates lanes by an unknown distance:
such lanes form groups. Values from memory or another lane are unknown. Only the low word of 64-bit numbers is followed.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import gcd
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rocattn_profiling.kernels.read.assembly import AssemblyFunction, Instruction
from rocattn_profiling.kernels.read.instructions import Access, Pipe, classify, integer, is_indirect

if TYPE_CHECKING:
    Register = tuple[str, int]  # "v", "s" or "a" and its index; "vcc" or "exec" and half 0 or 1
    Site = tuple[int, int]  # indices of block and instruction
    Words = np.ndarray[Any, np.dtype[np.int64]]

_MASK: Final = 0xFFFFFFFF
_MOST_STEPS, _DEEPEST = 20_000, 100  # a step may take 7 of Python's 1000 stack frames


@dataclass(frozen=True, eq=False)
class Lanes:
    """A register's value in every thread of a block.

    Attributes:
        words: A 32-bit word per thread, exact up to what `loose` leaves open.
        wave_size: Lanes per wave; threads are ordered by wave.
        loose: "" for exact words; otherwise the words are known up to: "add", an unknown addend per wave; "xor", an
            unknown mapping that keeps equal bits equal; "group", an unknown addend per group of lanes of a wave.
        multiple: Power of two that divides the unknown addends; 0 if there are none.
        groups: The group's number for each thread; None without groups.
    """

    words: Words
    wave_size: int
    loose: str = ""
    groups: Words | None = None
    multiple: int = 0

    @cached_property
    def uniform(self) -> bool:
        """Whether it is uniform: the same in all lanes of each wave."""
        waves = self.words.reshape(-1, self.wave_size)
        return self.groups is None and bool((waves == waves[:, :1]).all())

    @property
    def labels(self) -> Words:
        """Group number per thread; without groups, all threads are in one."""
        return np.zeros_like(self.words) if self.groups is None else self.groups

    @property
    def exact(self) -> bool:
        """Whether the words are the values."""
        return not self.loose

    @cached_property
    def below(self) -> Words | None:
        """The known part of a sum, if it has no bits in common with the unknown addends; otherwise None."""
        if self.loose != "add" or not self.multiple:
            return None
        waves = self.words.reshape(-1, self.wave_size)
        words = (waves - (waves.min(axis=1, keepdims=True) & -self.multiple)).reshape(-1)
        return words if (words < self.multiple).all() else None

    def like(self, other: Lanes) -> bool:
        """Return whether two values differ at most by one number per wave."""
        waves = (self.words - other.words & _MASK).reshape(-1, self.wave_size)
        alike = self.loose == other.loose and np.array_equal(self.labels, other.labels)
        return alike and bool((waves == waves[:, :1]).all())


class LaneValues:
    """The values of a kernel's registers.

    Args:
        function: The kernel; its blocks must be one-dimensional.
        threads: Threads per block; rounded up to whole waves.
    """

    def __init__(self, function: AssemblyFunction, threads: int) -> None:
        self._blocks = function.blocks
        self._wave_size = function.wave_size
        waves = max(1, -(-threads // function.wave_size))
        self._threads = np.arange(waves * function.wave_size, dtype=np.int64)
        self._before: list[list[int]] = [[] for _ in function.blocks]
        for index, block in enumerate(function.blocks):
            for follower in block.successors:
                self._before[follower].append(index)
        self._writers = _writers(function)
        self._calls = self._writers.get(_ANYTHING, {})
        self._known: dict[tuple[Register, Site], Lanes | None] = {}
        self._entering: dict[tuple[Register, int], list[Site | None]] = {}
        self._under_way: set[tuple[Register, Site]] = set()
        self._steps = 0
        self._one_dimension = not any(
            each.mnemonic.startswith("v_bfe_u32") and _OTHER_DIMENSION.match(each.operands)
            for each in function.instructions
        )

    def operand(self, text: str, at: Site) -> Lanes | None:
        """Return the value of an instruction's operand; None if it is unknown, or known only up to groups.

        Args:
            text: The operand as written, "v8" or "0x40"; only the first of several registers counts.
            at: The instruction.
        """
        value = self.grouped_operand(text, at)
        return None if value is None or value.groups is not None else value

    def grouped_operand(self, text: str, at: Site) -> Lanes | None:
        """Return the value of an instruction's operand, even if known only up to groups; None if it is unknown."""
        value = self._operand(text, at)
        return None if isinstance(value, _Cycle) else value

    def written_in(self, register: Register, blocks: Collection[int]) -> list[Site]:
        """Return the instructions in these blocks that may write a register."""
        return [(block, index) for block in blocks for index in self._places(register, block)]

    def before(self, block: int) -> list[Site]:
        """Return a block's predecessors."""
        return [(other, len(self._blocks[other].instructions)) for other in self._before[block]]

    def _operand(self, text: str, at: Site) -> Lanes | _Cycle | None:
        if registers := registers_of(text):
            return self._reaching(registers[0], at)
        number = integer(text)
        return self._unknown_scalar() if number is None else self._same(number)  # symbols are constants

    def _same(self, number: int) -> Lanes:
        return Lanes(np.full_like(self._threads, number & _MASK), self._wave_size)

    def _unknown_scalar(self) -> Lanes:
        return Lanes(np.zeros_like(self._threads), self._wave_size, "add", multiple=1)

    def _reaching(self, register: Register, at: Site) -> Lanes | _Cycle | None:
        """Return what a register holds before an instruction."""
        agreed: Lanes | None = None
        going_round = False
        for site in self._definitions(register, at):
            value = self._at_entry(register) if site is None else self._defined(register, site)
            if value is None:
                return None
            if isinstance(value, _Cycle):  # a loop-carried value: its first one stands for all
                going_round = True
            elif agreed is None:
                agreed = value
            elif not agreed.like(value):  # a scalar with several possible values is unknown
                return None if register[0] in {"v", "a"} else self._unknown_scalar()
            else:
                going_round |= not np.array_equal(agreed.words, value.words)
                agreed = replace(agreed, multiple=gcd(agreed.multiple, value.multiple))
        if agreed is None:
            return _CYCLE if going_round else None
        if going_round and (agreed.loose == "add" or register[0] == "s"):
            return replace(agreed, loose=agreed.loose or "add", multiple=1)
        return agreed

    def _at_entry(self, register: Register) -> Lanes | None:
        if register == ("v", 0) and self._one_dimension:  # otherwise x, y and z are packed, with unknown sizes
            return Lanes(self._threads, self._wave_size)
        return None if register[0] in {"v", "a"} else self._unknown_scalar()

    def _definitions(self, register: Register, at: Site) -> list[Site | None]:
        """Return the reaching definitions of a register; None stands for the kernel's entry."""
        block, index = at
        places = self._places(register, block)
        if last := bisect_left(places, index):
            return [(block, places[last - 1])]
        if (register, block) not in self._entering:
            self._entering[register, block] = list(self._on_the_ways_to(register, block))
        return self._entering[register, block]

    def _on_the_ways_to(self, register: Register, block: int) -> Iterator[Site | None]:
        waiting, visited, written = [block], set(), self._writers.get(register, {})
        while waiting:
            block = waiting.pop()
            if block == 0:
                yield None
            for other in self._before[block]:
                if other in visited:
                    continue
                visited.add(other)
                if other in written or other in self._calls:
                    yield other, self._places(register, other)[-1]
                else:
                    waiting.append(other)

    def _places(self, register: Register, block: int) -> Sequence[int]:
        """Return the indices of instructions in a block that may write a register."""
        own, calls = self._writers.get(register, {}).get(block, ()), self._calls.get(block, ())
        return sorted([*own, *calls]) if own and calls else own or calls

    def _defined(self, register: Register, site: Site) -> Lanes | _Cycle | None:
        """Return what an instruction writes to a register."""
        key = register, site
        if key in self._known:
            return self._known[key]
        if key in self._under_way:
            return _CYCLE
        self._steps += 1
        if self._steps > _MOST_STEPS or len(self._under_way) > _DEEPEST:
            return None
        self._under_way.add(key)
        value = self._computed(register, site)
        self._under_way.discard(key)
        if not isinstance(value, _Cycle):
            self._known[key] = value
        return value

    def _computed(self, register: Register, site: Site) -> Lanes | _Cycle | None:
        instruction = self._blocks[site[0]].instructions[site[1]]
        value: Lanes | _Cycle | None = None
        for mnemonic, operands in instruction.halves:
            written = _results(mnemonic, operands)
            if register in written:
                value = self._result(mnemonic, operands, written.index(register), site)
                break
        return self._unknown_scalar() if value is None and register[0] not in {"v", "a"} else value

    def _result(self, mnemonic: str, operands: str, place: int, site: Site) -> Lanes | _Cycle | None:
        """Return what an instruction writes to the destination register number ``place``."""
        if "dpp" in mnemonic or "sdwa" in mnemonic or _MODIFIED.search(operands):
            return None
        name, parts = plain_name(mnemonic), _operands(operands)
        if name in _CHOICES and len(parts) == 3:  # half of a dual instruction, with an implicit mask
            parts.append("vcc")
        if name.startswith("v_cmp_"):
            return self._compared(name, parts, site)
        if name in _PAIRS:
            return self._operand_word(parts[1], place, site)
        if name in _RIGHT_OF_TWO and place == 0:
            return self._shifted_right(parts, site)
        count, first, compute = _RULES.get(name, _NO_RULE) if place == 0 else _NO_RULE
        if name == "v_bitop3_b32" and (table := _BIT_TABLE.search(operands)):
            count, first, compute = 3, 1, _of_bits(int(table[1], 0))
        values = [self._operand(part, site) for part in parts[first : first + count]]
        known = [value for value in values if isinstance(value, Lanes)]
        if any(isinstance(value, _Cycle) for value in values):  # otherwise lanes drift apart
            return _CYCLE if name in _CHOICES or all(value.uniform for value in known) else None
        return compute(*known) if len(known) == count else None

    def _operand_word(self, text: str, place: int, site: Site) -> Lanes | _Cycle | None:
        """Return the low or high word of an operand."""
        if (number := integer(text)) is not None:
            return self._same(number >> 32 * place)
        registers = registers_of(text)
        return self._reaching(registers[place], site) if len(registers) > place else self._unknown_scalar()

    def _shifted_right(self, parts: Sequence[str], site: Site) -> Lanes | _Cycle | None:
        """Return the low word of a 64-bit right shift; compilers also use these to widen and multiply at once."""
        count = integer(parts[1])
        low, high = (self._operand_word(parts[2], place, site) for place in (0, 1))
        if count is None or not isinstance(high, Lanes) or not isinstance(low, Lanes):
            return None
        if count >= 32:
            return _SHIFT_RIGHT(high, self._same(count - 32))
        parted = _SHIFT_RIGHT(low, self._same(count)), _shift_left(high, self._same(32 - count)) if count else high
        return None if parted[0] is None or parted[1] is None else _or(parted[0], parted[1])

    def _compared(self, name: str, parts: Sequence[str], site: Site) -> Lanes | _Cycle | None:
        """Return 1 in each lane where a comparison is true."""
        match = _COMPARISON.match(name)
        values = [self._operand(part, site) for part in parts[-2:]]
        if any(isinstance(value, _Cycle) for value in values):
            return _CYCLE
        known = [_signed(value.words) if match and match[2] == "i" else value.words
                 for value in values if isinstance(value, Lanes) and value.exact]  # fmt: skip
        if match is None or len(known) != 2:
            return None
        return Lanes(_COMPARED[match[1]](*known).astype(np.int64), self._wave_size)


@lru_cache(maxsize=1)
def _writers(function: AssemblyFunction) -> dict[Register, dict[int, list[int]]]:
    """Return register -> block -> indices of the instructions that write it."""
    writers: dict[Register, dict[int, list[int]]] = {}
    written = {each: written_by(each) for each in function.instructions}
    for number, block in enumerate(function.blocks):
        for place, instruction in enumerate(block.instructions):
            for register in written[instruction]:
                writers.setdefault(register, {}).setdefault(number, []).append(place)
    return writers


class _Cycle:
    """A value that depends only on itself, from the previous iteration."""


_CYCLE: Final = _Cycle()


# ---- text of instructions -------------------------------------------------------------------------------------------


def _operands(text: str) -> list[str]:
    """Return the operands without modifiers."""
    return [part.strip().split(" ", 1)[0] for part in text.split(",")]


@lru_cache(maxsize=1 << 14)
def registers_of(text: str) -> tuple[Register, ...]:
    """Return the registers of an operand; none if it is not a register."""
    if match := _REGISTER.fullmatch(text):
        first, last = int(match[2] or match[3]), int(match[2] or match[4])
        return tuple((match[1], number) for number in range(first, last + 1))
    if match := _NAMED.fullmatch(text):
        return ((match[1], {"_lo": 0, "_hi": 1}[match[2]]),) if match[2] else ((match[1], 0), (match[1], 1))
    return ()


def plain_name(mnemonic: str) -> str:
    """Return a mnemonic without encoding suffixes."""
    return _SUFFIX.sub("", mnemonic).replace("_nc_", "_")


def written_by(instruction: Instruction) -> tuple[Register, ...]:
    """Return the registers that an instruction may write, including both halves of a dual one and called functions."""
    mnemonic = instruction.mnemonic
    if is_indirect(mnemonic) and not mnemonic.startswith("s_setpc"):
        return (_ANYTHING,)
    if len(instruction.halves) == 1:
        return _results(mnemonic, instruction.operands)
    return tuple(register for half in instruction.halves for register in _results(*half))


def _results(mnemonic: str, operands: str) -> tuple[Register, ...]:
    """Return the registers that a single instruction or half writes."""
    kind = _kind_of_results(mnemonic)
    if kind == "one":  # the usual case
        return registers_of(operands.partition(",")[0].partition(" ")[0])
    parts, operation = _operands(operands), classify(mnemonic)
    if kind == "memory":
        whole = f"{mnemonic} {operands}"
        stores = operation.access in {Access.STORE, Access.ATOMIC} and not _RETURNS.search(whole)
        return () if stores or _TO_LDS.search(whole) else registers_of(parts[0])
    if kind == "mask" and len(parts) == 2:
        return ("vcc", 0), ("vcc", 1)
    if kind == "none" or not parts:
        return ()
    return registers_of(parts[0]) + (registers_of(parts[1]) if kind == "two" and len(parts) > 1 else ())


@lru_cache(maxsize=1 << 12)
def _kind_of_results(mnemonic: str) -> str:
    if _NO_RESULT.match(mnemonic):
        return "none"
    if classify(mnemonic).unit in {Pipe.LDS, Pipe.GLOBAL, Pipe.SCRATCH}:
        return "memory"
    return "mask" if mnemonic.startswith("v_cmp") else "two" if _SECOND_RESULT.match(mnemonic) else "one"


_ANYTHING: Final = ("any", 0)  # calls may write anything
_REGISTER = re.compile(r"([vsa])(?:(\d{1,4})|\[(\d{1,4}):(\d{1,4})\])")
_NAMED = re.compile(r"(vcc|exec)(_lo|_hi)?")
_SUFFIX = re.compile(r"(?:_e32|_e64)$")
_OTHER_DIMENSION = re.compile(r"v\d+, v0, (?:10|20|0xa|0x14), 10$")
_MODIFIED = re.compile(r"\b(?:quad_perm|row_|dpp8|op_sel|src[01]_sel|clamp|mul:|div:)")
_RETURNS = re.compile(r"_rtn|\bglc\b|\bsc0\b|TH_ATOMIC_RETURN")
_TO_LDS = re.compile(r"\blds$|_load_lds_")
_NO_RESULT = re.compile(
    r"s_(?:cmp|bitcmp|wait|barrier|branch|cbranch|endpgm|nop|setprio|clause|delay|sleep|sendmsg)|v_cmpx"
)
_SECOND_RESULT = re.compile(r"v_(?:add|sub|subrev|addc|subb|subbrev)_co|v_mad_(?:co_)?[ui]64|v_div_scale|v_swap")
_COMPARISON = re.compile(r"v_cmp_(eq|ne|lt|le|gt|ge)_([iu])(?:32|16)$")
_COMPARED: dict[str, Callable[[Words, Words], Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_BIT_TABLE = re.compile(r"\bbitop3:(\w+)")
_PAIRS = {"v_mov_b64", "s_mov_b64"}
_RIGHT_OF_TWO = {"v_lshrrev_b64", "v_ashrrev_i64"}
_CHOICES = {"v_cndmask_b32"}
_OUT_OF_BOUNDS = 0x80000000  # buffer offset that masks a lane off


# ---- arithmetic -----------------------------------------------------------------------------------------------------


def _signed(words: Words) -> Words:
    return (words ^ 0x80000000) - 0x80000000


def _made(words: Words, of: Lanes, loose: str = "", multiple: int = 0) -> Lanes:
    return Lanes(words & _MASK, of.wave_size, loose, multiple=multiple & -multiple)


def _unknown(of: Lanes) -> Lanes:
    return _made(np.zeros_like(of.words), of, "add", 1)


def _grouped(words: Words, *of: Lanes, by: Words | None = None) -> Lanes:
    """Return words known up to the combined groups of some values, and of other numbers."""
    parts = [each for each in (*(value.groups for value in of), by) if each is not None]
    groups = np.unique(np.stack(parts), axis=1, return_inverse=True)[1].reshape(-1)
    return Lanes(words & _MASK, of[0].wave_size, "group", groups.astype(np.int64))


def _add(a: Lanes, b: Lanes) -> Lanes | None:
    if "xor" not in {a.loose, b.loose} and "group" in {a.loose, b.loose}:
        return _grouped(a.words + b.words, a, b)
    if "xor" in {a.loose, b.loose}:
        moved, other = (a, b) if a.loose == "xor" else (b, a)
        return (
            _made(moved.words, moved, "xor") if other.uniform else _unknown(a) if moved.uniform and b.uniform else None
        )
    return _made(a.words + b.words, a, a.loose or b.loose, gcd(a.multiple, b.multiple))


def _subtract(a: Lanes, b: Lanes) -> Lanes | None:
    if "xor" in {a.loose, b.loose}:
        return _add(a, b) if b.uniform else None
    return _add(a, replace(b, words=-b.words & _MASK))


def _multiply(a: Lanes, b: Lanes) -> Lanes | None:
    if a.exact and b.exact:
        return _made(a.words * b.words, a)
    loose, factor = (b, a) if a.uniform and (a.exact or not b.uniform) else (a, b)
    if not factor.uniform:
        return None
    if factor.exact and loose.loose == "add":
        return _made(loose.words * factor.words, a, "add", loose.multiple * int(np.gcd.reduce(factor.words)) or 1 << 32)
    if loose.uniform:
        return _unknown(a)
    if not factor.exact:  # lanes with equal numbers stay in one group
        return _grouped(np.zeros_like(loose.words), loose, by=loose.words)
    return _grouped(loose.words * factor.words, loose) if loose.loose == "group" else None


def _bits(function: Callable[[Words, Words], Words]) -> Callable[[Lanes, Lanes], Lanes | None]:
    """Return an operation on exact values; unknown scalars give an unknown scalar."""

    def compute(a: Lanes, b: Lanes) -> Lanes | None:
        if a.exact and b.exact:
            return _made(function(a.words, b.words), a)
        return _unknown(a) if a.uniform and b.uniform else None

    return compute


def _and(a: Lanes, b: Lanes) -> Lanes | None:
    """Apply a mask. For a sum whose parts share no bits, it selects bits of each; if only known ones, exactly."""
    value, mask = (b, a) if a.exact else (a, b)
    if mask.exact and mask.uniform and value.below is not None:
        words = value.below & mask.words
        return _made(words, a) if (mask.words < value.multiple).all() else _made(words, a, "add", value.multiple)
    return _bits(np.bitwise_and)(a, b)


def _right(function: Callable[[Words, Words], Words]) -> Callable[[Lanes, Lanes], Lanes | None]:
    """Return a right shift; for a sum whose parts share no bits, it shifts each part."""

    def compute(value: Lanes, count: Lanes) -> Lanes | None:
        if count.exact and value.below is not None and (count.words == count.words[0]).all():
            shift = int(count.words[0]) & 31
            return _made(value.below >> shift, value, "add", value.multiple >> shift or 1)
        return _bits(function)(value, count)

    return compute


def _or(a: Lanes, b: Lanes) -> Lanes | None:
    """Treat OR with an unknown number as a sum: compilers use it for sums without common bits."""
    return _made(a.words | b.words, a) if a.exact and b.exact else _add(a, b)


def _xor(a: Lanes, b: Lanes) -> Lanes | None:
    if a.exact and b.exact:
        return _made(a.words ^ b.words, a)
    if a.uniform and b.uniform:
        return _unknown(a)
    if a.uniform or b.uniform:  # bits equal in two lanes stay equal
        moved, other = (b, a) if a.uniform else (a, b)
        return _made(moved.words ^ (other.words if other.exact else 0), a, "xor")
    return None


def _shift_left(value: Lanes, count: Lanes) -> Lanes | None:
    if not count.exact:
        return _multiply(value, count) if count.uniform else None
    return _multiply(value, _made(1 << (count.words & 31), count))


def _field(value: Lanes, offset: Lanes, width: Lanes) -> Lanes | None:
    shifted = _SHIFT_RIGHT(value, offset)
    ones = _bits(lambda x, _: (1 << (x & 31)) - 1)(width, width)
    return None if shifted is None or ones is None else _and(shifted, ones)


def _signed_field(value: Lanes, offset: Lanes, width: Lanes) -> Lanes | None:
    field, half = _field(value, offset, width), _bits(lambda x, _: 1 << (x - 1 & 31))(width, width)
    return None if field is None or half is None else _bits(lambda x, y: (x ^ y) - y)(field, half)


def _of_bits(table: int) -> Callable[..., Lanes | None]:
    """Return gfx950's v_bitop3: a truth table of the three operands' bits gives each result bit."""

    def compute(a: Words, b: Words, c: Words) -> Words:
        words = np.zeros_like(a)
        for index in range(8):
            if table >> index & 1:
                chosen = [word if index >> bit & 1 else ~word for bit, word in ((2, a), (1, b), (0, c))]
                words |= chosen[0] & chosen[1] & chosen[2]
        return words

    return lambda *values: _exact_only(compute, *values)


def _chosen(no: Lanes, yes: Lanes, condition: Lanes) -> Lanes | None:
    if no.loose == yes.loose and (no.words == yes.words).all() and np.array_equal(no.labels, yes.labels):
        return no
    if not condition.exact:  # a buffer's bounds mask: assume all lanes active
        for masked, other in (no, yes), (yes, no):
            if masked.exact and (masked.words == _OUT_OF_BOUNDS).all():
                return other
    if condition.exact and no.exact and yes.exact:
        return _made(np.where(condition.words != 0, yes.words, no.words), no)
    return None  # an unknown mask may differ by lane


def _clamped(function: Callable[[Words, Words], Words]) -> Callable[[Lanes, Lanes], Lanes | None]:
    """Return a minimum or maximum; lanes are assumed to be within an unknown bound."""

    def compute(a: Lanes, b: Lanes) -> Lanes | None:
        if a.uniform == b.uniform or (a.exact and b.exact):
            return _bits(function)(a, b)
        bound, value = (a, b) if a.uniform else (b, a)
        return None if bound.exact else replace(value, loose=value.loose or "add", multiple=1)

    return compute


def _first_lane(value: Lanes) -> Lanes:
    if value.uniform:
        return value
    if not value.exact:
        return _unknown(value)
    waves = value.words.reshape(-1, value.wave_size)
    return _made(np.repeat(waves[:, 0], value.wave_size), value)


def _counted_below(low: bool) -> Callable[[Lanes, Lanes], Lanes | None]:
    """Return v_mbcnt: the number of set mask bits below the lane's in one half of the wave, plus an addend."""

    def compute(mask: Lanes, added: Lanes) -> Lanes | None:
        if not mask.exact or (mask.words != _MASK).any():
            return None
        lane = np.arange(len(mask.words)) % mask.wave_size
        return _add(_made(np.minimum(lane, 32) if low else np.maximum(lane - 32, 0), mask), added)

    return compute


def _bits_reversed(a: Words) -> Words:
    return sum(((a >> bit & 1) << 31 - bit for bit in range(32)), np.zeros_like(a))


def _upper_half(a: Words, b: Words) -> Words:
    return (a.astype(np.uint64) * b.astype(np.uint64) >> np.uint64(32)).astype(np.int64)


_SHIFT_RIGHT = _right(lambda a, b: a >> (b & 31))
_SHIFT_ARITHMETIC = _right(lambda a, b: _signed(a) >> (b & 31))
_MULTIPLY_24 = _bits(lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF))


def _reversed(function: Callable[[Lanes, Lanes], Lanes | None]) -> Callable[[Lanes, Lanes], Lanes | None]:
    return lambda a, b: function(b, a)


def _then(
    first: Callable[[Lanes, Lanes], Lanes | None], second: Callable[[Lanes, Lanes], Lanes | None]
) -> Callable[[Lanes, Lanes, Lanes], Lanes | None]:
    def compute(a: Lanes, b: Lanes, c: Lanes) -> Lanes | None:
        between = first(a, b)
        return None if between is None else second(between, c)

    return compute


def _times(a: Lanes, b: Lanes) -> Lanes | None:
    """Multiply 24-bit numbers, which addresses are assumed to be."""
    return _multiply(a, b) if a.loose or b.loose else _MULTIPLY_24(a, b)


def _then_low_half(rule: Callable[[Lanes, Lanes], Lanes | None]) -> Callable[[Lanes, Lanes], Lanes | None]:
    def compute(a: Lanes, b: Lanes) -> Lanes | None:
        value = rule(a, b)
        return None if value is None else _and(value, _made(np.full_like(a.words, 0xFFFF), a))

    return compute


_SUM = {"add": _add, "sub": _subtract, "subrev": _reversed(_subtract)}
_LOGIC = {"and": _and, "or": _or, "xor": _xor}
# Name -> number of operands, index of the first, and the operation.
_RULES: dict[str, tuple[int, int, Callable[..., Lanes | None]]] = {
    **{f"v_{name}_{kind}32": (2, 1, rule) for name, rule in _SUM.items() for kind in "ui"},
    **{f"v_{name}_co_u32": (2, 2, rule) for name, rule in _SUM.items()},
    **{f"s_{name}_{kind}32": (2, 1, rule) for name, rule in _SUM.items() for kind in "ui"},
    **{f"{unit}_{name}_b32": (2, 1, rule) for name, rule in _LOGIC.items() for unit in "vs"},
    **{f"v_{name}_u16": (2, 1, _then_low_half(rule)) for name, rule in (*_SUM.items(), ("mul_lo", _multiply))},
    "v_mov_b32": (1, 1, lambda a: a),
    "s_mov_b32": (1, 1, lambda a: a),
    "s_movk_i32": (1, 1, lambda a: _made((a.words & 0xFFFF ^ 0x8000) - 0x8000, a)),
    "v_accvgpr_read_b32": (1, 1, lambda a: a),
    "v_accvgpr_write_b32": (1, 1, lambda a: a),
    "v_accvgpr_mov_b32": (1, 1, lambda a: a),
    "v_not_b32": (1, 1, lambda a: _xor(a, _made(np.full_like(a.words, _MASK), a))),
    "v_lshlrev_b32": (2, 1, _reversed(_shift_left)),
    "s_lshl_b32": (2, 1, _shift_left),
    "v_lshrrev_b32": (2, 1, _reversed(_SHIFT_RIGHT)),
    "s_lshr_b32": (2, 1, _SHIFT_RIGHT),
    "v_ashrrev_i32": (2, 1, _reversed(_SHIFT_ARITHMETIC)),
    "s_ashr_i32": (2, 1, _SHIFT_ARITHMETIC),
    "v_mul_u32_u24": (2, 1, _times),
    "v_mul_i32_i24": (2, 1, _times),
    "v_mul_lo_u32": (2, 1, _multiply),
    "s_mul_i32": (2, 1, _multiply),
    "v_mul_hi_u32": (2, 1, _bits(_upper_half)),
    "v_mad_u32_u24": (3, 1, _then(_times, _add)),
    "v_mad_i32_i24": (3, 1, _then(_times, _add)),
    **{
        f"v_mad_{carry}{kind}": (3, 2, _then(_multiply, _add))
        for carry in ("", "co_")
        for kind in ("u64_u32", "i64_i32")
    },
    **{f"v_{name}_u64": (2, 1, rule) for name, rule in _SUM.items()},
    "v_lshl_add_u64": (3, 1, _then(_shift_left, _add)),
    "v_lshlrev_b64": (2, 1, _reversed(_shift_left)),
    "v_lshl_add_u32": (3, 1, _then(_shift_left, _add)),
    "v_lshl_or_b32": (3, 1, _then(_shift_left, _or)),
    "v_add_lshl_u32": (3, 1, _then(_add, _shift_left)),
    "v_add3_u32": (3, 1, _then(_add, _add)),
    "v_and_or_b32": (3, 1, _then(_and, _or)),
    "v_or3_b32": (3, 1, _then(_or, _or)),
    "v_xor3_b32": (3, 1, _then(_xor, _xor)),
    "v_xad_u32": (3, 1, _then(_xor, _add)),
    "v_bfe_u32": (3, 1, _field),
    "v_bfe_i32": (3, 1, _signed_field),
    "v_bfi_b32": (3, 1, lambda mask, a, b: _exact_only(lambda m, x, y: (m & x) | (~m & y), mask, a, b)),
    "v_cndmask_b32": (3, 1, _chosen),
    **{name: (1, 1, lambda a: _exact_only(_bits_reversed, a)) for name in ("v_bfrev_b32", "s_brev_b32")},
    "v_min_u32": (2, 1, _clamped(np.minimum)),
    "v_max_u32": (2, 1, _clamped(np.maximum)),
    "v_min_i32": (2, 1, _clamped(lambda a, b: np.minimum(_signed(a), _signed(b)))),
    "v_max_i32": (2, 1, _clamped(lambda a, b: np.maximum(_signed(a), _signed(b)))),
    "v_readfirstlane_b32": (1, 1, _first_lane),
    "v_mbcnt_lo_u32_b32": (2, 1, _counted_below(low=True)),
    "v_mbcnt_hi_u32_b32": (2, 1, _counted_below(low=False)),
}


def _exact_only(function: Callable[..., Words], *values: Lanes) -> Lanes | None:
    if all(value.exact for value in values):
        return _made(function(*(value.words for value in values)), values[0])
    return _unknown(values[0]) if all(value.uniform for value in values) else None


def _no_rule() -> None:
    """Return None: the result is unknown."""


_NO_RULE: tuple[int, int, Callable[..., Lanes | None]] = (0, 0, _no_rule)
