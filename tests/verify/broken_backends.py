"""Backends with one well-known mistake each, as `rocattn verify --backend-module` loads them; "broken-not" has none.

They compute with a small float32 program of their own or bend what they hand to the reference, and know nothing of how
`verify` describes a mistake.
"""

import numpy as np

from rocattn.backend import YES, Backend, Support
from rocattn.backends import BACKENDS

TILE = 48  # keys of an online softmax's tile
SENTINEL = -1e9


class Broken(Backend):
    """The reference with a mistake in its forward pass: ``compute(config, operands, out, lse)``."""

    priority = -100

    def __init__(self, mistake, compute, *, needs=lambda _config: True):
        self.name, self._compute, self._needs = f"broken-{mistake}", compute, needs

    def supports(self, config):
        """Say yes to what the program below can do."""
        return YES if self._needs(config) else Support(ok=False, reason="not with softcap, ALiBi or sinks")

    def workspace_bytes(self, config):
        """Return what the reference takes."""
        return reference().workspace_bytes(config)

    def forward(self, config, operands, out, lse):
        """Compute, with the mistake."""
        with np.errstate(all="ignore"):
            self._compute(config, operands, out, lse)

    def backward(self, config, operands, dout, out, lse, dq, dk, dv):
        """Differentiate as the reference does."""
        reference().backward(config, operands, dout, out, lse, dq, dk, dv)


def reference():
    """The backend that supports everything."""
    return BACKENDS.get("cpu")


def with_mask(config, operands, allowed):
    """The reference's arguments with one more boolean mask [1, 1, Sq, Sk]."""
    mask = allowed
    if operands.mask is not None and operands.mask.dtype == bool:
        mask = operands.mask & allowed
    elif operands.mask is not None:
        mask = np.where(allowed, operands.mask, operands.mask.dtype.type(-np.inf))
    kind = "bool" if mask.dtype == bool else "additive"
    return config.replace(mask=kind, mask_shape=mask.shape), operands._replace(mask=mask)


def dropped_last_key(config, operands, out, lse):
    """A loop that ends one key early."""
    allowed = np.ones((1, 1, config.seq_q, config.seq_k), bool)
    allowed[..., -1:] = False
    reference().forward(*with_mask(config, operands, allowed), out, lse)


def top_left_causal(config, operands, out, lse):
    """PyTorch's `is_causal`: row i sees keys up to i."""
    if not config.causal:
        reference().forward(config, operands, out, lse)
        return
    allowed = np.tri(config.seq_q, config.seq_k, dtype=bool)[None, None]
    reference().forward(*with_mask(config.replace(causal=False), operands, allowed), out, lse)


def large_values_only(config, operands, out, lse):
    """An additive mask taken for a boolean one: what is above -1e30 is not added."""
    if config.mask == "additive":
        values = operands.mask
        operands = operands._replace(mask=np.where(values > -1e30, 0, -np.inf).astype(values.dtype))
    reference().forward(config, operands, out, lse)


def owner(view):
    """The array whose memory a view is of (BSE's goes through as_strided)."""
    while getattr(view, "base", None) is not None:
        view = view.base
    return view


def log2_lse(config, operands, out, lse):
    """The LSE as a kernel that works with exp2 has it."""
    reference().forward(config, operands, out, lse)
    if lse is not None:
        lse /= np.float32(np.log(2))


def value_stride_128(config, operands, out, lse):
    """Rows of V taken to be 128 elements apart; past the end of memory the last element is read."""
    v = operands.v
    flat = owner(v).reshape(-1)
    batch, head, _, feature = (step // v.itemsize for step in v.strides)
    b, h, j, d = np.ogrid[tuple(slice(n) for n in v.shape)]
    at = np.minimum(b * batch + h * head + j * 128 + d * feature, flat.size - 1)
    reference().forward(config, operands._replace(v=flat[at]), out, lse)


def visible(config, operands):
    """(bool mask of what is seen, values to add) as the contract has it."""
    rows, keys = np.arange(config.seq_q)[:, None] + config.seq_k - config.seq_q, np.arange(config.seq_k)
    left, right = config.band or (-1, -1)
    seen = np.ones(config.scores_shape, bool)
    seen &= (keys >= rows - left) if left >= 0 else True
    seen &= (keys <= rows + right) if right >= 0 else True
    mask = operands.mask
    if mask is None:
        return seen, np.float32(0)
    if mask.dtype == bool:
        return seen & mask, np.float32(0)
    return seen & (mask != mask.dtype.type(-np.inf)), mask.astype(np.float32)


def program(config, operands, out, lse, *, hidden=-np.inf, stored=None, tile=0, fused=False):
    """Standard attention in float32, tile by tile if ``tile``; no softcap, ALiBi or sinks.

    If ``fused``, p is exp2 of a fused multiply-add of a score and the rounded maximum.
    """
    group = config.num_heads // config.num_kv_heads
    q, k, v = (x.astype(np.float32) for x in (operands.q, operands.k, operands.v))
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    bad = ~np.isfinite(v).all(axis=-1)
    seen, added = visible(config, operands)
    scores = q @ k.swapaxes(-1, -2) * np.float32(config.softmax_scale)
    scores = np.where(seen, scores + np.where(seen, added, 0), np.float32(hidden))
    top = np.full(scores.shape[:-1], -np.inf, np.float32)
    total, sums = np.zeros_like(top), np.zeros((*top.shape, v.shape[-1]), np.float32)
    step = tile or max(config.seq_k, 1)
    for start in range(0, config.seq_k, step):
        part = scores[..., start : start + step]
        top = np.maximum(top, part.max(axis=-1))  # without correcting what was summed before
        less = np.where(np.isneginf(top), 0, top)[..., None]
        p = np.exp(part - less)
        if fused:
            p = np.exp2((part * np.log2(np.e) - (less * np.float32(np.log2(np.e)))).astype(np.float32))
        total += p.sum(axis=-1)
        if stored is not None:
            p = p.astype(stored).astype(np.float32)
        sums += p @ np.where(bad[..., None], 0, v)[:, :, start : start + step]
    out[...] = sums / np.where(total == 0, 1, total)[..., None]
    spoilt = (seen & bad[:, :, None]).any(axis=-1)
    out[spoilt] = np.nan
    if lse is not None:
        lse[...] = np.where(total == 0, -np.inf, np.log(total) + np.where(np.isneginf(top), 0, top))


def plain(config):
    """Whether the program above can do it right."""
    return config.softcap is None and not config.alibi and not config.sinks and config.dtype != "float64"


for broken in (
    Broken("not", program, needs=lambda config: plain(config) and config.dtype == "float32"),
    Broken("last-key", dropped_last_key),
    Broken("top-left", top_left_causal),
    Broken("sentinel", lambda *a: program(*a, hidden=SENTINEL), needs=plain),
    Broken("additive", large_values_only),
    Broken("half-p", lambda *a: program(*a, stored=np.float16), needs=plain),
    Broken("rescale", lambda *a: program(*a, tile=TILE), needs=plain),
    Broken("fused", lambda *a: program(*a, fused=True), needs=plain),
    Broken(
        "narrow", program, needs=lambda config: config.dtype == "float64" and plain(config.replace(dtype="float32"))
    ),
    Broken("log2", log2_lse),
    Broken("stride", value_stride_128),
):
    BACKENDS.register(broken)
