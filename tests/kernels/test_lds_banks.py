"""LDS bank conflicts of the attention kernels, counted by the stand-in GPU from the addresses that they execute.

Which lanes are served together is `rocattn_profiling.base.lds_banks`'s to say: measured for CDNA 3 and most of CDNA 4,
assumed for the others.
"""

import pytest

import rocattn
from rocattn.config import AttentionConfig
from rocattn.gpu.backward import backward_launches
from rocattn.gpu.flash import flash_launches
from rocattn_profiling.base.gpus import architecture
from rocattn_profiling.base.lds_banks import lds_groups_text
from rocattn_profiling.workloads.inputs import make_inputs

from ..hostgpu.standin import StandIn
from .launching import backward_arrays, forward_arrays

SIZES = {"batch": 1, "num_heads": 1, "num_kv_heads": 1, "seq_q": 65, "seq_k": 70}
KINDS = {"forward": {}, "decode": {"seq_q": 1, "seq_k": 520}, "backward": {"direction": "backward"}}
# (architecture, dtype, D): both CDNA layouts, at each width of the transposed writes; the plain one of RDNA.
CASES = [
    ("gfx942", "float16", 64, "forward"), ("gfx942", "bfloat16", 128, "forward"), ("gfx942", "float16", 128, "decode"),
    ("gfx942", "float16", 64, "backward"), ("gfx950", "float16", 64, "forward"), ("gfx950", "bfloat16", 128, "forward"),
    ("gfx950", "float16", 128, "decode"), ("gfx950", "float16", 64, "backward"), ("gfx1100", "float16", 64, "forward"),
    ("gfx1201", "float16", 128, "decode"),
]  # fmt: skip


@pytest.mark.parametrize(("arch", "dtype", "head_dim", "kind"), CASES)
def test_no_access_has_a_conflict(tmp_path, kernel_cache, arch, dtype, head_dim, kind):
    """Every LDS read and write of the kernel takes the cycles that it takes without conflicts."""
    assert kernel_cache
    device = StandIn(tmp_path, arch, lds_groups=lds_groups_text(arch, architecture(arch).wave_sizes[0]))
    config = AttentionConfig(**SIZES | KINDS[kind], dtype=dtype, head_dim=head_dim)
    inputs = make_inputs(config)
    if kind == "backward":
        options = inputs.options(config) | {"return_lse": True}
        results = rocattn.attention(inputs.q, inputs.k, inputs.v, backend="cpu", **options)
        arrays, launches = backward_arrays(device, config, inputs, *results), backward_launches
    else:
        arrays, launches = forward_arrays(device, config, inputs), flash_launches
    arrays.run(launches(config, arch, arrays.buffers))
    counts = device.lds_cycles()
    assert {"read", "write"} <= {direction for _, direction, *_ in counts}
    assert [row for row in counts if row[4] != row[5]] == []
