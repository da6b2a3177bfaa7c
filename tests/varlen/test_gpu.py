"""Sequences of different lengths in the flash kernels: plans, and what the stand-in GPU finds when it executes them."""

import os
import sys

import pytest

from rocattn.config import AttentionConfig, VarlenShape
from rocattn.errors import ConfigError
from rocattn.gpu.arguments import division
from rocattn.gpu.launch import LaunchPlan
from rocattn.gpu.plan import plan

from ..gpu.conftest import hostgpu  # noqa: F401 - a fixture
from .hostgpu_cases import CASES

TARGETS = [("gfx1100", "float16", [*CASES]), ("gfx942", "float16", [*CASES])]
TARGETS += [(arch, "float16", ["whole-tiles", "small-pages", "decode-small-pages"])
            for arch in ("gfx90a", "gfx950", "gfx1030", "gfx1201")]  # fmt: skip
TARGETS += [("gfx942", "bfloat16", ["small-pages", "decode-pages"]), ("gfx1100", "float32", ["packed", "decode-pages"])]


@pytest.mark.parametrize(("arch", "dtype", "cases"), TARGETS)
def test_each_sequence_agrees_with_float64(hostgpu, arch, dtype, cases):  # noqa: F811
    """Every check of the stand-in is silent; NaN is in all rows and pages that are nobody's, pages are shuffled."""
    code = "import sys; from tests.varlen.hostgpu_cases import main; main(*sys.argv[1:])"
    faults = hostgpu(code, arch, dtype, *cases, PYTHONPATH=os.pathsep.join(["", *filter(None, sys.path)]))
    assert not any(faults.values()), faults


def config(**changes):
    """A problem of 3 sequences; the longest has 100 rows and 4096 keys."""
    sizes = {"num_heads": 8, "num_kv_heads": 2, "head_dim": 128, "dtype": "float16", "causal": True}
    rows = VarlenShape(total_q=180, **changes.pop("rows", {"total_k": 9000}))
    return AttentionConfig(**{"batch": 3, "seq_q": 100, "seq_k": 4096, **sizes, "varlen": rows, **changes})


def pages(size):
    """K and V in pages."""
    return {"rows": {"page_size": size, "num_pages": 900, "max_pages": 4096 // size + 1}}


@pytest.mark.parametrize(
    ("arch", "changes", "kernel"),
    [
        ("gfx1100", {}, "flash_attention_causal_varlen"),
        ("gfx1100", {"causal": False}, "flash_attention_nocausal_varlen"),
        ("gfx1100", {"sinks": True}, "flash_attention_varlen"),
        ("gfx1100", pages(64), "flash_attention_causal_paged"),
        ("gfx1100", pages(16), "flash_attention_causal_small_pages"),
        ("gfx942", pages(64), "flash_attention_causal_paged"),
        ("gfx1201", pages(64), "flash_attention_causal_small_pages"),  # its tile has 48 keys
        ("gfx1100", {"seq_q": 1, **pages(16)}, "flash_decode_paged"),
        ("gfx942", {"seq_q": 1, **pages(16)}, "flash_decode_small_pages"),
        ("gfx942", {"seq_q": 1}, "flash_decode_varlen"),
        ("gfx942", {"seq_q": 1, "kv_dtype": "float8_e4m3fnuz", **pages(64)}, "flash_decode_paged_fp8"),
        ("gfx1100", {"kv_dtype": "float8_e4m3fn", **pages(16)}, "flash_attention_small_pages_fp8"),
    ],
)
def test_the_page_size_chooses_the_kernel(arch, changes, kernel):
    """Pages of whole tiles have one address a tile; the plan survives JSON."""
    made = plan(config(**changes), arch)
    assert made.launches[0].kernel == made.launches[0].symbol == kernel
    assert LaunchPlan.from_dict(made.as_dict()) == made


def test_a_prefills_grid_has_the_tiles_of_any_lengths():
    """Rows over tiles, and one tile more for each sequence; heads; no batches."""
    (launch,) = plan(config(), "gfx1100").launches
    rows = 16 * launch.defines["WAVES"] * launch.defines["QUERY_FRAGMENTS"]
    assert launch.grid == (180 // rows + 3, 8, 1)


def test_a_decodes_partial_results_are_those_of_packed_rows():
    """Splits by the longest sequence; the combination takes all rows as one batch."""
    decode, combine = plan(config(seq_q=2, **pages(64)), "gfx1100").launches
    splits, heads, sequences = decode.grid
    assert (heads, sequences) == (2, 3)
    assert splits > 1
    assert combine.grid == (180, 8, 1)
    assert combine.kernel == "flash_decode_combine"
    assert {arg.name: arg.bytes for arg in decode.args if arg.kind == "workspace"} == {
        "partial_out": splits * 180 * 8 * 128 * 4, "partial_ends": splits * 180 * 8 * 2 * 4,
    }  # fmt: skip


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 16, 24, 48, 100, 256, 1000, 4097, 1 << 20, (1 << 30) - 1])
def test_keys_are_divided_by_the_page_size_without_a_division(divisor):
    """Exact up to the largest position, in the 32 and 64 bits that the kernels have."""
    factor, shift = division(divisor)
    assert 0 < factor < 1 << 32
    numbers = {0, 1, (1 << 30) - 1} | {m * divisor + e for m in (1, 2, 3, (1 << 30) // divisor) for e in (-1, 0, 1)}
    for number in numbers:
        if 0 <= number < 1 << 30:
            assert (2 * number * factor >> 32) >> shift == number // divisor


def test_what_the_kernels_cannot_do_is_refused_with_its_reason():
    """No standard path stands behind packed rows."""
    with pytest.raises(ConfigError, match="head dimensions up to 576"):
        plan(config(head_dim=577), "gfx1100")
