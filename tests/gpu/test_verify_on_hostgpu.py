"""`rocattn verify` on the stand-in GPU: cases that its kernels must pass, and a command that says which GPU it was."""

import json

import pytest

CASES = (
    "scales/b1-h4x2-q67-k131-d64-lse-float16-x10000",  # scores of 1e8, whose spacing is more than P's range
    "scales/b1-h4x2-q67-k131-d64-lse-float16-rising",
    "stability/b2-h4x2-q1-k2053-d64-lse-float32-flat-1e10",
    "stability/b1-h4x2-q67-k131-d64-causal-bwd-float32-stepped-1e20",
    "stability/b1-h4x2-q67-k131-d64-sinks-bwd-bfloat16-flat-1e10",
    "containment/b1-h4x2-q67-k131-d64-causal-lse-float16-hidden-nan",
    "positions/b2-h4x2-q67-k61-d64-lse-float16-positions",
    "determinism/b1-h4x2-q131-k131-d64-causal-lse-float16-normal",
)
CODE = """
import json, sys
from rocattn_profiling.cli import main
out, names = sys.argv[1], sys.argv[2].split()
found = [main(["verify", "--backend", "gpu", "--case", name, "--out", f"{out}/{at}"]) for at, name in enumerate(names)]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_hard_cases_are_right_on_the_stand_in(hostgpu, tmp_path):
    """Huge, equal and rising scores, hidden NaN, one key a row, and the same bits from several threads."""
    assert hostgpu(CODE, "gfx1100", str(tmp_path), " ".join(CASES)) == [0] * len(CASES)
    report = json.loads((tmp_path / "0" / "verify.json").read_text())
    assert (report["stand_ins"], report["architectures"]) == (["gpu"], {"gpu": "gfx1100"})
    assert "the stand-in GPU: not a GPU" in (tmp_path / "0" / "index.html").read_text()


def test_a_failure_there_is_repeated_with_the_same_runtime(hostgpu, tmp_path):
    """On gfx90a float16 subnormals are taken for 0: that is named, and the command has the runtime and its target."""
    name = "scales/b1-h4x2-q67-k131-d64-lse-float16-subnormal"
    assert hostgpu(CODE, "gfx90a", str(tmp_path), name) == [1]
    (failure,) = json.loads((tmp_path / "0" / "verify.json").read_text())["failures"]
    assert failure["symptom"] == "subnormal elements of q, k and v are treated as 0"
    setting = "ROCM_PATH=$(rocattn doctor --hostgpu) ROCATTN_HOSTGPU_ARCH=gfx90a"
    assert failure["command"] == f"{setting} rocattn verify --case {name} --backend gpu"
