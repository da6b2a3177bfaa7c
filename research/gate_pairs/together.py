"""How often the interval of all benchmarks together holds the truth, and how wide it is, on simulated suites.

    python research/gate_pairs/together.py --sessions 200

The truth is the mean of the changes of the suite's benchmarks. The width is in parts of what the estimate itself
scatters by (2 x 1.96 of its standard deviations): of a plain mean, Student's t is 1.83 times as wide for three rounds,
1.30 for five, 1.11 for ten and 1.05 for twenty (median).
"""

import argparse
import math
import multiprocessing
import os

import numpy as np

from rocattn_profiling.gate.rule.decide import decide_suite
from rocattn_profiling.gate.rule.pairs import Pair, PairLaunch, Side
from rocattn_profiling.gate.rule.policy import Policy

ROUNDS = (3, 5, 10, 20)
COUNTS = (2, 3, 4, 8, 30)


def alike(rng, scale, shape):
    """Normal noise of all launches."""
    return rng.normal(0, scale, shape)


def disturbed(rng, shape):
    """One launch in five is delayed."""
    return alike(rng, 0.015, shape) + (rng.random(shape) < 0.2) * rng.exponential(0.2, shape)


def shared(rng, shape):
    """What slows a side in a round slows all of its benchmarks."""
    return alike(rng, 0.01, shape) + rng.normal(0, 0.02, (shape[0], 1, shape[2]))


NOISE = {  # locations in logs, shape [side, benchmark, round]
    "0.8 %": lambda rng, shape: alike(rng, 0.008, shape),
    "3 %": lambda rng, shape: alike(rng, 0.03, shape),
    "2 % shared by all benchmarks of a round, 1 % not": shared,
    "0.4 to 10 %, each benchmark its own": lambda rng, shape: alike(
        rng, np.exp(rng.uniform(math.log(0.004), math.log(0.1), (shape[1], 1))), shape
    ),
    "heavy tails (t, 3 df)": lambda rng, shape: 0.02 * rng.standard_t(3, shape),
    "20 % of launches disturbed": disturbed,
    "3 %, benchmarks changed by 8 % either way": lambda rng, shape: alike(rng, 0.03, shape),
    "2 %, and 4 % in common of a round": lambda rng, shape: (
        alike(rng, 0.02, shape) + rng.normal(0, 0.04, (1, *shape[1:]))
    ),
    "1 %, clock 4 %, fixed work tells": lambda rng, shape: alike(rng, 0.01, shape),
    "1 % on base, 3 % on head": lambda rng, shape: alike(rng, np.array([0.01, 0.03])[:, None, None], shape),
}


def launches(places, clock):
    """One sample a launch; with a clock, CPU time and fixed work, too."""
    found = []
    for index, (place, slowness) in enumerate(zip(places.tolist(), clock.tolist(), strict=True)):
        time = 1e6 * math.exp(place + slowness)
        known = {"cpu": [time], "nivcsw": [0], "canary": math.exp(slowness)} if slowness else {}
        found.append(PairLaunch(round=index, samples=[time], **known))
    return Side(launches=found)


def session(rng, kind, count, rounds):
    """Return the error of one session's estimate and the ends of its interval around the truth, in logs."""
    places = NOISE[kind](rng, (2, count, rounds))
    true = rng.normal(0, 0.08, count) if "either way" in kind else np.zeros(count)
    places[1] += true[:, None]
    clock = rng.normal(0, 0.04, places.shape) if "clock" in kind else np.zeros(places.shape)
    pairs = [
        Pair(id=str(i), a=launches(places[0, i], clock[0, i]), b=launches(places[1, i], clock[1, i]))
        for i in range(count)
    ]
    seen = decide_suite(pairs, Policy(looks=(rounds,)))
    return np.log([seen.shift, seen.shift_low, seen.shift_high]) - true.mean()


def rates(task):
    """Return how many of 100 intervals hold the truth, and their median width in parts of the ideal one."""
    kind, rounds, count, sessions = task
    rng = np.random.default_rng(13)
    error, low, high = np.array([session(rng, kind, count, rounds) for _ in range(sessions)]).T
    ideal = 2 * 1.96 * math.sqrt(float(np.mean(error**2)))
    return task, 100 * float(np.mean((low <= 0) & (high >= 0))), float(np.median(high - low)) / ideal


def main():
    """Simulate and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    tasks = [(kind, rounds, count, arguments.sessions) for kind in NOISE for rounds in ROUNDS for count in COUNTS]
    print("| noise | rounds | " + " | ".join(f"{count} benchmarks" for count in COUNTS) + " |")
    print("|---|---|" + "---|" * len(COUNTS))
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        cells = []
        for (kind, rounds, count, _), held, width in pool.imap(rates, tasks):
            cells.append(f"{held:.0f} %, {width:.2f}")
            if count == COUNTS[-1]:
                print(f"| {kind} | {rounds} | " + " | ".join(cells) + " |", flush=True)
                cells = []


if __name__ == "__main__":
    main()
