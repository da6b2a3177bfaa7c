"""Judges the simulation of waves against captures of real GPUs and, with --code, against what others measured.

    git clone https://github.com/tinygrad/tinygrad TINYGRAD    # at the commit that --help names
    python research/silicon/compare.py TINYGRAD --code CODE                # CODE: see `published`
    python research/silicon/compare.py TINYGRAD --captures FOLDER         # older ones: FOLDER/gfx1100/profile_*.pkl
    python research/silicon/compare.py TINYGRAD --trace gfx1200 gemm 0    # each instruction of a wave

Each kernel was captured twice. Run 0 says in how many cycles memory answers, and nothing else; run 1 is judged. What
a trace cannot leave to a simulation is given: what each wave executes, and when it begins. A stretch goes from one
wait, barrier or taken branch to the next; it is right within 4 cycles or 10 %. Five predictions are compared:

* ``one``: memory answers in one time each for scalar loads, vector loads and stores, the medians of run 0;
* ``each``: each access is answered in the time that it was in run 0;
* ``own``: each access is answered in the time that it was in run 1 itself, so that no memory is left to predict;
* ``run 0``: run 0 itself, without any simulation;
* ``any``: the most that anything can have on average that says the same of both runs: one half of the stretches that
  differ by more than both may be off.

Nothing is fetched.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent))
from captures import ARCHITECTURES, COMMIT, Capture, Wave, read_captures
from cdna import TIMING, TRACED, Cdna
from engine import Memory, Simulation, Timing
from published import print_published

from rocattn_profiling.kernels.model.schedule import WaitCounters
from rocattn_profiling.kernels.read.instructions import Access, Pipe, waits_for_waves

CYCLES, SHARE = 4, 0.10
MEDIAN, WORST, STRETCHES = 15, 25, 90  # per cent: what a time must keep to be printed anywhere
_COLD = 500  # cycles: what holds up an instruction that waits for nothing for so long is its own fetch
Times = Sequence[int | None]
_TITLES = (
    "GPU", "waves off by, %", "stretches right, %", "memory as traced", "by first trace", "any at most", "longest wait",
)  # fmt: skip


@dataclass
class Score:
    """What was found over some waves."""

    errors: list[float] = field(default_factory=list)
    stretches: int = 0
    right: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("one", "each", "own", "run 0", "any"), 0))
    same: int = 0

    def add(self, other: Score) -> None:
        """Count another one in."""
        self.errors += other.errors
        self.stretches += other.stretches
        self.same += other.same
        for name, count in other.right.items():
            self.right[name] += count

    def row(self, *what: object) -> str:
        """Return it as a line of the table."""
        shares = [f"{100 * count / self.stretches:6.1f}" for count in self.right.values()]
        worst = max(self.errors, key=abs)
        middle = median(map(abs, self.errors))
        totals = f"{len(self.errors):5} {middle:7.1f} {worst:7.1f} {self.stretches:9}"
        return f"{' '.join(map(str, what)):30} {totals} {' '.join(shares)} {self.same:7}"

    def summary(self, arch: str) -> str:
        """Return it as a line of the documents' table."""
        off = f"{median(map(abs, self.errors)):.1f}, {max(map(abs, self.errors)):.1f}"
        shares = [f"{100 * self.right[name] / self.stretches:.0f}" for name in ("one", "own", "run 0", "any")]
        word = "meets" if self.meets() else "misses"
        return f"| {' | '.join((arch, off, *shares, f'{self.same}/{len(self.errors)}', word))} |"

    def meets(self) -> bool:
        """Whether a time may be printed: by ``one``, the only one that needs no trace of the kernel."""
        of_all = 100 * self.right["one"] / self.stretches
        close = median(map(abs, self.errors)) <= MEDIAN and max(map(abs, self.errors)) <= WORST
        return close and of_all >= STRETCHES and self.same == len(self.errors)


def main() -> int:
    """Print the tables, or one wave; 2 if there is nothing to judge."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tinygrad", type=Path, help=f"checkout of github.com/tinygrad/tinygrad at {COMMIT}")
    parser.add_argument("--code", type=Path, metavar="FOLDER", help="others' code and numbers: judge CDNA by them, too")
    parser.add_argument("--traced", action="store_true", help="CDNA's latencies by gfx950's captures, not by TLX")
    parser.add_argument("--captures", type=Path, metavar="FOLDER", help="other captures than the checkout's")
    parser.add_argument("--trace", nargs=3, metavar=("ARCH", "KERNEL", "WAVE"), help="print one wave of run 1")
    options = parser.parse_args()
    if not (options.tinygrad / "tinygrad/renderer/amd/sqtt.py").is_file():
        print(f"{options.tinygrad} is no checkout of tinygrad that decodes traces", file=sys.stderr)
        return 2
    timing = TRACED if options.traced else TIMING
    pairs = list(_pairs(read_captures(options.tinygrad, options.captures)))
    if options.trace:
        arch, kernel, wave = options.trace
        pairs = [pair for pair in pairs if (pair[0].arch, pair[0].kernel) == (arch, kernel)]
        for first, second in pairs[:1]:
            _print_trace(first, second, int(wave), timing)
    else:
        _print_table(pairs, timing)
    if options.code:
        print_published(options.code, timing)
    return 0 if pairs else 2


def _pairs(captures: Iterator[Capture]) -> Iterator[tuple[Capture, Capture]]:
    """Yield runs 0 and 1 of what executed the same in both."""
    found: dict[tuple[object, ...], Capture] = {}
    for capture in captures:
        key = capture.arch, capture.kernel, capture.program, capture.engine
        executed = [[step.address for step in wave.steps] for wave in capture.waves]
        first = found.setdefault(key, capture)
        if capture.run and executed == [[step.address for step in wave.steps] for wave in first.waves]:
            yield first, capture


def _print_table(pairs: Sequence[tuple[Capture, Capture]], timing: Timing) -> None:
    print(f"{'':30} {'':5} {'total, error %':>15} {'':9} {'stretches that are right, %':>34} {'longest'}")
    names = " ".join(f"{name:>6}" for name in Score().right)
    print(f"{'':30} {'waves':5} {'median':>7} {'worst':>7} {'stretches':9} {names} {'same':>7}")
    totals = {arch: Score() for arch in ARCHITECTURES}
    for first, second in pairs:
        score = judge(first, second, timing)
        totals[first.arch].add(score)
        print(score.row(first.arch, first.kernel, f"se {first.engine}", f"({len(first.waves[0].steps)})"))
    print(f"\n| {' | '.join(_TITLES)} | |\n" + "|---" * (len(_TITLES) + 1) + "|")
    for arch, score in totals.items():
        if score.stretches:
            print(score.summary(arch))


def _print_trace(first: Capture, second: Capture, number: int, timing: Timing) -> None:
    wave = second.waves[number]
    predicted = simulated(_answered_as(second, first), latencies(first), timing)[number]
    start = wave.start
    for step, measured, time in zip(wave.steps, wave.times, predicted, strict=True):
        at = "" if measured is None else measured - start
        print(f"{step.address:#7x} {at:>7} {time - start:>7}  {step.instruction.mnemonic} {step.instruction.operands}")


def judge(first: Capture, second: Capture, timing: Timing = TIMING) -> Score:
    """Compare run 1 with what run 0 and the simulation say of it."""
    memory = latencies(first)
    predictions = {
        "one": simulated(second, memory, timing),
        "each": simulated(_answered_as(second, first), memory, timing),
        "own": simulated(_answered_as(second, second), memory, timing),
        "run 0": [wave.times for wave in first.waves],
    }
    score = Score()
    for number, wave in enumerate(second.waves):
        one = predictions["one"][number]
        score.errors.append(100 * ((one[-1] - one[0]) / (wave.times[-1] - wave.start) - 1))
        score.same += wave.steps[_longest(wave.times)].address == wave.steps[_longest(_masked(one, wave))].address
        stretches = list(pairwise(_ends(wave)))
        score.stretches += len(stretches)
        for name, times in predictions.items():
            score.right[name] += sum(_right(wave.times, times[number], a, b) for a, b in stretches)
        score.right["any"] += sum(_reach(wave.times, first.waves[number].times, a, b) for a, b in stretches)
    return score


def _right(measured: Times, predicted: Times, start: int, end: int) -> bool:
    took, should = measured[end] - measured[start], predicted[end] - predicted[start]
    return abs(should - took) <= _slack(took)


def _reach(measured: Times, before: Times, start: int, end: int) -> float:
    """Return in how many of two runs a stretch can be right, of one."""
    runs = [times[end] - times[start] for times in (measured, before)]
    return 1 if abs(runs[0] - runs[1]) <= sum(map(_slack, runs)) else 0.5


def _slack(took: int) -> float:
    return max(CYCLES, SHARE * took)


def _ends(wave: Wave) -> list[int]:
    """Return the steps at which stretches begin and end."""
    last = len(wave.steps) - 1
    return [
        i
        for i, (step, time) in enumerate(zip(wave.steps, wave.times, strict=True))
        if time is not None and (i in {0, last} or step.taken or step.instruction.unit is Pipe.WAIT)
    ]


def _before(wave: Wave, end: int) -> int:
    """Return the last step before one that the trace has."""
    return max(i for i in range(end) if wave.times[i] is not None)


def _masked(times: Sequence[int], wave: Wave) -> list[int | None]:
    return [None if known is None else time for time, known in zip(times, wave.times, strict=True)]


def _longest(times: Times) -> int:
    """Return the step before which a wave waits longest."""
    known = [i for i, time in enumerate(times) if time is not None]
    return max(pairwise(known), key=lambda pair: times[pair[1]] - times[pair[0]])[1]


def simulated(capture: Capture, memory: Memory, timing: Timing = TIMING) -> list[list[int]]:
    """Return when each traced wave issues each step; ``timing`` is CDNA's."""
    if capture.arch == "gfx950":
        cu = Cdna(capture.arch, memory, timing)
        for number, wave in enumerate(capture.waves):
            cu.add(wave.steps, wave.start, simd=number, block=number)
        return cu.run()
    simulation = Simulation(capture.arch, memory)
    meets = any(waits_for_waves(step.instruction.mnemonic) for step in capture.waves[0].steps)
    for simd, waves in enumerate((capture.waves, capture.beside)):
        for number, wave in enumerate(waves):
            simulation.add(wave.steps, wave.start, simd=simd, block=0 if meets else 100 * simd + number)
    return simulation.run()[: len(capture.waves)]


def latencies(capture: Capture) -> Memory:
    """Return in how many cycles memory answers, the medians over a capture's accesses."""
    answers: defaultdict[Access | None, list[int]] = defaultdict(list)  # of scalar loads, without an access
    for wave in capture.waves:
        for step in answered(wave, capture.arch).steps:
            if step.answer:
                answers[step.instruction.operations[0].access].append(step.answer)
    wave = capture.waves[0]
    longest = _longest(wave.times)
    waited = wave.times[longest] - wave.times[_before(wave, longest)]
    cold = waited > _COLD and wave.steps[longest].instruction.unit in {Pipe.VECTOR, Pipe.SCALAR, Pipe.MATRIX}
    middle = {access: int(median(known)) for access, known in answers.items()}
    scalar, load, store = (middle.get(access, 0) for access in (None, Access.LOAD, Access.STORE))
    return Memory(scalar, load, store, wave.times[longest] - wave.start if cold else 0)


def answered(wave: Wave, arch: str) -> Wave:
    """Return a wave whose accesses have the answers that its waits tell."""
    counters, steps = WaitCounters(arch), list(wave.steps)
    under_way: dict[str, list[int]] = {}
    for i, (step, time) in enumerate(zip(wave.steps, wave.times, strict=True)):
        instruction = step.instruction
        if time is None or instruction.unit is Pipe.LDS:
            continue
        if instruction.unit is Pipe.WAIT or instruction.mnemonic == "s_endpgm":
            left = counters.left_by(instruction) or dict.fromkeys(under_way, 0)
            for name, number in left.items() if not waits_for_waves(instruction.mnemonic) else ():
                queue = under_way.get(name, [])
                while len(queue) > number:
                    known = queue.pop(0)
                    steps[known] = replace(steps[known], answer=max(1, time - wave.times[known]))
        else:
            for name in counters.of(instruction.mnemonic, instruction.operations[0]):
                under_way.setdefault(name, []).append(i)
    return replace(wave, steps=tuple(steps))


def _answered_as(capture: Capture, other: Capture) -> Capture:
    """Return a capture whose accesses are answered as those of another run of it."""

    def put(wave: Wave, model: Wave) -> Wave:
        known = answered(model, capture.arch).steps
        return replace(wave, steps=tuple(replace(s, answer=k.answer) for s, k in zip(wave.steps, known, strict=True)))

    return replace(
        capture, waves=tuple(map(put, capture.waves, other.waves)), beside=tuple(map(put, capture.beside, other.beside))
    )


if __name__ == "__main__":
    sys.exit(main())
