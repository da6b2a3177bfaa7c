"""What the best test could find on recorded pairs: the most powerful one, told what no gate knows beforehand.

    python research/gate_pairs/limit.py out/gate-pairs/launches.jsonl

For each kind it is told the distribution of the launches of identical code (a kernel density of this very recording),
how much of the machine's speed the kind shares, and the size of the change that it has to find. What it is not told is
the code's level, which it integrates out: the likelihood ratio of that is the most powerful invariant test (Lehmann and
Romano, Testing Statistical Hypotheses, chapter 6). Its threshold is the lowest that keeps, on the same pairs, to the
false alarms and red pull requests that are allowed. A gate that reads these launches by their low ends cannot do
better; what it finds beside this says how much its own ignorance of the noise costs.

Beside it, by the same thresholds: a moderated t test on the lowest 60 % of the launches (Smyth 2004), without the fixed
work, which is what a gate of launches comes to when it is written down plainly.
"""

import argparse
import itertools
import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from pairs import SAME, WINDOW, read
from record import ROUNDS, SIDES
from scipy.special import logsumexp
from table import rates

from rocattn_profiling.measure.stats import low_quantile

LOW_SHARE, PRIOR_NOISE, PRIOR_FREEDOM = 0.6, 0.02, 4  # of the moderated t
FALSE_PCT, RED_PCT = 0.5, 2.0  # allowed, of unchanged pairs and of pull requests
STEP, REACH = 0.002, 1.5  # of the density's grid, in logs
SLOPES = np.arange(0.0, 1.45, 0.1)  # share of the fixed work's slowness that is taken out
TAIL = 0.01  # of the density is Cauchy's, so that no launch is impossible
GRID = np.arange(-REACH, REACH, STEP)
LEVELS = np.arange(-0.4, 0.4, 2 * STEP)


def density(residuals):
    """Return the log density of a kind's launches around their level on the grid, and how well it foresees them."""
    width = float(np.quantile(np.abs(residuals), 0.68))
    bandwidth = max(STEP, 0.9 * width * len(residuals) ** -0.2)
    kernel = np.exp(-0.5 * ((GRID[:, None] - residuals) / bandwidth) ** 2).mean(axis=1)
    cauchy = width / (math.pi * (GRID**2 + width**2))
    found = np.log((1 - TAIL) * kernel / (bandwidth * math.sqrt(2 * math.pi)) + TAIL * cauchy)
    return found, float(found[_place(residuals)].mean())


def _place(values):
    return np.clip(np.rint((values + REACH) / STEP), 0, len(GRID) - 1).astype(int)


def statistic(logs, base, head, change):
    """Return the log likelihood ratio of a change against none, the level integrated out."""
    middle = float(np.median([*base, *head]))

    def of(shift):
        values = np.concatenate([base, head - shift]) - middle
        return logsumexp(logs[_place(values[:, None] - LEVELS)].sum(axis=0))

    return of(change) - of(0.0)


def moderated_t(base, head):
    """Return the t of two sides' lowest launches, their variance shrunk towards that of a usual noise."""
    low = [np.sort(side)[: math.ceil(LOW_SHARE * len(side))] for side in (base, head)]
    count = len(low[0])
    spread = sum(float(((side - side.mean()) ** 2).sum()) for side in low) + PRIOR_FREEDOM * PRIOR_NOISE**2
    error = math.sqrt(spread / (2 * count - 2 + PRIOR_FREEDOM) * 2 / count)
    return float(low[1].mean() - low[0].mean()) / error


def locations(recorded):
    """Return {kind: {(block, side): (low ends in CPU time, fixed work)}}, in logs."""
    found = defaultdict(dict)
    for (kind, block), sides in recorded.items():
        for side, launches in sides.items():
            ends = np.log([low_quantile(launch["cpu"]) for launch in launches])
            found[kind][block, side] = ends, np.log([launch["canary"] for launch in launches])
    return found


def told(of_kind):
    """Return (slope, log density) of a kind: the slope that makes its identical launches most foreseeable."""
    windows = []
    for block in sorted({block for block, _ in of_kind}):
        sides = [of_kind[block, side] for side in SAME]
        for first in range(0, min(len(ends) for ends, _ in sides) - WINDOW + 1, WINDOW):
            part = slice(first, first + WINDOW)
            windows.append(tuple(np.concatenate([side[column][part] for side in sides]) for column in (0, 1)))
    tried = []
    for slope in SLOPES:
        left = [ends - slope * fixed for ends, fixed in windows]
        logs, foreseen = density(np.concatenate([values - np.median(values) for values in left]))
        tried.append((foreseen, slope, logs))
    _, slope, logs = max(tried, key=lambda row: row[0])
    return slope, logs


def statistics_of(of_kind, head_change, rounds, *, plain):
    """Yield (place, statistic) of unchanged pairs of a kind and of those with the change in percent."""
    slope, logs = (0.0, None) if plain else told(of_kind)
    couples = list(itertools.permutations(SAME, 2))
    couples += itertools.product(SAME, [side for side, slower in SIDES.items() if slower == head_change])
    for block in sorted({block for block, _ in of_kind}):
        for base, head in couples:
            a, b = (of_kind[block, side][0] - slope * of_kind[block, side][1] for side in (base, head))
            count = len(a)
            starts = range(0, count - WINDOW + 1, WINDOW) if rounds == WINDOW else [0] * (count == ROUNDS)
            for first in starts:
                part = slice(first, first + rounds)
                sides = a[part], b[part]
                found = moderated_t(*sides) if plain else statistic(logs, *sides, math.log1p(head_change / 100))
                yield (base, head, block, first), found


def limit(found, head_change, rounds, *, plain=False):
    """Return the figures of `table.rates` at the lowest threshold that keeps to what is allowed."""
    ratios = defaultdict(dict)
    for kind, of_kind in found.items():
        for place, ratio in statistics_of(of_kind, head_change, rounds, plain=plain):
            ratios[place][kind] = ratio
    unchanged = sorted((r for p, by in ratios.items() if not SIDES[p[1]] for r in by.values()), reverse=True)
    allowed = {}
    for threshold in unchanged[: 1 + int(FALSE_PCT / 100 * len(unchanged))]:
        verdicts = {
            place: {kind: "regression" if ratio > threshold else "pass" for kind, ratio in by.items()}
            for place, by in ratios.items()
        }
        row = rates(verdicts, ours=True)
        if allowed and (row["red_prs_pct"] or 0.0) > RED_PCT:
            break
        allowed = row
    return allowed


def main():
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("launches", type=Path)
    parser.add_argument("--part", choices=["choosing", "unseen", "all"], default="all")
    parser.add_argument("--repeats", action="store_true", help="launches that met a slow spell are repeated")
    arguments = parser.parse_args()
    recorded, _ = read(arguments.launches, arguments.part, repeats=arguments.repeats)
    found = locations(recorded)
    print(
        "| test | rounds | change | false alarms | red pull requests | found | by kind |\n|---|---|---|---|---|---|---|"
    )
    for plain, (rounds, change) in itertools.product((False, True), ((5, 5), (5, 10), (5, 25), (20, 5))):
        row = limit(found, change, rounds, plain=plain)
        share = row["verdicts_pct"]
        power = share[change].get("regression", 0.0)
        kinds = ", ".join(
            f"{kind.split(' ', 1)[1]} {pct:.0f}"
            for kind, pct in row["regressions_by_kind_pct"].items()
            if kind.startswith(f"{change:+d} ")
        )
        name, false = "moderated t" if plain else "at most", share[0].get("regression", 0.0)
        red = row["red_prs_pct"] or 0.0
        print(
            f"| {name} | {rounds} | {change:+d} % | {false:.2f} % | {red:.1f} % | {power:.1f} % | {kinds} |", flush=True
        )


if __name__ == "__main__":
    main()
