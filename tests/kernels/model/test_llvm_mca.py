"""llvm-mca's estimate of a loop: read from a program that plays it, and from the real one where it is installed."""

import json
import stat

import pytest

from rocattn_profiling.kernels.model.llvm_mca import ITERATIONS, McaError, estimate
from rocattn_profiling.kernels.read.assembly import Instruction
from rocattn_profiling.kernels.read.disassembly import find_tools

from ...programs import python_program

BODY = [
    Instruction("v_mfma_f32_32x32x8f16", "a[0:15], v[0:1], v[2:3], a[0:15]", 1),
    *[Instruction("v_add_f32_e32", "v0, v1, v2", 2)] * 3,
    Instruction("s_cbranch_scc1", ".LBB0_1", 5),
]
REPORT = {
    "CodeRegions": [{
        "ResourcePressureView": {"ResourcePressureInfo": [
            {"InstructionIndex": 0, "ResourceIndex": 1, "ResourceUsage": 16},
            {"InstructionIndex": 4, "ResourceIndex": 0, "ResourceUsage": 3},
            {"InstructionIndex": 4, "ResourceIndex": 1, "ResourceUsage": 16},
        ]},
        "SummaryView": {"BlockRThroughput": 16, "TotalCycles": 1650, "Iterations": ITERATIONS},
    }],
    "TargetInfo": {"CPUName": "gfx90a", "Resources": ["HWVALU", "HWXDL"]},
}  # fmt: skip


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Return a function that makes a program of Python lines the only llvm-mca there is."""

    def make(*lines):
        tool = tmp_path / "llvm-mca"
        head = [
            python_program().rstrip(),
            "import sys",
            "if '--version' in sys.argv: sys.exit(print('LLVM version 19.1.7'))",
        ]
        tool.write_text("\n".join([*head, *lines]) + "\n")
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("ROCM_PATH", str(tmp_path / "none"))
        return tool

    return make


def test_its_report_becomes_cycles_of_the_gpu(play):
    """The model of gfx9 counts in fours; a branch is not given to it; the last index is all instructions."""
    tool = play("assert sys.stdin.read().count('\\n') == 4", f"print({json.dumps(REPORT)!r})")
    found = estimate(BODY, "gfx90a")
    assert (found.tool, found.version, found.instructions) == (str(tool), "19.1.7", 4)
    assert (found.cycles, found.throughput_cycles) == (66, 64)
    assert found.resources == {"HWVALU": 12, "HWXDL": 64}
    assert found.left_out == ()
    assert estimate(BODY, "gfx1100").throughput_cycles == 16


def test_what_it_cannot_read_is_left_out_and_named(play):
    """It is asked again without those lines."""
    play(
        "lines = sys.stdin.read().splitlines()",
        "bad = [i for i, line in enumerate(lines, 1) if 'mfma' in line]",
        "if bad: sys.exit(''.join(f'<stdin>:{i}:1: error: invalid instruction\\n' for i in bad))",
        f"print({json.dumps(REPORT)!r})",
    )
    found = estimate(BODY, "gfx90a")
    assert (found.instructions, found.left_out) == (3, ("v_mfma_f32_32x32x8f16",))


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["print(\"'gfx90a' is not a recognized processor\", file=sys.stderr); print('{}')"], "does not know it"),
        (["sys.exit('\\n'.join(f'<stdin>:{i}:1: error: no' for i in range(1, 9)))"], "cannot read v_add_f32_e32"),
        (["sys.exit('broken\\nfor good')"], "broken"),
        (["sys.exit(3)"], "it ends with status 3"),
        (["print('[]')"], "its JSON is not understood"),
        ([f"print({json.dumps(REPORT | {'CodeRegions': []})!r})"], "cannot read the loop"),
    ],
)
def test_each_failure_is_one_line(play, lines, reason):
    """It names the program and the reason."""
    tool = play(*lines)
    with pytest.raises(McaError) as caught:
        estimate(BODY, "gfx90a")
    assert str(caught.value).startswith(f"no llvm-mca for gfx90a: {tool}: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_the_program_the_line_says_what_to_do(monkeypatch, tmp_path):
    """Nothing on PATH, and no ROCm."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    with pytest.raises(McaError, match=r"none is on PATH or in ROCm \(apt install"):
        estimate(BODY, "gfx942")


def test_the_real_one_agrees_on_the_matrix_unit():
    """A 32x32x8 product is 16 passes of 4 cycles on gfx90a, an addition one."""
    if not find_tools("llvm-mca"):
        pytest.skip("there is no llvm-mca")
    try:
        found = estimate(BODY * 4, "gfx90a")
    except McaError as error:
        pytest.skip(str(error))
    assert found.resources["HWXDL"] == 4 * 64
    assert found.resources["HWVALU"] == 4 * 3 * 4
    assert found.cycles >= found.throughput_cycles == 4 * 64
