"""Print the table of docs/instruction-costs.md: cycles of the forward kernels' hot loops, from their machine code.

Needs this project alone; run it from the top of the checkout: ``.venv/bin/python research/instruction_costs.py``.
"""

from rocattn.config import AttentionConfig
from rocattn.gpu.plan import plan
from rocattn.toolchain import compile_hip
from rocattn_profiling.kernels.model.cost import loop_cost
from rocattn_profiling.kernels.read.assembly import parse_assembly

for arch in ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"):
    for d in (64, 128):
        problem = AttentionConfig(batch=1, num_heads=8, seq_q=4096, seq_k=4096, head_dim=d, dtype="float16")
        (launch,) = plan(problem, arch).launches
        code = compile_hip(launch.source, arch, defines=launch.defines)
        (kernel,) = (each for each in parse_assembly(code.assembly) if each.name == launch.symbol)
        cost = loop_cost(kernel, arch)
        tiles = cost.matrix_flops / (1024 * d)  # 4 D FLOPs a score, 256 scores
        cycles = (cost.issue_cycles, cost.matrix_cycles, cost.vector_cycles, cost.bound_cycles)
        serial = 100 * cost.matrix_cycles / (cost.matrix_cycles + cost.vector_cycles)
        row = [f"{each / tiles:.0f}" for each in cycles] + [f"{serial:.0f}", f"{cost.issue_bound_pct:.0f}"]
        print(f"| {arch} | {d} | {' | '.join(row)} |")
