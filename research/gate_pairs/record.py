"""Records real pairs for judging gates: identical code and true slowdowns, launches interleaved in random order.

    python research/gate_pairs/record.py --out out/gate-pairs/launches.jsonl --minutes 45

A block is 20 rounds. In a round every side runs once in a fresh process per group of kinds, in random order: three
sides of identical code and one for each true slowdown. A launch of which a kind met a slow spell of the machine, by its
fixed work, is launched again after the others, at most twice, as ``rocattn gate run`` does it. Half of the blocks, by
seed, run beside bursts of background load of this script's own; whatever else the machine does is recorded as load and
steal. Which blocks are for choosing a method and which stay unseen until it is chosen is drawn from the same seed
before anything is measured. A run that is stopped goes on where it was; ``pairs.py`` makes pairs of what is there.
"""

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

from rocattn_profiling.asv.launch import layout_bytes
from rocattn_profiling.gate.measure import REPEATS
from rocattn_profiling.gate.rule.constants import SLOW
from rocattn_profiling.gate.rule.launches import usual_canary

HERE = Path(__file__).resolve().parent
ROUNDS = 20
KNOWN = 8  # times of a kind's fixed work without which it is not known what is usual
SIDES = {"same0": 0, "same1": 0, "same2": 0, "slow2": 2, "slow3": 3, "slow5": 5, "slow10": 10, "slow25": 25}
GROUPS = ("python", "numpy")
BURST = """
import os, random, sys, time
source, parent = random.Random(int(sys.argv[1])), os.getppid()
while os.getppid() == parent:
    until = time.monotonic() + source.expovariate(1 / 1.5)
    while time.monotonic() < until:
        sum(range(1000))
    time.sleep(source.expovariate(1 / 3.0))
"""


def plan_of(block, seed):
    """Return what a block is: (part, bursts). Every four blocks hold each combination once."""
    combinations = [(part, bursts) for part in ("choosing", "unseen") for bursts in (False, True)]
    random.Random(f"{seed} plan {block // 4}").shuffle(combinations)  # noqa: S311 - an order
    return combinations[block % 4]


def steal_ticks():
    """Return the time other machines took from this one, in clock ticks."""
    return int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8])


@contextmanager
def background(seed, active):
    """Run bursts of load beside the block: 1.5 s on, 3 s off, on average."""
    if not active:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", BURST, str(seed)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def launch(group, slower_pct, seed, padding):
    """Run one process, with so many more bytes in its environment, and return what it measured."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": str(seed)}
    environment["ROCATTN_LAYOUT"] = "x" * padding
    command = [sys.executable, "-P", "-s", str(HERE / "kinds.py"), group, f"{slower_pct:02}", str(seed)]
    return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120).stdout)


class Recording:
    """Launches in a file, and how long the fixed work of each kind took so far."""

    def __init__(self, out, seed):
        """Read what was recorded before."""
        self.out, self.seed = out, seed
        self.rows, self.canaries = {}, defaultdict(list)
        for line in out.read_text().splitlines() if out.exists() else ():
            if line.endswith("}"):  # else it was cut off
                self.keep(json.loads(line))

    def keep(self, row):
        """Count a launch as made."""
        self.rows[row["block"], row["round"], row["group"], row["side"], row["repeat"]] = row
        for kind, launch in row["kinds"].items():
            self.canaries[kind].append(launch["canary"])

    def launch(self, file, place, pos, facts):
        """Make one launch, unless it was made before."""
        if place in self.rows:
            return
        block, round_, group, side, repeat = place
        # The same in all sides of a round: hash seed, order of kinds and layout are no difference.
        shared = random.Random(f"{self.seed} {block} {round_}").getrandbits(32)  # noqa: S311 - a seed
        first_layout = random.Random(f"{self.seed} {block} {group} layout").getrandbits(16)  # noqa: S311 - a start
        steal = steal_ticks()
        found = launch(group, SIDES[side], shared, layout_bytes(first_layout + round_))
        row = {"block": block, **facts, "round": round_, "group": group, "side": side, "repeat": repeat, "pos": pos}
        row |= {"load": os.getloadavg()[0], "steal": steal_ticks() - steal, "kinds": found}
        file.write(json.dumps(row) + "\n")
        file.flush()
        self.keep(row)

    def met_slow_spell(self, place):
        """Whether a kind of a launch did, by its fixed work."""
        found = self.rows[place]["kinds"].items()
        known = [(x["canary"], self.canaries[kind]) for kind, x in found if len(self.canaries[kind]) >= KNOWN]
        return any(canary > SLOW * usual_canary(before) for canary, before in known)


def record(out, seed, until):
    """Append launches to a file until the time is over."""
    recording, block = Recording(out, seed), 0
    while time.monotonic() < until:
        part, bursts = plan_of(block, seed)
        with out.open("a") as file, background(seed + block, bursts):
            for round_, group in itertools.product(range(ROUNDS), GROUPS):
                order = list(SIDES)
                random.Random(f"{seed} {block} {round_} {group}").shuffle(order)  # noqa: S311 - an order
                to_do = order
                for repeat in range(1 + REPEATS):
                    for side in to_do:
                        if time.monotonic() > until:
                            return
                        place = block, round_, group, side, repeat
                        recording.launch(file, place, order.index(side), {"part": part, "bursts": bursts})
                    to_do = [x for x in to_do if recording.met_slow_spell((block, round_, group, x, repeat))]
        block += 1
        print(f"block {block} done, load {os.getloadavg()[0]:.1f}", file=sys.stderr)


def main():
    """Read the command line and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=45.0)
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    record(arguments.out, arguments.seed, time.monotonic() + 60 * arguments.minutes)


if __name__ == "__main__":
    main()
