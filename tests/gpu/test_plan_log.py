"""The plan log names the attention problem behind each dispatch, without the program's help."""

import numpy as np
import pandas as pd

from rocattn.gpu.plan_log import VARIABLE
from rocattn_profiling.profile.metrics.attribution import attribute, read_plans

CODE = """
import json, numpy as np, rocattn
def call(seq, **options):
    q, k, v = (np.ones((1, seq, 2, 8), np.float16) for _ in "qkv")
    rocattn.attention(q, k, v, backend="gpu", **options)
call(5); call(9, causal=True); call(5); call(5)
print(json.dumps("done"))
"""


FULL = """
import json, numpy as np, rocattn
q = np.ones((1, 5, 2, 8), np.float16)
try:
    rocattn.attention(q, q, q, backend="gpu")
except rocattn.RocattnError as error:
    print(json.dumps(str(error)))
"""


def test_each_run_of_a_plan_is_in_the_log_in_order(hostgpu, tmp_path):
    """Two plans, four runs; the problems are those of the calls, and a profile's launches find them."""
    log = tmp_path / "plans.jsonl"
    assert hostgpu(CODE, "gfx1100", **{VARIABLE: str(log)}) == "done"
    ran = read_plans([log])
    assert [(plan.config["seq_q"], plan.config["causal"], times) for plan, times in ran] == [
        (5, False, 1), (9, True, 1), (5, False, 2),
    ]  # fmt: skip
    launch = ran[1][0].launches[0]
    block = int(np.prod(launch.block))
    table = pd.DataFrame(
        [(launch.symbol, int(np.prod(launch.grid)) * block, block, 0)], columns=["kernel", "grid", "block", "ordinal"]
    )
    (label,) = attribute(table, ran).labels
    assert "q9-k9" in label
    assert "causal" in label


def test_a_full_disk_is_told_as_such(hostgpu):
    """The profiled program ends in one line, not in the OSError of a write that it knows nothing of."""
    told = hostgpu(FULL, "gfx1100", **{VARIABLE: "/dev/full"})
    assert told == f"cannot write the plan log /dev/full ({VARIABLE}): No space left on device"
