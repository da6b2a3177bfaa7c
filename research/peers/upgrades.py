r"""Kernels of others that an upgrade made slower, for `rocattn kernels capture`: upgrades.py NAME [ARGUMENT …].

Each calls a library's own entry where it imports without a GPU's toolchain, at the sizes of the report. Nothing of the
libraries is here: PYTHONPATH names a checkout of AITER (and its aiter/jit/utils; with
AITER_TRITON_ONLY=1) or of Primus-Turbo, or an unpacked wheel of SGLang.

    unified_attention [HEAD ...]    AITER, ROCm/aiter issue 4137; "one_wave" is what PR 5409 mends it with
    extend_attention [576] [n64]    SGLang, PR 34741; n64 takes the tile from before the pull request
    gemm_afp4wfp4 [FLAG]            AITER, triton PR 11763, without or with LLVM's flag
    moe_gptq_awq [mend]             SGLang's copy of vLLM's kernel in vLLM's tiles, vllm issue 43153; its PR 44119
    grouped_gemm [k32]              Primus-Turbo before its pull request 471, and what that mends it with
    vadd WAVES, softmax WAVES       triton PR 8314, helion PR 3123

HIP is compiled by the audit itself (rocm-systems issue 2865), with ggml=llama.cpp/ggml/src at 49bfddec:

    set -- $ggml/ggml-cuda/template-instances/mmq-instance-mxfp4.cu --arch gfx1151 \
        --options "-DGGML_USE_HIP -I$ggml -I$ggml/../include"
    ROCATTN_COMPILER=clang-19 rocattn kernels audit "$@" --out before
    rocattn kernels audit "$@" --against before/audit.json
"""

import importlib.util
import sys
import types
from pathlib import Path

import torch
import triton
import triton.language as tl

BF16 = torch.bfloat16


def empty(*shape, dtype=BF16):
    """Return an array that nobody fills: its pages cost nothing."""
    return torch.empty(shape, dtype=dtype, device="cuda")


def above_2_gib(heads, size, rows=1):
    """Return how many pages of a cache are above 2 GiB, where AMD's buffer instructions end."""
    return (1 << 31) // (rows * heads * size * 2) + 64


def numbers(*values):
    """Return integers on the GPU."""
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def unified_attention(*arguments):
    """16 query heads and 2 KV heads, pages of 16 keys, 4096 queries."""
    from aiter.ops.triton.attention import unified_attention as module

    one_wave = "one_wave" in arguments
    select = module.select_2d_config
    if one_wave:
        tile = {"waves_per_eu": 1, "BLOCK_M": 128, "BLOCK_Q": 16, "TILE_SIZE": 64, "num_warps": 4, "num_stages": 1}
        module.select_2d_config = lambda *of, **named: {**select(*of, **named), **tile}
    for size in [int(each) for each in arguments if each.isdigit()] or [64, 128, 192, 256]:
        queries, keys, pages = 4096, 8192, above_2_gib(2, size, rows=16)
        query = empty(queries, 16, size)
        module.unified_attention(
            q=query, k=empty(pages, 16, 2, size), v=empty(pages, 16, 2, size), out=torch.empty_like(query),
            cu_seqlens_q=numbers(0, queries), seqused_k=numbers(keys), max_seqlen_q=queries, max_seqlen_k=keys,
            softmax_scale=size**-0.5, causal=True, window_size=(-1, -1), softcap=0, q_descale=None, k_descale=None,
            v_descale=None, block_table=torch.zeros((1, keys // 16), dtype=torch.int32, device="cuda"),
        )  # fmt: skip


class Nothing(types.ModuleType):
    """A module of a server that a kernel's file imports and does not need here."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: False


def without_the_server(*needless):
    """Let files of SGLang be imported without what starts its server; return its folder."""
    root = next(Path(path) for path in sys.path if (Path(path) / "sglang/srt").is_dir())
    for name in ("sglang", "sglang.srt", *(f"sglang.kernels{part}" for part in ("", ".ops", ".ops.attention"))):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(root / name.replace(".", "/"))]
    for name in needless:
        sys.modules[name] = Nothing(name)
    return root


def extend_attention(*arguments):
    """Kimi-K3's absorbed attention (576 and 512 features), and two sizes that are not affected."""
    without_the_server("sglang.srt.utils")
    utils = sys.modules["sglang.srt.utils"]
    utils.is_hip = lambda: True
    utils.is_gfx95_supported = lambda: torch.cuda.get_device_properties(0).gcnArchName.startswith("gfx95")
    from sglang.kernels.ops.attention import extend_attention as module

    if "n64" in arguments:
        module._is_triton_ge_37 = False  # noqa: SLF001
    rows = 1024
    shapes = ((576, 512, 12, 1), (128, 128, 32, 8), (192, 128, 16, 16))
    for q_size, v_size, heads, kv_heads in [each for each in shapes if str(each[0]) in arguments] or shapes:
        keys = above_2_gib(kv_heads, q_size)
        module.extend_attention_fwd(
            empty(rows, heads, q_size), empty(rows, kv_heads, q_size), empty(rows, kv_heads, v_size),
            empty(rows, heads, v_size), empty(keys, kv_heads, q_size), empty(keys, kv_heads, v_size), numbers(0, rows),
            numbers(0, 4096), torch.zeros(4096, dtype=torch.int64, device="cuda"), None, True, None, rows, 1.0, 1.0,
        )  # fmt: skip


def gemm_afp4wfp4(flag=""):
    """4096 x 4096 x 4096 in the configuration of the report."""
    enum = sys.modules["aiter.ops.enum"] = types.ModuleType("aiter.ops.enum")  # else AITER builds C++ for three numbers
    enum.Enum = enum.ActivationType = enum.QuantType = enum.MlaVersion = int
    import aiter as library
    from aiter.utility import dtypes

    library.dtypes = dtypes
    from aiter.ops.triton.gemm.basic.gemm_afp4wfp4 import gemm_afp4wfp4 as gemm
    from triton._C.libtriton import llvm

    compiled = llvm.translate_to_asm
    if flag:
        llvm.translate_to_asm = lambda *of: compiled(*of[:4], [*of[4], flag], *of[5:])
    n, byte = 4096, torch.uint8
    config = {
        "BLOCK_SIZE_M": 256, "BLOCK_SIZE_N": 256, "BLOCK_SIZE_K": 256, "GROUP_SIZE_M": 2, "num_warps": 4,
        "num_stages": 2, "waves_per_eu": 1, "matrix_instr_nonkdim": 32, "cache_modifier": None, "NUM_KSPLIT": 1,
        "SPLITK_BLOCK_SIZE": 2 * n,
    }  # fmt: skip
    operands = [empty(n, n // part, dtype=byte) for part in (2, 2, 32, 32)]
    gemm(*operands, BF16, empty(n, n), config=config)


def moe_gptq_awq(mend=""):
    """Kimi K2.5 on 8 GPUs: 384 experts, groups of 32; 1, 16, 32 and 64 tokens in the tiles that vLLM took and takes."""
    server = ("srt.batch_invariant_ops", "srt.environ", "srt.layers.moe.utils", "srt.utils", "kernels.jit.utils")
    quantized = ("kernels.ops.quantization.fp8_kernel", "kernels.ops.quantization.int8_kernel")
    root = without_the_server(*(f"sglang.{name}" for name in (*server, *quantized)))
    file = root / "sglang/kernels/ops/moe/fused_moe_triton_kernels.py"
    spec = importlib.util.spec_from_file_location("fused_moe", file)
    module = sys.modules["fused_moe"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    experts, top, group, n, k = 384, 8, 32, 1024, 7168
    b, scale = empty(experts, n, k // 2, dtype=torch.uint8), empty(experts, n, k // group)
    tiles = ((1, 16, 32, 64), (16, 16, 64, 32), (32, 32, 64, 32), (64, 64, 64, 32))
    for tokens, m, width, depth in ((16, 16, 128, 128), (24, 16, 128, 64)) if mend else tiles:
        a, c, ids = empty(tokens, k), empty(tokens, top, n), empty(tokens * top + experts * (m - 1), dtype=torch.int32)
        module.fused_moe_kernel_gptq_awq[(1,)](
            a, b, c, scale, None, empty(tokens, top, dtype=torch.float32), ids, ids, ids[:1], n, k, ids.shape[0],
            tokens * top, a.stride(0), a.stride(1), b.stride(0), b.stride(2), b.stride(1), c.stride(1), c.stride(2),
            scale.stride(0), scale.stride(2), scale.stride(1), 0, 0, 0, group_size=group, MUL_ROUTED_WEIGHT=False,
            top_k=top, compute_type=tl.bfloat16, has_zp=False, use_int4_w4a16=True, use_int8_w8a16=False, even_Ks=True,
            filter_expert=False, BLOCK_SIZE_M=m, BLOCK_SIZE_N=width, BLOCK_SIZE_K=depth, GROUP_SIZE_M=1, num_warps=4,
            num_stages=2, **({"matrix_instr_nonkdim": 16} if mend else {}),
        )  # fmt: skip


def grouped_gemm(mend=""):
    """DeepSeek-V2-Lite's gradient of the experts' second weights: 64 experts, 1408 x 2048."""
    root = next(Path(path) for path in sys.path if (Path(path) / "primus_turbo").is_dir())
    for name in ("primus_turbo.pytorch", "primus_turbo.pytorch.core"):  # else its C++ is asked for
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(root / name.replace(".", "/"))]
    from primus_turbo.triton.grouped_gemm import grouped_gemm_kernel as module

    configured = module._get_gg_bf16_vk_config  # noqa: SLF001
    if mend:
        module._get_gg_bf16_vk_config = lambda *of: (*configured(*of)[:2], 32, *configured(*of)[3:])  # noqa: SLF001
    module.grouped_gemm_variable_k_triton_kernel(
        empty(4096, 1408), empty(4096, 2048), torch.zeros(65, dtype=torch.int64, device="cuda")
    )


@triton.jit
def vadd_kernel(x, y, out, n, BLOCK: tl.constexpr):
    """Add vectors."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, inside) + tl.load(y + at, inside), inside)


def vadd(waves):
    """The tutorial's sizes."""
    x = empty(1 << 20, dtype=torch.float32)
    vadd_kernel[(1 << 10,)](x, x, x, 1 << 20, BLOCK=1024, waves_per_eu=int(waves))


@triton.jit
def softmax_kernel(out, x, row_stride, rows, columns, BLOCK: tl.constexpr):
    """Softmax of rows, each block taking several."""
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        at = tl.arange(0, BLOCK)
        value = tl.load(x + row * row_stride + at, mask=at < columns, other=-float("inf")).to(tl.float32)
        power = tl.exp(value - tl.max(value, 0))
        tl.store(out + row * row_stride + at, (power / tl.sum(power, 0)).to(out.dtype.element_ty), mask=at < columns)


def softmax(waves):
    """16384 rows of 1024 in float16."""
    x = empty(16384, 1024, dtype=torch.float16)
    softmax_kernel[(1024,)](x, x, 1024, 16384, 1024, BLOCK=1024, waves_per_eu=int(waves))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
