"""What the code objects of the flash kernels say, without a GPU: registers, spills, arguments, the main loop."""

import re
from dataclasses import replace

import pytest

from rocattn.config import FP8_DTYPES, AttentionConfig
from rocattn.gpu.arch import bytes_in_flight, default_compute_units, fp8_dtype
from rocattn.gpu.arguments import KERNEL_TYPES
from rocattn.gpu.build import argument_problem
from rocattn.gpu.flash import (
    BUILT_FP8,
    BUILT_FP8_Q,
    BUILT_HEAD_DIMS,
    BUILT_SEQUENCES,
    LATENT_DIMS,
    can_use_flash_attention,
    flash_launches,
    select_kernel,
    split_keys,
    uses_decode,
    variants,
)
from rocattn.gpu.plan import describe_buffers, plan
from rocattn.gpu.tiles import largest_head_dim
from rocattn.toolchain import compile_hip
from rocattn.toolchain.code_object import kernels_of
from rocattn_profiling.base.gpus import architecture, product, products
from rocattn_profiling.kernels.build import all_variants
from rocattn_profiling.kernels.model.occupancy import occupancy

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
    ("gfx1100", "flash_attention_causal_small_pages", "float16", 128),
    ("gfx1100", "flash_decode_paged", "float16", 128),
    ("gfx942", "flash_attention_causal_paged", "float16", 128), ("gfx942", "flash_decode_small_pages", "float16", 128),
    *((arch, kernel, "float16", 128) for arch in ("gfx942", "gfx950", "gfx1201")
      for kernel in ("flash_attention_fp8", "flash_decode_fp8", "flash_decode_paged_fp8", "flash_attention_fp8_q",
                     "flash_decode_fp8_q")),
]  # fmt: skip
MATRIX = re.compile(r"\s+v_(?:wmma|mfma)_f32_16x16x(\d+)")
VECTOR = re.compile(r"\s+v_(?!wmma|mfma)\w+")


def variant_of(arch, kernel, dtype, head_dim):
    """A variant of the build grid, with the arguments that plans launch it with."""
    wanted = (kernel, KERNEL_TYPES[dtype], head_dim)
    (variant,) = [
        each for each in all_variants([arch])
        if (each.kernel, each.defines.get("DTYPE"), each.defines.get("HEAD_DIM")) == wanted
    ]  # fmt: skip
    return variant


def compiled(arch, kernel, dtype, head_dim):
    """The macros of a variant of the build grid, and what it compiles to."""
    variant = variant_of(arch, kernel, dtype, head_dim)
    return variant.defines, compile_hip(variant.source, arch, defines=variant.defines)


def most_vgprs(arch, kernel):
    """The registers that leave the waves a SIMD which the tile table counts on."""
    if arch.startswith("gfx1"):  # 1536 a lane (wave32) on gfx1100 and gfx1201: 6 waves at 240
        return 256 if kernel.startswith("flash_decode") or arch == "gfx1030" else 240
    return 256  # 512 a lane on CDNA: 2 waves


@pytest.mark.usefixtures("kernel_cache")
@pytest.mark.parametrize(("arch", "kernel", "dtype", "head_dim"), SAMPLED)
def test_no_register_is_spilled(caplog, arch, kernel, dtype, head_dim):
    """No warning, scratch or spill, the VGPRs and LDS of the tile table at most, and the arguments of plans."""
    defines, code = compiled(arch, kernel, dtype, head_dim)
    assert caplog.records == []
    (info,) = kernels_of(code.data)
    assert argument_problem(info, variant_of(arch, kernel, dtype, head_dim).args) == ""
    assert (info.vgpr_spills, info.sgpr_spills, info.scratch_bytes) == (0, 0, 0)
    assert info.block == defines["WAVES"] * info.wave_size
    assert info.lds_bytes <= (97 if arch == "gfx950" else 52) << 10  # of 160 KiB a CU, and of 64
    if dtype != "float32":
        assert info.vgprs <= most_vgprs(arch, kernel)


@pytest.mark.usefixtures("kernel_cache")
@pytest.mark.parametrize(("kernel", "chains"), [("flash_attention", 1), ("flash_attention_causal", 2)])
def test_v_is_neither_transposed_nor_written_by_lanes_on_gfx950(kernel, chains):
    """K and V go to LDS directly and LDS transposes V; what lanes write are Q, flags, and V without infinities."""
    _, code = compiled("gfx950", kernel, "float16", 128)
    count = {name: len(re.findall(rf"\s{name}\s", code.assembly)) for name in ("v_perm_b32", "ds_write_b64")}
    assert count == {"v_perm_b32": 0, "ds_write_b64": 0}
    reads = [line for line in code.assembly.splitlines() if "ds_read_b64_tr_b16" in line]
    assert len(reads) == chains * 16  # eight fragments of V for each 32 keys, each by two


@pytest.mark.usefixtures("kernel_cache")
@pytest.mark.parametrize(
    ("arch", "kernel", "load"),
    [
        ("gfx942", "flash_attention_causal", "dword"),
        ("gfx942", "flash_attention_nocausal", "dword"),
        ("gfx950", "flash_attention", "dwordx4"),
        ("gfx950", "flash_attention_causal", "dwordx4"),
        ("gfx950", "flash_attention_nocausal", "dwordx4"),
    ],
)
def test_loads_to_lds_keep_their_wait_states(arch, kernel, load):
    """The compiler sees no hazards of assembly: one wait state behind M0, five behind a lane that gives the address."""
    _, code = compiled(arch, kernel, "float16", 128)
    lines = [line.split(";")[0].strip() for line in code.assembly.splitlines()]
    lines = [line for line in lines if line and not line.startswith((".", ";", "//"))]
    loads = [at for at, line in enumerate(lines) if line.startswith(f"global_load_lds_{load} ")]
    assert loads
    for at in loads:
        assert lines[at - 1] == "s_nop 0"
        assert lines[at - 2].startswith("s_mov_b32 m0")
        first = re.search(r"s\[(\d+):", lines[at])[1]
        near = [line for line in lines[at - 7 : at - 2] if line.startswith("v_readfirstlane")]
        assert not [line for line in near if re.search(rf"\ss({first}|{int(first) + 1}),", line)]


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
    {"kv_dtype": FP8_DTYPES[0], "k_scale": True},
    {"kv_dtype": FP8_DTYPES[1], "v_scale": True, "seq_q": 1, "q_dtype": FP8_DTYPES[1], "q_scale": True},
], ids=["fp8", "fp8-decode"])  # fmt: skip
def test_launches_with_8_bits_and_code_objects_agree(changes):
    """Every argument has the offset, size and kind that the compiled kernel says, where some scales are given."""
    config = AttentionConfig(
        **{"batch": 2, "num_heads": 4, "num_kv_heads": 2, "seq_q": 70, "seq_k": 900, "head_dim": 64} | changes,
        dtype="float16", return_lse=True,
    )  # fmt: skip
    check_arguments(flash_launches(config, "gfx1100", describe_buffers(config, {})), "gfx1100")


def test_the_build_grid_holds_what_launches_ask_for():
    """Problems with a listed head dimension need no compilation that `variants` does not list."""
    for arch in (*MATRIX_ARCHS, "gfx1030"):
        listed = [(each.source, each.defines) for each in variants(arch)]
        of_sequences = sum(len(kinds) for kinds in BUILT_SEQUENCES.values())
        of_8_bits = 0 if fp8_dtype(arch) is None else len(BUILT_FP8 + BUILT_FP8_Q)
        latent = sum(largest_head_dim(arch, dtype) >= LATENT_DIMS[0] for dtype in KERNEL_TYPES)
        assert len(listed) == 3 + 3 * len(BUILT_HEAD_DIMS) * 4 + of_sequences + of_8_bits + latent
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
    ({"head_dim": 577}, "up to 576 in float16 on gfx942, not 577"), ({"head_dim_v": 600}, "600"),
    ({"head_dim": 257, "dtype": "float32"}, "up to 256 in float32"), ({"dtype": "float64"}, "float64"),
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
        assert re.findall(r"(\w+) has rows (\S+) elements", made.reason) == [(name, str(step))] * (path == "standard")


def decode_config(**changes):
    """One new token of a model with 32 heads that share 8 KV heads."""
    usual = {"batch": 1, "num_heads": 32, "num_kv_heads": 8, "seq_q": 1, "seq_k": 16384, "head_dim": 128}
    return AttentionConfig(**usual | changes, dtype="float16")


@pytest.mark.parametrize("seq_k", [512, 513, 1000, 8192, 100_000])
@pytest.mark.parametrize(("batch", "heads"), [(1, 1), (1, 8), (64, 32)])
@pytest.mark.parametrize("window", [None, (40, 0), (300, 0)])
def test_splits_cover_the_keys_of_the_band_once(batch, heads, seq_k, window):
    """Splits are whole key tiles that together hold just the keys that some row sees, and each of them some."""
    sizes = {"batch": batch, "num_heads": heads, "num_kv_heads": heads, "seq_q": 3, "seq_k": seq_k, "window": window}
    config = decode_config(**sizes)
    assert uses_decode(config)
    splits = split_keys(config, "gfx942", 304)
    assert splits.first_key % 32 == splits.keys % 32 == 0
    first = 0 if window is None else max(0, seq_k - 3 - window[0])
    assert first - 31 <= splits.first_key <= first
    end = splits.first_key + splits.count * splits.keys
    assert end - splits.keys < seq_k <= end
    assert splits.count == 1 or splits.keys >= 128


def test_all_splits_of_a_window_have_work():
    """4096 of 131072 keys: as many splits as 4096 keys have without a window, over just these."""
    splits = split_keys(decode_config(seq_k=131072, window=(4095, 0)), "gfx942", 304)
    assert splits == replace(split_keys(decode_config(seq_k=4096), "gfx942", 304), first_key=131072 - 4096)
    assert (splits.count, splits.keys) == (32, 128)


def test_a_chunk_of_a_prompt_splits_its_keys():
    """128 blocks on 608 slots of MI300X become several times as many; a full grid, or few keys, stays as it is."""
    chunk = {"seq_q": 512, "seq_k": 32768, "causal": True}
    launches = plan(decode_config(**chunk), "gfx942").launches
    assert [launch.kernel for launch in launches] == ["flash_decode", "flash_decode_combine"]
    assert launches[0].fill >= 0.9
    for changes in ({"batch": 8}, {"seq_k": 1024}):
        (launch,) = plan(decode_config(**chunk | changes), "gfx942").launches
        assert launch.kernel == "flash_attention_causal"


@pytest.mark.parametrize(("arch", "units", "seq_k"), [
    ("gfx942", 304, 16384), ("gfx942", 304, 131072), ("gfx950", 256, 32768), ("gfx1100", 42, 8192),
    ("gfx1201", 32, 8192),
])  # fmt: skip
def test_decode_fills_the_slots_of_the_gpu(arch, units, seq_k):
    """For every batch up to 128 at least 90 % of the blocks that its rounds could hold are there."""
    for batch in range(1, 129):
        launch = plan(decode_config(batch=batch, seq_k=seq_k), arch, compute_units=units).launches[0]
        assert launch.fill >= 0.9, (batch, launch.grid, launch.slots)


@pytest.mark.usefixtures("kernel_cache")
@pytest.mark.parametrize("heads", [32, 71])
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_up_to_128_rows_of_a_kv_head_read_its_keys_once(arch, heads):
    """Multi-query attention takes one block a split, whose registers hold all rows without a spill."""
    launch = plan(decode_config(num_heads=heads, num_kv_heads=1), arch).launches[0]
    assert (launch.kernel, launch.grid[1:]) == ("flash_decode", (1, 1))
    (info,) = kernels_of(compile_hip(launch.source, arch, defines=launch.defines).data)
    assert (info.vgpr_spills, info.sgpr_spills, info.scratch_bytes) == (0, 0, 0)
    assert info.block == launch.block[0]
    fit = occupancy(arch, wave_size=info.wave_size, vgprs=info.vgprs, lds_bytes=info.lds_bytes, block=info.block)
    assert launch.slots <= fit.blocks * default_compute_units(arch)


@pytest.mark.usefixtures("kernel_cache")
@pytest.mark.parametrize("arch", MATRIX_ARCHS)
def test_as_many_decode_blocks_fit_as_plans_count_on(arch):
    """Registers and LDS of the compiled kernel leave room for all blocks of a plan, and for no more that would pay."""
    defines, code = compiled(arch, "flash_decode", "bfloat16", 128)
    (info,) = kernels_of(code.data)
    launch = plan(decode_config(), arch).launches[0]
    fit = occupancy(arch, wave_size=info.wave_size, vgprs=info.vgprs, lds_bytes=info.lds_bytes, block=info.block)
    in_flight = (16 if arch.startswith("gfx1") else 32) * 2 * 128 * 2  # of a wave that loads fragments
    blocks = fit.blocks if arch == "gfx1100" else min(fit.blocks, bytes_in_flight(arch) // in_flight)
    assert (launch.defines | {"DTYPE": "bf16"}, launch.slots) == (defines, blocks * default_compute_units(arch))


@pytest.mark.usefixtures("kernel_cache")
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950", "gfx1201"])
def test_a_decode_wave_loads_fragments(arch, head_dim):
    """K and V do not pass through LDS, and the wait for V leaves as many loads of the next K on their way."""
    lines = compiled(arch, "flash_decode", "bfloat16", head_dim)[1].assembly.splitlines()
    products = [n for n, line in enumerate(lines) if re.match(r"\s*v_(mfma|wmma)_", line)]
    assert len(products) == {"gfx1201": 16, "gfx950": 16}.get(arch, 32) * head_dim // 128
    assert not re.search(r"ds_(read|load|write|store)", "\n".join(lines[products[0] : products[-1]]))
    values = lines[products[len(products) // 2 - 1] : products[len(products) // 2 + 1]]
    last = [line for line in values if re.search(r"s_waitcnt vmcnt|s_wait_loadcnt", line)][-1]
    assert re.search(r"vmcnt\((\d+)\)|loadcnt (0x[0-9a-f]+)", last)
    left = next(int(text, 0) for text in re.search(r"vmcnt\((\d+)\)|loadcnt (0x[0-9a-f]+)", last).groups() if text)
    assert left == head_dim // 16


@pytest.mark.usefixtures("kernel_cache")
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_combining_splits_waits_for_several_loads_at_once(arch):
    """Eight loads of partial results are in flight before the first is waited for."""
    code = compile_hip("hip/flash_decode_combine.hip", arch, defines={"DTYPE": "f16"}).assembly
    batches = re.split(r"s_waitcnt vmcnt|s_wait_loadcnt", code)
    assert max(len(re.findall(r"global_load_(?:dwordx4|b128)", batch)) for batch in batches) >= 8


def test_plans_without_a_device_count_the_units_of_a_product():
    """The table of compute units agrees with the products that the profiling tools know."""
    known = [product(name) for name in products()]
    for arch in (*MATRIX_ARCHS, "gfx1030"):
        units = {each.cus // architecture(arch).cus_per_wgp for each in known if each.arch.name == arch}
        assert default_compute_units(arch) in units
