"""What the code objects of the flash kernels say, without a GPU: registers, spills, arguments, the main loop."""

import re

import pytest

from rocattn.config import AttentionConfig
from rocattn.gpu.arguments import KERNEL_TYPES
from rocattn.gpu.flash import (
    BUILT_HEAD_DIMS,
    DECODE_BLOCKS,
    can_use_flash_attention,
    flash_launches,
    select_kernel,
    splits_of,
    uses_decode,
    variants,
)
from rocattn.gpu.plan import describe_buffers, plan
from rocattn.toolchain import compile_hip
from rocattn.toolchain.code_object import kernels_of

from .launching import check_arguments

MATRIX_ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
# Head dimensions whose rows are loaded in pieces of 8, 4, 2 and 1 elements.
PIECES = [(72, 8), (100, 4), (90, 2), (63, 1)]
# (architecture, kernel, dtype, D): each kernel on each target, both 16-bit types, the vector units, the fallback.
SAMPLED = [
    *((arch, "flash_attention_causal", "float16", 64) for arch in MATRIX_ARCHS),
    *((arch, "flash_attention_nocausal", "bfloat16", 128) for arch in MATRIX_ARCHS),
    *((arch, "flash_attention", "float16", 128) for arch in MATRIX_ARCHS),
    *((arch, "flash_decode", "bfloat16", 128) for arch in MATRIX_ARCHS),
    ("gfx1030", "flash_attention_causal", "float16", 128), ("gfx90a", "flash_attention_causal", "float32", 128),
    ("gfx1100", "flash_attention_nocausal", "float32", 128), ("gfx90a", "flash_attention", "float16", 96),
]  # fmt: skip
MATRIX = re.compile(r"\s+v_(?:wmma|mfma)_f32_16x16x(\d+)")
VECTOR = re.compile(r"\s+v_(?!wmma|mfma)\w+")


def compiled(arch, kernel, dtype, head_dim):
    """A variant of the build grid and what it compiles to."""
    wanted = (kernel, KERNEL_TYPES[dtype], head_dim)
    (variant,) = [
        each for each in variants(arch)
        if (each.kernel, each.defines["DTYPE"], each.defines.get("HEAD_DIM")) == wanted
    ]  # fmt: skip
    return variant.defines, compile_hip(variant.source, arch, defines=variant.defines)


def most_vgprs(arch, kernel, head_dim):
    """The registers that leave the waves a SIMD which the tile table counts on."""
    if arch.startswith("gfx1"):  # 1536 a lane (wave32) on gfx1100 and gfx1201: 6 waves at 240
        return 256 if kernel == "flash_decode" or arch == "gfx1030" else 240
    return 168 if head_dim <= 64 else 256  # 512 a lane on CDNA: 3 waves and 2


@pytest.mark.usefixtures("kernel_cache")
@pytest.mark.parametrize(("arch", "kernel", "dtype", "head_dim"), SAMPLED)
def test_no_register_is_spilled(caplog, arch, kernel, dtype, head_dim):
    """No warning, scratch or spill, at most the VGPRs and the LDS that the tile table counts on."""
    defines, code = compiled(arch, kernel, dtype, head_dim)
    assert caplog.records == []
    (info,) = kernels_of(code.data)
    assert (info.vgpr_spills, info.sgpr_spills, info.scratch_bytes) == (0, 0, 0)
    assert info.block == defines["WAVES"] * info.wave_size
    assert info.lds_bytes <= (36 << 10 if dtype == "float32" or arch == "gfx1030" else 20 << 10)
    if dtype != "float32":
        assert info.vgprs <= most_vgprs(arch, kernel, head_dim)


@pytest.mark.usefixtures("kernel_cache")
@pytest.mark.parametrize(("head_dim", "step"), PIECES)
@pytest.mark.parametrize("arch", ["gfx90a", "gfx1100", "gfx1201"])
def test_no_register_is_spilled_for_any_head_dimension(arch, head_dim, step):
    """Head dimensions between the compiled ones: every kernel, with the widest loads that fit, spills nothing."""
    for changes in ({}, {"causal": True}, {"softcap": 5.0}, {"seq_q": 1}):
        sizes = {"batch": 1, "num_heads": 1, "seq_q": 600, "seq_k": 600, "head_dim": head_dim} | changes
        config = AttentionConfig(**sizes, dtype="float16")
        (launch, *_) = flash_launches(config, arch, describe_buffers(config, {}))
        assert launch.defines["COLUMN_STEP"] == step
        (info,) = kernels_of(compile_hip(launch.source, arch, defines=launch.defines).data)
        assert (info.vgpr_spills, info.sgpr_spills, info.scratch_bytes) == (0, 0, 0), launch


def loop_blocks(assembly):
    """The instructions of the basic blocks that hold matrix products inside a loop, block by block."""
    blocks = re.split(r"^(?:\.LBB\S+:|; %bb\.\d+:).*\n", assembly, flags=re.MULTILINE)
    return [b.splitlines() for b in blocks if "in Loop: Header" in b[:200] and MATRIX.search(b)]


@pytest.mark.usefixtures("kernel_cache")
@pytest.mark.parametrize(("dtype", "head_dim"), [("float16", 64), ("bfloat16", 128)])
@pytest.mark.parametrize("arch", MATRIX_ARCHS)
def test_both_products_of_the_main_loop_are_matrix_instructions(arch, dtype, head_dim):
    """The loop has just the instructions that K Q^T and V^T P^T of its tile take, and few vector ones beside them."""
    defines, code = compiled(arch, "flash_attention_causal", dtype, head_dim)
    blocks = loop_blocks(code.assembly)
    products = [int(m[1]) for block in blocks for line in block if (m := MATRIX.match(line))]
    tiles = defines["QUERY_FRAGMENTS"] * defines["KEYS_PER_TILE"] // 16
    assert sum(products) == 2 * tiles * head_dim
    assert set(products) == {32 if arch == "gfx950" else 16}
    # Scores to P and P to the next operand: 8 scores a lane on waves of 32, 4 on waves of 64.
    vector = sum(1 for block in blocks for line in block if VECTOR.match(line))
    assert vector / tiles <= (56 if arch.startswith("gfx1") else 17)
    assert not any("scratch_" in line or "ds_bpermute" in line for block in blocks for line in block)


@pytest.mark.usefixtures("kernel_cache")
@pytest.mark.parametrize("changes", [
    {}, {"causal": True}, {"mask": "bool", "mask_shape": (1, 1, 1, 900), "alibi": True, "sinks": True},
    {"seq_q": 1, "sinks": True},
], ids=["nocausal", "causal", "options", "decode"])  # fmt: skip
def test_launches_and_code_objects_agree(changes):
    """Every argument has the offset, size and kind that the compiled kernel says; block and wave size fit."""
    config = AttentionConfig(
        **{"batch": 2, "num_heads": 4, "num_kv_heads": 2, "seq_q": 70, "seq_k": 900, "head_dim": 64} | changes,
        dtype="float16", return_lse=True,
    )  # fmt: skip
    check_arguments(flash_launches(config, "gfx1100", describe_buffers(config, {})), "gfx1100")


def test_the_build_grid_holds_what_launches_ask_for():
    """Problems with a listed head dimension need no compilation that `variants` does not list."""
    for arch in (*MATRIX_ARCHS, "gfx1030"):
        listed = [(each.source, each.defines) for each in variants(arch)]
        assert len(listed) == 3 + 3 * len(BUILT_HEAD_DIMS) * 4
        for dtype in KERNEL_TYPES:
            for changes in ({}, {"causal": True}, {"window": (5, 5)}, {"seq_q": 1}):
                sizes = {"batch": 1, "num_heads": 2, "seq_q": 600, "seq_k": 600, "head_dim": 96} | changes
                config = AttentionConfig(**sizes, dtype=dtype)
                for launch in flash_launches(config, arch, describe_buffers(config, {})):
                    assert (launch.source, launch.defines) in listed


@pytest.mark.parametrize(("changes", "kernel"), [
    ({}, "flash_attention_nocausal"), ({"window": (-1, -1)}, "flash_attention_nocausal"),
    ({"causal": True}, "flash_attention_causal"), ({"window": (-1, 0)}, "flash_attention_causal"),
    ({"causal": True, "scale": 0.2}, "flash_attention_causal"), ({"scale": -0.2}, "flash_attention"),
    ({"scale": 0.0}, "flash_attention"), ({"causal": True, "window": (4, -1)}, "flash_attention"),
    ({"sinks": True}, "flash_attention"), ({"alibi": True}, "flash_attention"), ({"softcap": 9.0}, "flash_attention"),
    ({"mask": "bool", "mask_shape": (1, 1, 9, 9)}, "flash_attention"),
])  # fmt: skip
def test_the_kernel_follows_from_the_options(changes, kernel):
    """Only problems without any option but causal take the plain kernels."""
    config = AttentionConfig(batch=1, num_heads=1, seq_q=9, seq_k=9, head_dim=8, dtype="float16", **changes)
    assert select_kernel(config) == kernel


@pytest.mark.parametrize(("changes", "reason"), [
    ({"head_dim": 257}, "up to 256, not 257"), ({"head_dim_v": 300}, "300"), ({"dtype": "float64"}, "float64"),
    ({"head_dim": 0}, "must be 1 or more"), ({"head_dim_v": 0}, "must be 1 or more"),
    ({"direction": "backward"}, "forward"), ({"batch": 70000}, "65535"), ({"seq_k": 1 << 30}, "2\\^30"),
])  # fmt: skip
def test_a_refusal_says_why(changes, reason):
    """What the kernels cannot do is refused with the number that is too large, or what is unknown."""
    config = AttentionConfig(
        **{"batch": 1, "num_heads": 1, "seq_q": 9, "seq_k": 9, "head_dim": 8, "dtype": "float16"} | changes
    )
    answer = can_use_flash_attention(config, "gfx942")
    assert not answer
    assert re.search(reason, answer.reason)


@pytest.mark.parametrize(("name", "changes"), [("k", {}), ("v", {"mask": "bool", "mask_shape": (1, 1, 9, 9)})])
def test_rows_too_far_apart_take_the_standard_path(name, changes):
    """A tile of k or v that spans 4 GiB has no 32-bit offsets: the plan says so and takes the other path."""
    config = AttentionConfig(batch=1, num_heads=1, seq_q=9, seq_k=9, head_dim=64, dtype="float16", **changes)
    for step, path in (((1 << 26) - 1, "flash"), (-(1 << 26), "standard")):
        made = plan(config, "gfx1100", strides={name: (64, 64, step, 1)})
        assert made.path == path
        assert (f"{name} has rows {step} elements apart: 32 of them" in made.reason) == (path == "standard")


@pytest.mark.parametrize("seq_k", [512, 513, 1000, 8192, 100_000])
@pytest.mark.parametrize(("batch", "heads"), [(1, 1), (1, 8), (64, 32)])
def test_splits_cover_all_keys_once(batch, heads, seq_k):
    """Splits are whole key tiles of at least 256 keys, none is empty, and few rows get as many as fill a GPU."""
    config = AttentionConfig(batch=batch, num_heads=heads, seq_q=1, seq_k=seq_k, head_dim=64, dtype="float16")
    assert uses_decode(config)
    splits, keys = splits_of(config, 32)
    assert keys % 32 == 0
    assert keys >= 256
    assert (splits - 1) * keys < seq_k <= splits * keys
    assert splits * batch * heads >= 0.9 * DECODE_BLOCKS or splits >= seq_k // 320
