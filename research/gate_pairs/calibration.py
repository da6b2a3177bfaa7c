"""How often the gate is wrong on simulated noise of many shapes, and how often change points are.

    python research/gate_pairs/calibration.py --pairs 1000 --series 300

The recorded pairs say what happens on one machine; this says what happens where launches are skewed, bimodal, drifting,
autocorrelated, quantised by a coarse clock, or as noisy as 10 %.
"""

import argparse
import itertools
import math
import multiprocessing
import os

import msgspec
import numpy as np
from asv.step_detect import detect_steps

from rocattn_profiling.gate.rule.pairs import Pair, PairLaunch, Side
from rocattn_profiling.gate.rule.suite import decide
from rocattn_profiling.site.changepoints import change_points

ROUNDS = (3, 5, 10, 20, 50)
TICK_NS = 20_000.0


def autocorrelated(rng, count, coefficient, scale):
    """AR(1) noise."""
    y = rng.normal(0, scale, count)
    for i in range(1, count):
        y[i] = coefficient * y[i - 1] + math.sqrt(1 - coefficient**2) * y[i]
    return y


def together(rng, count):
    """Noise with four outliers that came together, somewhere in the first 90 points."""
    y, at = rng.normal(0, 0.03, count), rng.integers(0, 87)
    y[at : at + 4] += rng.uniform(0.2, 0.4, 4)
    return y


NOISE = {
    "quiet, 0.5 %": lambda rng, n: rng.normal(0, 0.005, n),
    "1.5 %": lambda rng, n: rng.normal(0, 0.015, n),
    "3 %": lambda rng, n: rng.normal(0, 0.03, n),
    "5 %": lambda rng, n: rng.normal(0, 0.05, n),
    "10 %": lambda rng, n: rng.normal(0, 0.1, n),
    "20 % of launches disturbed": lambda rng, n: (
        rng.normal(0, 0.015, n) + (rng.random(n) < 0.2) * rng.exponential(0.2, n)
    ),
    "half of launches disturbed": lambda rng, n: (
        rng.normal(0, 0.015, n) + (rng.random(n) < 0.5) * rng.exponential(0.3, n)
    ),
    "skewed": lambda rng, n: rng.gamma(1.0, 0.03, n),
    "heavy tails (t, 2 df)": lambda rng, n: 0.015 * rng.standard_t(2, n),
    "two modes 6 % apart": lambda rng, n: rng.normal(0, 0.01, n) + 0.06 * (rng.random(n) < 0.5),
    "two modes 12 % apart": lambda rng, n: rng.normal(0, 0.01, n) + 0.12 * (rng.random(n) < 0.5),
    "autocorrelated (0.7), in time": lambda _, n: np.zeros(n),
    "autocorrelated (0.7), 1 %, each side its own": lambda rng, n: autocorrelated(rng, n, 0.7, 0.01),
    "autocorrelated (0.7), 2 %, each side its own": lambda rng, n: autocorrelated(rng, n, 0.7, 0.02),
    "2 %, and 4 % in common of a round": lambda rng, n: rng.normal(0, 0.02, n),
    "quantised clock": lambda rng, n: rng.normal(0, 0.015, n),
    "constant": lambda _, n: np.zeros(n),
    "drifting": lambda rng, n: rng.normal(0, 0.015, n),
    "drifting, base before head": lambda rng, n: rng.normal(0, 0.005, n),
    "clock 4 %, fixed work tells": lambda rng, n: rng.normal(0, 0.01, n),
    "3 %, fixed work scatters on its own": lambda rng, n: rng.normal(0, 0.03, n),
    "10 %, fixed work scatters on its own": lambda rng, n: rng.normal(0, 0.1, n),
    "autocorrelated (0.7), 2 %, each side its own, fixed work still": lambda rng, n: autocorrelated(rng, n, 0.7, 0.02),
}
# What the fixed work in a launch's process shows: its own noise, and the share of the clock's that it sees.
FIXED_WORK = {"tells": 0.005, "on its own": 0.03, "still": 0.002}
CLOCK = 0.04
SPACING_US = 1e6


HISTORY = {
    "3 %": lambda rng, n: rng.normal(0, 0.03, n),
    "skewed": lambda rng, n: rng.exponential(0.03, n),
    "two modes 6 % apart": lambda rng, n: rng.normal(0, 0.01, n) + 0.06 * (rng.random(n) < 0.4),
    "2 %, 3 % of commits 40 % up": lambda rng, n: rng.normal(0, 0.02, n) + 0.4 * (rng.random(n) < 0.03),
    "3 %, four commits in a row 20 to 40 % up": together,
    "3 %, autocorrelated (0.5)": lambda rng, n: autocorrelated(rng, n, 0.5, 0.03),
    "quantised": lambda rng, n: np.round(rng.normal(0, 0.01, n) / 0.02) * 0.02,
    "constant": lambda _, n: np.zeros(n),
}


def side(rng, kind, rounds, change, drift, first):
    """Launches of a 1 ms benchmark, the first at its place in time."""
    launches = []
    own = next((scale for end, scale in FIXED_WORK.items() if kind.endswith(end)), None)
    clock = rng.normal(0, CLOCK, rounds) if kind.endswith("tells") else np.zeros(rounds)
    spacing = 1 if kind.endswith("base before head") else 2
    for round_, level in enumerate(NOISE[kind](rng, rounds) + clock + drift + math.log1p(change)):
        samples = 1e6 * np.exp(level + np.abs(rng.normal(0, 0.0 if kind == "constant" else 0.01, 10)))
        if kind == "quantised clock":
            samples = np.maximum(np.round(samples / TICK_NS), 1) * TICK_NS
        start_us = SPACING_US * (first + spacing * round_)
        launch = PairLaunch(round=round_, start_us=start_us, samples=samples.tolist())
        if own is not None:
            canary = 1.5e5 * math.exp(clock[round_] + rng.normal(0, own))
            launch = msgspec.structs.replace(launch, cpu=launch.samples, nivcsw=[0] * 10, canary=canary)
        launches.append(launch)
    return Side(launches=launches)


def rates(task):
    """Return a kind's row: percent called slower, faster, pass without a change, and slower with one."""
    kind, rounds, change, count = task
    rng = np.random.default_rng(11)
    found = {"regression": 0, "improvement": 0, "pass": 0, "inconclusive": 0}
    for _ in range(count):
        # Both sides of a round run side by side: the machine's drift is common to them.
        common = np.zeros((rounds, 2))
        first = (0, 1)
        if kind == "drifting":
            common += np.cumsum(rng.normal(0, 0.02, rounds))[:, None]
        if kind.endswith("in common of a round"):
            common += rng.normal(0, 0.04, rounds)[:, None]
        if kind.endswith("base before head"):
            common = (0.01 * np.arange(2 * rounds)).reshape(2, rounds).T
            first = (0, rounds)
        if kind.endswith("in time"):
            common = rng.permuted(autocorrelated(rng, 2 * rounds, 0.7, 0.02).reshape(rounds, 2), axis=1)
        a, b = (
            side(rng, kind, rounds, by, common[:, column], first[column]) for column, by in enumerate((0.0, change))
        )
        found[decide(Pair(id="x", a=a, b=b)).verdict] += 1
    return task, {verdict: 100 * n / count for verdict, n in found.items()}


def ours(values):
    """Return (index, ratio) of each change point of the site."""
    return [(change.index, change.ratio) for change in change_points(values)]


def asv_steps(values):
    """Return (index, ratio) of each step that asv draws into its graphs."""
    steps = detect_steps(values)
    return [(right[0], right[2] / left[2]) for left, right in itertools.pairwise(steps)]


RULES = {"ours": ours, "asv": asv_steps}


def history(task):
    """Return false changes a 100 stable commits, and the share of 10 % steps found within 5 commits, in percent."""
    rule, kind, count = task
    rng = np.random.default_rng(12)
    changes = RULES[rule]
    false = sum(len(changes(np.exp(HISTORY[kind](rng, 100)).tolist())) for _ in range(count))
    hits = 0
    for _ in range(count):
        y = HISTORY[kind](rng, 105)
        y[100:] += math.log1p(0.1)
        seen = [change for m in (3, 4, 5) for change in changes(np.exp(y[: 100 + m]).tolist())]
        hits += any(abs(index - 100) <= 2 and ratio > 1.03 for index, ratio in seen)
    return false / count, 100 * hits / count


def several(task):
    """Return the percentage found of changes in lines of 2 to 8 of them, and false ones for a hundred true ones.

    Levels are 10 to 79 points long and 8 to 30 % apart, up or down; a change is found when it is placed within three.
    """
    rule, scale, coefficient, count = task
    found = false = true = 0
    for seed in range(count):
        rng = np.random.default_rng(seed)
        changes = rng.integers(2, 9)
        lengths = rng.integers(10, 80, changes + 1)
        levels = np.cumsum(rng.choice([-1, 1], changes + 1) * rng.uniform(0.08, 0.3, changes + 1))
        y = np.repeat(levels, lengths) + autocorrelated(rng, int(lengths.sum()), coefficient, scale)
        places = np.cumsum(lengths)[:-1]
        indices = [index for index, _ in RULES[rule](np.exp(y).tolist())]
        true += len(places)
        found += sum(any(abs(index - place) <= 3 for index in indices) for place in places)
        false += sum(all(abs(index - place) > 3 for place in places) for index in indices)
    return 100 * found / true, 100 * false / true


def table(pool, title, rows, measure, tasks, cell):
    """Print a Markdown table: a row for each kind of noise, a cell for each rule."""
    print(f"\n| {title} | " + " | ".join(RULES) + " |\n|---|" + "---|" * len(RULES))
    values = iter(pool.map(measure, tasks, chunksize=1))
    for row in rows:
        print(f"| {row} | " + " | ".join(cell.format(*next(values)) for _ in RULES) + " |")


def main():
    """Simulate and print Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--series", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    tasks = [(kind, rounds, 0.0, arguments.pairs) for kind in NOISE for rounds in ROUNDS]
    tasks += [(kind, 5, 0.1, max(50, arguments.pairs // 5)) for kind in NOISE]
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        found = dict(pool.map(rates, tasks, chunksize=1))
        print("| noise | " + " | ".join(f"{rounds} rounds" for rounds in ROUNDS) + " | +10 % found in 5 |")
        print("|---|" + "---|" * (len(ROUNDS) + 1))
        for kind in NOISE:
            cells = [f"{found[kind, rounds, 0.0, arguments.pairs]['regression']:.1f} %" for rounds in ROUNDS]
            power = found[kind, 5, 0.1, max(50, arguments.pairs // 5)]["regression"]
            print(f"| {kind} | " + " | ".join(cells) + f" | {power:.0f} % |")
        table(
            pool,
            "noise of a history: false changes in 100 stable commits, +10 % found within 5",
            HISTORY,
            history,
            [(rule, kind, arguments.series) for kind in HISTORY for rule in RULES],
            "{:.3f}, {:.0f} %",
        )
        noises = [(scale, coefficient) for scale in (0.01, 0.03) for coefficient in (0.0, 0.4)]
        table(
            pool,
            "several changes in a line, noise: found, false ones for 100",
            [f"{100 * scale:g} %, autocorrelated ({coefficient:g})" for scale, coefficient in noises],
            several,
            [(rule, *noise, arguments.series) for noise in noises for rule in RULES],
            "{:.1f} %, {:.1f}",
        )


if __name__ == "__main__":
    main()
