"""llvm-mca's simulation of our hot loops, where one is installed that knows the GPU: the matrix unit is as busy there.

It simulates one wave that issues in order, with the latencies of LLVM's scheduling model (SISchedule.td). To it a
quarter-rate instruction has full rate and a long latency, and WMMA is an ordinary vector instruction, so CDNA's matrix
unit is what both models can agree on.
"""

import json
import re
import subprocess

import pytest

from rocattn.config import AttentionConfig
from rocattn.gpu.plan import plan
from rocattn.toolchain import compile_hip
from rocattn_profiling.kernels.model.cost import loop_cost
from rocattn_profiling.kernels.model.loops import hot_loop, usual_path
from rocattn_profiling.kernels.read.assembly import parse_assembly
from rocattn_profiling.kernels.read.disassembly import find_tools
from rocattn_profiling.kernels.read.instructions import Pipe

CYCLES_OF_A_PASS = 4  # its model of gfx9: "The latency values are 1 / (operations / cycle) / 4"
BAD_LINE = re.compile(r"^[^\n:]*:(\d+):\d+: error: ", re.MULTILINE)


def simulate(instructions, arch):
    """Return the cycles that each resource is used in an iteration; skips the test where no llvm-mca can say it."""
    for tool in find_tools("llvm-mca"):
        lines = [f"{one.mnemonic} {one.operands}" for one in instructions if one.unit is not Pipe.BRANCH]
        command = [tool, "-mtriple=amdgcn-amd-amdhsa", f"-mcpu={arch}", "-json", "-"]
        done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=False)
        if bad := {int(line) for line in BAD_LINE.findall(done.stderr)}:  # it knows no newer waits: none is a product
            assert not [line for number, line in enumerate(lines, 1) if number in bad and "mfma" in line]
            lines = [line for number, line in enumerate(lines, 1) if number not in bad]
            done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=False)
        if done.returncode == 0 and "not a recognized processor" not in done.stderr:
            report = json.loads(done.stdout)
            names = report["TargetInfo"]["Resources"]
            pressures = report["CodeRegions"][0]["ResourcePressureView"]["ResourcePressureInfo"]
            return {
                names[each["ResourceIndex"]]: each["ResourceUsage"] * CYCLES_OF_A_PASS
                for each in pressures
                if each["InstructionIndex"] == len(lines)  # behind the instructions: all of them
            }
    pytest.skip(f"there is no llvm-mca that knows {arch}")


@pytest.mark.usefixtures("kernel_cache")
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942"])
def test_llvm_mca_keeps_the_matrix_unit_as_busy(arch):
    """The same cycles for the same iteration of a long fp16 problem, exactly."""
    config = AttentionConfig(batch=1, num_heads=8, seq_q=4096, seq_k=4096, head_dim=64, dtype="float16")
    (launch,) = plan(config, arch).launches
    assembly = compile_hip(launch.source, arch, defines=launch.defines).assembly
    (function,) = (each for each in parse_assembly(assembly) if each.name == launch.symbol)
    path = usual_path(function, hot_loop(function))
    used = simulate([one for block in path for one in function.blocks[block].instructions], arch)
    assert used["HWXDL"] == loop_cost(function, arch).matrix_cycles > 0
