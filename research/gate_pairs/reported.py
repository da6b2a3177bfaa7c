"""What a program's own results can show: launches as Google Benchmark's files, and as `gate run` has them.

    python research/gate_pairs/reported.py --pairs 400 --unchanged 10000
    python research/gate_pairs/reported.py --pairs 400 --unchanged 0 --launches out/gate-pairs/launches.jsonl

Prints for pairs of `calibration`'s noise, or of what `record.py` recorded, what `gate judge` finds in the launches, and
`gate compare` in files with the same numbers, which have no canary and no context switches. Then it counts false alarms
among unchanged pairs of results that a program reports, with and without the canary that is timed beside it: each
benchmark follows the clock in part, the canary scatters on its own, and most samples are interrupted.
"""

import argparse
import json
import math
import multiprocessing
import os
import random
import tempfile
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
from calibration import NOISE, side
from pairs import SAME, pairs
from record import SIDES

from rocattn_profiling.gate.foreign.compare import compared
from rocattn_profiling.gate.rule.constants import QUICK_LOOKS
from rocattn_profiling.gate.rule.pairs import Pair, PairLaunch, Side
from rocattn_profiling.gate.rule.policy import Policy
from rocattn_profiling.gate.rule.suite import decide, decide_suite

KINDS = ("quiet, 0.5 %", "1.5 %", "3 %", "20 % of launches disturbed", "clock 4 %, fixed work tells")
CHANGES = (0.0, 0.05, 0.1, 0.25)
ROUNDS = 10
EPOCH_S = 1_600_000_000


def written(launch, path):
    """Write a launch as Google Benchmark does."""
    rows = [
        {"name": "x", "run_name": "x", "repetition_index": at, "iterations": 1, "time_unit": "ns", "real_time": wall,
         "cpu_time": cpu}
        for at, (wall, cpu) in enumerate(zip(launch.samples, launch.cpu, strict=True))
    ]  # fmt: skip
    date = datetime.fromtimestamp(EPOCH_S + launch.start_us / 1e6, UTC).isoformat()
    path.write_text(json.dumps({"context": {"date": date}, "benchmarks": rows}))
    return path


def both_ways(pair):
    """Return the verdicts on a pair of judge, of judge without canary, and of compare."""
    own, bare = decide(pair).verdict, decide(without_canary(pair)).verdict
    with tempfile.TemporaryDirectory() as folder:
        files = {
            name: [written(launch, Path(folder, f"{name}{launch.round}.json")) for launch in each.launches]
            for name, each in (("base", pair.a), ("head", pair.b))
        }
        (entry,) = compared(files, Policy()).entries
    return own, bare, entry.status


def simulated(task):
    """Return a kind of noise, a change, and the verdicts on so many pairs of it."""
    kind, change, count = task
    rng, found = np.random.default_rng(21), []
    for _ in range(count):
        sides = [
            msgspec.structs.replace(
                each, launches=[msgspec.structs.replace(x, cpu=x.cpu or x.samples) for x in each.launches]
            )
            for each in (side(rng, kind, ROUNDS, by, np.zeros(ROUNDS), at) for at, by in enumerate((0.0, change)))
        ]
        found.append(both_ways(Pair(id="x", a=sides[0], b=sides[1])))
    return kind, change, found


def recorded(task):
    """Return rounds, a change, and the verdicts on recorded pairs."""
    rounds, change, told = task
    return f"{rounds} rounds", change, [both_ways(msgspec.convert(pair, Pair)) for pair in told]


def drawn(path, count):
    """Return tasks for `recorded`: as many pairs of each change and number of rounds."""
    found = defaultdict(list)
    for facts, pair in pairs(path, "all"):
        if facts["base"] in SAME:
            found[facts["rounds"], SIDES[facts["head"]] / 100].append(pair)
    rng = random.Random(21)  # noqa: S311 - a choice
    return [
        (*key, rng.sample(told, min(len(told), -(-count // len(found))))) for key, told in sorted(found.items())
    ]  # fmt: skip


def reported(rng, first, slope, scale, own):
    """Return a side of launches with a canary timed beside them."""
    launches = []
    for round_ in range(QUICK_LOOKS[-1]):
        clock = abs(rng.normal(0, 0.06))
        samples = 1e6 * np.exp(slope * clock + rng.normal(0, scale) + np.abs(rng.normal(0, 0.01, 8)))
        taken = rng.random(8) < 0.8
        wall = samples * np.where(taken, 1 + rng.exponential(0.5, 8), 1.001)
        launches.append(
            PairLaunch(
                round=round_, pos=first, start_us=1e6 * (2 * round_ + first), samples=wall.tolist(),
                cpu=samples.tolist(), nivcsw=(samples < 0.97 * wall).astype(int).tolist(),
                canary=1.7e5 * math.exp(clock + rng.normal(0, own)),
            )
        )  # fmt: skip
    return Side(launches=launches)


def false_alarms(task):
    """Return verdicts on unchanged pairs by their noise and with or without canary, looked at as `gate run --quick`."""
    seed, count = task
    rng, found = np.random.default_rng([31, seed]), Counter()
    policy = Policy(looks=QUICK_LOOKS)
    for _ in range(count):
        slope, scale, own = (
            rng.choice([0.0, 0.5, 1.0, 1.3]),
            rng.choice([0.005, 0.015, 0.03]),
            rng.choice([0.005, 0.03]),
        )
        pair = Pair(id="x", a=reported(rng, 0, slope, scale, own), b=reported(rng, 1, slope, scale, own))
        for each, canary in ((pair, True), (without_canary(pair), False)):
            (decision,) = decide_suite([each], policy).decisions
            found[f"{scale:.1%}", canary, decision.verdict] += 1
    return found


def without_canary(pair):
    """Return a pair as programs report it, with nothing timed beside them."""
    a, b = (
        msgspec.structs.replace(side, launches=[msgspec.structs.replace(x, canary=0.0) for x in side.launches])
        for side in (pair.a, pair.b)
    )
    return Pair(id=pair.id, a=a, b=b)


def main():
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--unchanged", type=int, default=10_000)
    parser.add_argument("--launches", type=Path, help="what record.py wrote, in place of simulated pairs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    assert set(KINDS) <= set(NOISE)
    each = arguments.pairs // (len(KINDS) * len(CHANGES))
    work, tasks = simulated, [(kind, by, each) for kind in KINDS for by in CHANGES]
    if arguments.launches:
        work, tasks = recorded, drawn(arguments.launches, arguments.pairs)
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        print("| noise | change | pairs | slower by judge | without canary | by compare | the last two agree |")
        print("|---|---|---|---|---|---|---|")
        for kind, change, verdicts in pool.imap(work, tasks):
            slower = [sum(verdict == "regression" for verdict in way) for way in zip(*verdicts, strict=True)]
            alike = sum(bare == filed for _, bare, filed in verdicts)
            print(f"| {kind} | {change:+.0%} | {len(verdicts)} | " + " | ".join(map(str, [*slower, alike])) + " |")
        if not arguments.unchanged:
            return
        found = Counter()
        for part in pool.imap_unordered(false_alarms, [(seed, 50) for seed in range(arguments.unchanged // 50)]):
            found += part
        print("| noise | canary | slower | faster | pass | undecided |\n|---|---|---|---|---|---|")
        for scale, canary in sorted({key[:2] for key in found}):
            counts = [found[scale, canary, each] for each in ("regression", "improvement", "pass", "inconclusive")]
            print(f"| {scale} | {'yes' if canary else 'no'} | " + " | ".join(map(str, counts)) + " |")


if __name__ == "__main__":
    main()
