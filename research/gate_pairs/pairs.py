"""Makes pairs of recorded launches, in the format that ``rocattn gate judge`` reads.

    python research/gate_pairs/pairs.py out/gate-pairs/launches.jsonl --part unseen --out out/gate-pairs/pairs.jsonl

A pair's id says what it is: kind, block, background, base side, head side, first round, rounds.
"""

import argparse
import itertools
import json
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from record import ROUNDS, SIDES

from rocattn_profiling.gate.rule.constants import SESSIONS, SLOW
from rocattn_profiling.gate.rule.launches import usual_canary

SAME = [side for side, slower in SIDES.items() if not slower]
WINDOW = 5


def read(path, part, *, repeats=False):
    """Return {(kind, block): {side: [launch, …]}} of the rounds that every side finished, and {block: facts}.

    Args:
        path: What ``record.py`` wrote.
        part: Of it.
        repeats: Whether a launch that met a slow spell gives way to its repeats (`_kept`).
    """
    found, blocks = defaultdict(lambda: defaultdict(lambda: defaultdict(list))), {}
    for line in path.read_text().splitlines():
        if not line.endswith("}"):
            continue  # cut off when the recording was stopped
        row = json.loads(line)
        if part not in {row["part"], "all"}:
            continue
        facts = blocks.setdefault(row["block"], {"bursts": row["bursts"], "load": [], "steal": 0})
        facts["load"].append(row["load"])
        facts["steal"] += row["steal"]
        for kind, launch in row["kinds"].items():
            kept = {key: launch[key] for key in ("start_us", "samples", "cpu", "nivcsw", "canary")}
            told = {"round": row["round"], "pos": row["pos"], **kept, "number": launch["number"]}
            found[kind, row["block"]][row["side"]][row["round"]].append(told)
    whole = {}
    for key, sides in found.items():
        rounds = sorted(set.intersection(*(set(sides[side]) for side in SIDES)))
        limit = SLOW * usual_canary([x["canary"] for tries in sides.values() for made in tries.values() for x in made])
        whole[key] = {
            side: [_kept(sides[side][round_] if repeats else sides[side][round_][:1], limit) for round_ in rounds]
            for side in SIDES
        }
    return whole, blocks


def _kept(tries, limit):
    """Return the first launch whose fixed work took no longer than the limit, else the one of least."""
    fast = next((launch for launch in tries if launch["canary"] <= limit), None)
    return fast or min(tries, key=lambda launch: launch["canary"])


def earlier(recorded, kind, block):
    """Return the newest sessions of identical code that were recorded before a block, as a pair's history."""
    before = [b for k, b in recorded if k == kind and b < block]
    sessions = [recorded[kind, b][side] for b in sorted(before) for side in SAME]
    return [[{key: value for key, value in x.items() if key != "number"} for x in s] for s in sessions[-SESSIONS:]]


def side_of(kind, name, launches):
    """Return one side as ``gate judge`` reads it."""
    rows = [{key: value for key, value in launch.items() if key != "number"} for launch in launches]
    return {"benchmark": kind, "side": name, "unit": "ns", "number": launches[0]["number"], "launches": rows}


def pairs(path, part, *, repeats=False, history=False):
    """Go through (facts, pair): in windows of 5 rounds, and whole blocks of 20; slowdowns in both directions.

    Args:
        path: What ``record.py`` wrote.
        part: Of it.
        repeats: As in `read`.
        history: Pairs know the blocks before theirs; those of the first block are left out.
    """
    recorded, _ = read(path, part, repeats=repeats)
    for (kind, block), sides in recorded.items():
        known = earlier(recorded, kind, block) if history else []
        if history and not known:
            continue
        couples = list(itertools.permutations(SAME, 2))
        for base, head in itertools.product(SAME, (side for side in SIDES if SIDES[side])):
            couples += [(base, head), (head, base)]
        for base, head in couples:
            count = len(sides[base])
            windows = [(first, WINDOW) for first in range(0, count - WINDOW + 1, WINDOW)]
            windows += [(0, ROUNDS)] if count == ROUNDS else []
            for first, rounds in windows:
                facts = {"kind": kind, "block": block, "base": base, "head": head, "first": first, "rounds": rounds}
                a, b = (side_of(kind, name, sides[name][first : first + rounds]) for name in (base, head))
                told = a | {"history": known} if known else a
                yield facts, {"id": "/".join(str(value) for value in facts.values()), "a": told, "b": b}


def main():
    """Write the pairs of a part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("launches", type=Path)
    parser.add_argument("--part", choices=["choosing", "unseen", "all"], default="all")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with arguments.out.open("w") as file:
        for _, pair in pairs(arguments.launches, arguments.part):
            file.write(json.dumps(pair) + "\n")


if __name__ == "__main__":
    main()
