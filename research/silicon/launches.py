"""Attention of others at attn-dsl-bench's sizes, for `rocattn kernels capture`: launches.py WHAT CHECKOUT HEAD TOKENS.

    rocattn kernels capture --python TRITON_3_4 --arch gfx942 gfx950 --out CODE/triton/128 -- \
        python research/silicon/launches.py triton HIPKITTENS 128
    rocattn kernels capture --python TRITON_3_4 --arch gfx942 --out CODE/sdpa/128/2048 -- \
        python research/silicon/launches.py sdpa AOTRITON 128 2048

``triton`` is the program that attn-dsl-bench launches, at HipKittens' f09e968; all that its tuner tries is compiled.
``sdpa`` is the kernel of PyTorch's scaled_dot_product_attention on ROCm, AOTriton's at its tag 0.11.1b, in the
configuration that AOTriton's table has for that many tokens (``attn_fwd.sqlite3``, unpacked beside its archive); at
run time PyTorch takes the nearest one. Nothing of either is here.
"""

import importlib.util
import sqlite3
import sys
from pathlib import Path

import torch

BATCH, HEADS = 16, 16


def main(what, checkout, head, tokens="16384"):
    """Launch one kernel on tensors of which nobody asks for values."""
    shape = (BATCH, HEADS, int(tokens), int(head))
    tensors = [torch.empty(shape, dtype=torch.bfloat16, device="cuda") for _ in range(4)]
    {"triton": triton, "sdpa": sdpa}[what](Path(checkout), *tensors)


def triton(checkout, q, k, v, out):
    """The benchmark's call."""
    spec = importlib.util.spec_from_file_location("flash", checkout / "analysis/baselines/attn/triton_baseline_v02.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    data = module.MetaData(sm_scale=q.shape[-1] ** -0.5)
    data.max_seqlens_q = data.max_seqlens_k = q.shape[2]
    data.layout = "bhsd"
    data.need_causal()
    module.attention(q, k, v, out, data)


def sdpa(checkout, q, k, v, out):
    """What AOTriton's C++ launches: the kernel with the arguments of its own Python, tiles from its table."""
    sys.path.insert(0, str(checkout / "tritonsrc"))
    from fwd_kernel import attn_fwd

    tokens, head = q.shape[2:]
    table = checkout / "v3python/database/amd/gfx942/flash/attn_fwd.sqlite3"
    (row,) = sqlite3.connect(table).execute(
        "SELECT tuned_kernel$PERSISTENT_TYPE, tuned_kernel$BLOCK_M, tuned_kernel$BLOCK_N, tuned_kernel$PRE_LOAD_V,"
        " compiler_options$waves_per_eu, compiler_options$num_warps, compiler_options$num_stages FROM FLASH$attn_fwd"
        " WHERE inputs$Q_dtype = 'torch.bfloat16' AND inputs$CAUSAL_TYPE = 3 AND inputs$ENABLE_DROPOUT = 0"
        " AND inputs$PADDED_HEAD = 0 AND inputs$BIAS_TYPE = 0"
        " AND inputs$Max_seqlen_q = ? AND inputs$Max_seqlen_k = ? AND inputs$BLOCK_DMODEL = ?",
        (tokens, tokens, head),
    )
    persistent, block_m, block_n, preloads, waves, warps, stages = row
    seed, lengths = (torch.empty(0, dtype=each, device="cuda") for each in (torch.uint64, torch.int32))
    sums = torch.empty((BATCH * HEADS, tokens), dtype=torch.float32, device="cuda")
    counter = torch.zeros(1, dtype=torch.int32, device="cuda")
    attn_fwd[(304 * 2,)](
        q, k, v, None, None, head**-0.5, sums, out, None, None, None, None, None,
        *q.stride(), *k.stride(), *v.stride(), *out.stride(), 0, 0, 0, 0, 0, 0,
        Num_head_q=HEADS, Num_head_k=HEADS, Num_seqlens=0, cu_seqlens_q=lengths, cu_seqlens_k=lengths,
        Max_seqlen_q=tokens, Max_seqlen_k=tokens, BLOCK_DMODEL=head, Head_dim=head, PADDED_HEAD=False,
        ENABLE_DROPOUT=False, dropout_p=0.0, philox_seed_ptr=seed, philox_offset1=seed, philox_offset2=0,
        philox_seed_output=seed, philox_offset_output=seed,
        RETURN_ENCODED_SOFTMAX=False, encoded_softmax=None, CAUSAL_TYPE=3, Window_left=-2147483647,
        Window_right=-2147483647, BIAS_TYPE=0, USE_ALIBI=False, INT8=False, INT8_KV=False, USE_P_SCALE=False,
        PERSISTENT_TYPE=persistent, persistent_atomic_counter=counter, Num_CU=304, GRID_CU_MULTIP=2, Batch=BATCH,
        BLOCK_M=block_m, BLOCK_N=block_n, PRE_LOAD_V=bool(preloads), waves_per_eu=waves, num_warps=warps,
        num_stages=stages,
    )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
