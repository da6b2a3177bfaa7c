"""What `rocattn memory` says of the gpu backend: the pool counts exactly what the plans ask for, on both paths."""

CODE = """
import json
from hostgpu_cases import SIZES
from rocattn import BACKENDS, AttentionConfig
from rocattn_profiling.bench.launch import register_named
from rocattn_profiling.memory.model import theory
from rocattn_profiling.memory.measure import measure_call

found = {}
config = AttentionConfig(**SIZES, dtype="float16")
register_named(["gpu-standard"])
for name in ("gpu", "gpu-standard"):
    said = theory(config, BACKENDS.get(name))
    found[name] = [measure_call(config, name).allocated_bytes, said.total, said.scores, said.workspace]
print(json.dumps(found))
"""


def test_the_pool_counts_what_theory_says_to_the_byte(hostgpu):
    """Tensors alone on the flash path; float32 scores and float16 weights besides on the standard one."""
    found = hostgpu(CODE)
    pairs = 2 * 4 * 37 * 70
    tensors = 2 * (2 * 4 * 37 * (40 + 24) + 2 * 2 * 70 * (40 + 24))
    assert found["gpu"] == [tensors, tensors, 0, 0]
    assert found["gpu-standard"] == [tensors + 6 * pairs, tensors + 6 * pairs, 6 * pairs, 6 * pairs]
