"""Triton's flash attention of its tutorial 06, on plain pointers: what `against_triton.py` compiles."""

import triton
import triton.language as tl


@triton.jit
def _visit_keys(
    acc, total, top, q, k_at, v_at, k_stride, v_stride, rows, keys, scale, first, stop,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Online softmax over keys [first, stop)."""
    k_at += first * k_stride
    v_at += first * v_stride
    for key in tl.range(first, stop, BLOCK_N):
        start = tl.multiple_of(key, BLOCK_N)
        s = tl.dot(q, tl.load(k_at))
        if MASKED:
            s = s * scale + tl.where(rows[:, None] >= start + keys[None, :], 0, -1.0e6)
            new_top = tl.maximum(top, tl.max(s, 1))
            s -= new_top[:, None]
        else:
            new_top = tl.maximum(top, tl.max(s, 1) * scale)
            s = s * scale - new_top[:, None]
        p = tl.math.exp2(s)
        kept = tl.math.exp2(top - new_top)
        total = total * kept + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.float16), tl.load(v_at), acc * kept[:, None])
        top = new_top
        k_at += BLOCK_N * k_stride
        v_at += BLOCK_N * v_stride
    return acc, total, top


@triton.jit
def flash_forward(
    q, k, v, out, lse, q_stride_b, q_stride_h, q_stride_s, k_stride_b, k_stride_h, k_stride_s, v_stride_b, v_stride_h,
    v_stride_s, out_stride_b, out_stride_h, out_stride_s, scale, num_heads, seq,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Flash attention forward for whole tiles; grid (query tiles, B * H)."""
    tile, head = tl.program_id(0), tl.program_id(1)
    b, h = (head // num_heads).to(tl.int64), (head % num_heads).to(tl.int64)
    rows, keys, columns = tile * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, D)
    q_tile = tl.load(q + b * q_stride_b + h * q_stride_h + rows[:, None] * q_stride_s + columns[None, :])
    k_at = k + b * k_stride_b + h * k_stride_h + keys[None, :] * k_stride_s + columns[:, None]
    v_at = v + b * v_stride_b + h * v_stride_h + keys[:, None] * v_stride_s + columns[None, :]
    top = tl.zeros([BLOCK_M], tl.float32) - float("inf")
    total = tl.zeros([BLOCK_M], tl.float32) + 1.0
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    scale *= 1.44269504
    diagonal = tile * BLOCK_M if CAUSAL else seq
    acc, total, top = _visit_keys(
        acc, total, top, q_tile, k_at, v_at, k_stride_s, v_stride_s, rows, keys, scale, 0, diagonal, BLOCK_N, False
    )
    if CAUSAL:
        acc, total, top = _visit_keys(
            acc, total, top, q_tile, k_at, v_at, k_stride_s, v_stride_s, rows, keys, scale, diagonal,
            diagonal + BLOCK_M, BLOCK_N, True,
        )  # fmt: skip
    tl.store(lse + head * seq + rows, top + tl.math.log2(total))
    o = out + b * out_stride_b + h * out_stride_h + rows[:, None] * out_stride_s + columns[None, :]
    tl.store(o, (acc / total[:, None]).to(tl.float16))
