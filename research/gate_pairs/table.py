"""Compares gates on the same recorded pairs: false alarms on identical code, and slowdowns found.

    python research/gate_pairs/table.py out/gate-pairs/launches.jsonl --out research/gate_pairs/unseen.json

Each rule is applied as its tool applies it to the samples of both sides; ours is the decision that ``rocattn gate run``
and ``rocattn gate judge`` make. A pull request is a set of seven kinds of one block: red when any of them is.
"""

import argparse
import itertools
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from statistics import fmean, median

import msgspec
from asv._stats import is_different
from scipy.stats import mannwhitneyu

sys.path.insert(0, str(Path(__file__).resolve().parent))
from pairs import pairs, read
from record import SIDES

from rocattn_profiling.gate.rule.pairs import Pair
from rocattn_profiling.gate.rule.suite import decide


def pooled(side):
    """All samples of a side, as every tool but ours takes them."""
    return [value for launch in side["launches"] for value in launch["samples"]]


def asv(factor):
    """``asv continuous``: Mann-Whitney p < 0.002 on pooled samples and a ratio of medians above the factor."""

    def rule(pair):
        a, b = pooled(pair["a"]), pooled(pair["b"])
        return median(b) > median(a) * factor and is_different(a, b, None, None)

    return rule


def smallest(pair):
    """``pytest-benchmark --benchmark-compare-fail=min:5%``."""
    return min(pooled(pair["b"])) > 1.05 * min(pooled(pair["a"]))


def mean_five(pair):
    """``pytest-benchmark --benchmark-compare-fail=mean:5%``."""
    return fmean(pooled(pair["b"])) > 1.05 * fmean(pooled(pair["a"]))


def mann_whitney(pair):
    """Google Benchmark's compare.py and benchstat on pooled samples: two-sided p < 0.05, and slower."""
    a, b = pooled(pair["a"]), pooled(pair["b"])
    return median(b) > median(a) and mannwhitneyu(a, b).pvalue < 0.05


def plain_median(pair):
    """A ratio of medians above 1.05."""
    return median(pooled(pair["b"])) > 1.05 * median(pooled(pair["a"]))


OTHERS = {
    "asv continuous (factor 1.1)": asv(1.1),
    "asv continuous (factor 1.05)": asv(1.05),
    "pytest-benchmark min:5%": smallest,
    "pytest-benchmark mean:5%": mean_five,
    "pooled Mann-Whitney, p < 0.05": mann_whitney,
    "median more than 5 % up": plain_median,
}


def without(pair, columns):
    """The same pair as a tool that does not record these columns has it."""
    sides = {
        side: pair[side]
        | {"launches": [{k: v for k, v in x.items() if k not in columns} for x in pair[side]["launches"]]}
        for side in "ab"
    }
    return {"id": pair["id"], **sides}


OURS = {  # rule -> what the launches do not have, and which pairs
    "rocattn gate": (set(), {}),
    "rocattn gate, no fixed work": ({"canary"}, {}),
    "rocattn gate, wall time alone": ({"canary", "cpu", "nivcsw"}, {}),
    "rocattn gate, slow launches repeated": (set(), {"repeats": True}),
    "rocattn gate, repeated, earlier sessions known": (set(), {"repeats": True, "history": True}),
}


def count(path, part):
    """Return what each rule says: {(rule, rounds): {(base, head, block, first): {kind: verdict}}}, and rounds used."""
    verdicts = defaultdict(lambda: defaultdict(dict))
    used = defaultdict(list)
    for name, (columns, which) in OURS.items():
        for facts, pair in pairs(path, part, **which):
            found = decide(msgspec.convert(without(pair, columns), Pair))
            verdicts[name, facts["rounds"]][place_of(facts)][facts["kind"]] = found.verdict
            used[name, facts["rounds"], SIDES[facts["base"]], SIDES[facts["head"]]].append(found.rounds_used)
    for facts, pair in pairs(path, part):
        if not SIDES[facts["base"]]:
            for name, rule in OTHERS.items():
                verdict = "regression" if rule(pair) else "pass"
                verdicts[name, facts["rounds"]][place_of(facts)][facts["kind"]] = verdict
    return verdicts, used


def place_of(facts):
    """Return what the benchmarks of one pull request have in common."""
    return facts["base"], facts["head"], facts["block"], facts["first"]


def rates(by_place, *, ours):
    """Return the figures of one rule at one budget, in percent; of ours also those of each kind."""
    counted = defaultdict(Counter)
    kinds = defaultdict(Counter)
    red = prs = 0
    for (base, head, _, _), by_kind in by_place.items():
        change = SIDES[head] - SIDES[base]
        counted[change].update(by_kind.values())
        for kind, verdict in by_kind.items():
            kinds[change, kind][verdict] += 1
        if not change:
            for seven in itertools.combinations(by_kind.values(), 7):
                prs += 1
                red += "regression" in seven
    share = {
        change: {verdict: round(100 * n / by.total(), 2) for verdict, n in by.items()} | {"pairs": by.total()}
        for change, by in sorted(counted.items())
    }
    found = {
        f"{change:+d} {kind}": round(100 * by["regression"] / by.total(), 1)
        for (change, kind), by in sorted(kinds.items())
        if change >= 0
    }
    wrong = sum(by["improvement" if change > 0 else "regression"] for change, by in counted.items() if change)
    return {
        "verdicts_pct": share, "red_prs_pct": round(100 * red / prs, 2) if prs else None, "prs": prs,
        "sign_errors": wrong, "regressions_by_kind_pct": found if ours else {},
    }  # fmt: skip


def markdown(summary):
    """Return the table of the docs."""
    changes = [2, 3, 5, 10, 25]
    lines = [
        "| rule | rounds | false alarms | red pull requests | " + " | ".join(f"+{c} %" for c in changes) + " |",
        "|---|---|---|---|" + "---|" * len(changes),
    ]
    for row in summary["rules"]:
        share = row["verdicts_pct"]
        power = [f"{share[c].get('regression', 0.0):.0f}" for c in changes]
        red = "-" if row["red_prs_pct"] is None else f"{row['red_prs_pct']:.1f} %"
        cells = [row["rule"], f"{row['rounds_used']:.1f}", f"{share[0].get('regression', 0.0):.2f} %", red, *power]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    """Count, write the summary, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("launches", type=Path)
    parser.add_argument("--part", choices=["choosing", "unseen", "all"], default="unseen")
    parser.add_argument("--out", type=Path, required=True, help="the summary, as JSON")
    arguments = parser.parse_args()
    verdicts, used = count(arguments.launches, arguments.part)
    recorded, blocks = read(arguments.launches, arguments.part)
    rules = []
    for (rule, rounds), by_place in sorted(
        verdicts.items(), key=lambda item: (item[0][1], item[0][0].startswith("rocattn"))
    ):
        same = used.get((rule, rounds, 0, 0))
        rules.append(
            {
                "rule": rule,
                "rounds": rounds,
                "rounds_used": fmean(same) if same else rounds,
                **rates(by_place, ours=rule.startswith("rocattn")),
            }
        )
    loads = [load for facts in blocks.values() for load in facts["load"]]
    summary = {
        "part": arguments.part, "kinds": sorted({kind for kind, _ in recorded}), "blocks": len(blocks),
        "blocks_with_bursts": sum(facts["bursts"] for facts in blocks.values()),
        "load_median": round(median(loads), 1), "load_max": round(max(loads), 1),
        "steal_ticks": sum(facts["steal"] for facts in blocks.values()), "rules": rules,
    }  # fmt: skip
    arguments.out.write_text(json.dumps(summary, indent=1) + "\n")
    print(markdown(summary))


if __name__ == "__main__":
    main()
