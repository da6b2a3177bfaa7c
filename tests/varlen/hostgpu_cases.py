"""Run in a process whose HIP runtime is the stand-in GPU: `attention_varlen` on the gpu backend, each sequence judged.

``python -m tests.varlen.hostgpu_cases DTYPE CASE …`` prints one JSON object: case -> what is wrong, [] if nothing.
"""

import json
import sys

from .problems import problem

# Rows on both sides of a tile, no rows, no keys, one row; heads share K and V.
PROMPTS = [(5, 70), (0, 9), (33, 33), (1, 200), (7, 0), (70, 17)]
STEPS = [(1, 700), (2, 90), (0, 30), (3, 0), (1, 33)]
OPTIONS = {"window": (20, 3), "sinks": True, "alibi": True, "softcap": 5.0, "scale": 0.3}
CASES = {
    "packed": {"lengths": PROMPTS, "causal": True, "unused": 3},
    "packed-all-keys": {"lengths": PROMPTS},
    "whole-tiles": {"lengths": PROMPTS, "causal": True, "page_size": 192, "shared": 1},
    "small-pages": {"lengths": PROMPTS, "causal": True, "page_size": 24, "shared": 1},
    "options": {"lengths": PROMPTS, "page_size": 16, "dim": 40, "dim_v": 56, **OPTIONS},
    "decode-packed": {"lengths": STEPS, "causal": True},
    "decode-pages": {"lengths": STEPS, "causal": True, "page_size": 64, "shared": 1},
    "decode-small-pages": {
        "lengths": STEPS, "page_size": 24, "sinks": True, "window": (600, 0), "alibi": True, "own_slopes": True,
    },
    # The last entry of the table is the last page's: a tile behind it has none.
    "full-table": {"lengths": [(5, 40), (70, 96)], "causal": True, "page_size": 24, "spare": 0},
    # The splits are planned for the 512 keys from 192 on; those of the other from 129 on reach into one more tile.
    "decode-window": {"lengths": [(1, 704), (1, 641)], "window": (511, 0)},
    "decode-uneven": {"lengths": STEPS, "causal": True, "page_size": 16, "dim": 63, "dim_v": 33},
    "chunks": {"lengths": [(20, 1100), (17, 530), (1, 900)], "causal": True, "page_size": 16},
}  # fmt: skip


def main(dtype, *names):
    """Print the cases' faults."""
    faults = {}
    for name in names:
        case = problem(**{"dtype": dtype, **CASES[name]})
        faults[name] = case.faults("gpu", *case.attend("gpu"))
    print(json.dumps(faults))


if __name__ == "__main__":
    main(*sys.argv[1:])
