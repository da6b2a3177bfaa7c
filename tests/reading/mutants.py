"""Damaged files by the thousand: seeded mutations, and a child with limits that reads them."""

import json
import os
import random
import re
import resource
import signal
import traceback
from contextlib import suppress
from pathlib import Path

SECONDS, MEMORY = 2.0, 512 << 20
NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1, 2**40)
WORDS = (
    b"-1", b"0", b"1e999", b"-1e999", b"nan", b"NaN", b"inf", b"9" * 19, b"9" * 400, b"1" * 5000, b"null", b"true",
    b"[]", b"{}", b'""', b'"x"', b"[" * 3000, b'{"a":' * 3000, b"\n" * 60_000, b" \n" * 30_000, b" " * 60_000,
    b"a" * 60_000, b"(" * 60_000, b"\r", b"\0", b'"', b"'", b",", b",,,,", b"\xff\xfe", b"\xed\xa0\x80",
    b"\xef\xbb\xbf", b"\\ud800", b"\x1b[2J", b"=1+1", b"<!-- ", b"]]>", b"&a;", b"::error::x",
)  # fmt: skip
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_STRING = re.compile(rb'"[^"\n]{0,200}"')


class TooLongError(BaseException):
    """Raised in a reader that used too much CPU time: not an error that it may take for one of its own."""


def mutant(data, seed):
    """Return a damaged copy of a file; the same for a seed in every run."""
    chance = random.Random(seed)  # noqa: S311 - damage to files is no secret
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        chance.choice(_DAMAGE)(changed, chance)
    return bytes(changed)


def _place(data, chance):
    """Return a place: every other one is near the beginning, where headers are."""
    return chance.randrange(max(1, min(len(data), chance.choice((16, 256, 1 << 30)))))


def _bits(data, chance):
    for _ in range(chance.choice((1, 3, 30)) * bool(data)):
        data[_place(data, chance)] ^= 1 << chance.randrange(8)


def _number(data, chance):
    size = chance.choice((1, 2, 4, 8))
    at = _place(data, chance) // size * size
    value = chance.choice(NUMBERS) & (1 << (8 * size)) - 1
    data[at : at + size] = value.to_bytes(size, chance.choice(("little", "big")))


def _word(data, chance):
    at = _place(data, chance)
    data[at : at + chance.choice((0, 0, 1, 8))] = chance.choice(WORDS)


def _cut(data, chance):
    at = _place(data, chance)
    del data[at : at + chance.choice((1, 4, 60, 1 << 30))]


def _again(data, chance):
    at = _place(data, chance)
    piece = bytes(data[at : at + chance.choice((1, 8, 100, 1000))])
    data[at:at] = piece * chance.choice((1, 2, min(2000, 40_000 // max(1, len(piece)))))


def _of_elsewhere(data, chance):
    size = chance.choice((4, 8, 40, 200))
    at, other = _place(data, chance), _place(data, chance)
    data[at : at + size] = data[other : other + size]


def _value(data, chance):
    """Replace a number or a string of a text by one of another kind."""
    found = list(chance.choice((_NUMBER, _STRING)).finditer(data))
    if found:
        match = chance.choice(found)
        data[match.start() : match.end()] = chance.choice(WORDS)


def _line(data, chance):
    lines = bytes(data).split(b"\n")
    at, to = chance.randrange(len(lines)), chance.randrange(len(lines))
    if chance.random() < 0.5:
        lines[at], lines[to] = lines[to], lines[at]
    else:
        lines[at:at] = lines[to : to + chance.choice((1, 2, 20))]
    data[:] = b"\n".join(lines)


_DAMAGE = (_bits, _number, _number, _word, _cut, _again, _of_elsewhere, _value, _value, _line)


def failures(read, seeds, good, *, seconds=SECONDS, memory=MEMORY):
    """Read a mutant of each seed in children with limits; return seed -> what went wrong.

    Args:
        read: Is given the bytes; raises what is no value and no line of its own.
        seeds: Numbers.
        good: Files that are whole, in turns.
        seconds: CPU time of each.
        memory: Bytes of addresses beyond those of this process.
    """
    found, left = {}, list(seeds)
    while left:
        receive, send = os.pipe()
        child = os.fork()
        if not child:
            os.close(receive)
            _read_all(read, left, good, seconds, memory, send)
        os.close(send)
        with os.fdopen(receive) as lines:
            told = [json.loads(line) for line in lines]
        _, status = os.waitpid(child, 0)
        found |= {seed: wrong for seed, wrong in told if wrong}
        done = {seed for seed, wrong in told if wrong is not None}
        if left[-1] not in done:  # it ended within the last one that it began
            found[told[-1][0]] = f"the process ended with {os.waitstatus_to_exitcode(status)}"
            done |= {told[-1][0]}
        left = [seed for seed in left if seed not in done]
    return found


def _read_all(read, seeds, good, seconds, memory, send):
    """Be the child: tell each seed when it is begun and, with what went wrong, when it is done."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + memory, now + memory))

    def end(_number, _frame):
        raise TooLongError

    signal.signal(signal.SIGPROF, end)
    for seed in seeds:
        # For the case that a library does not come back to Python.
        used = resource.getrusage(resource.RUSAGE_SELF)
        hard = int(used.ru_utime + used.ru_stime + 4 * seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (hard, resource.RLIM_INFINITY))
        os.write(send, f"{json.dumps([seed, None])}\n".encode())
        wrong = ""
        data = mutant(good[seed % len(good)], seed)
        try:
            signal.setitimer(signal.ITIMER_PROF, seconds)
            read(data)
        except TooLongError:
            wrong = f"more than {seconds} s: " + "".join(traceback.format_exc(limit=-3))
        except BaseException:  # noqa: BLE001 - all that comes out is wrong
            wrong = traceback.format_exc(limit=-6)
        finally:
            with suppress(TooLongError):
                signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(send, f"{json.dumps([seed, wrong])}\n".encode())
    os._exit(0)
