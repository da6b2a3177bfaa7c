"""What attention means, written out row by row in float64 from the contract alone: shares no code with the library."""

import math

import numpy as np


def attend(q, k, v, *, causal=False, mask=None, window=None, softcap=None, alibi_slopes=None, sinks=None, scale=None):
    """(out [B, H, Sq, Dv], lse [B, H, Sq]) in float64, from [B, H or Hkv, S, D] arrays of any dtype."""
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    B, H, Sq, D = q.shape
    Hkv, Dv = k.shape[1], v.shape[3]
    out, lse = np.zeros((B, H, Sq, Dv)), np.full((B, H, Sq), -np.inf)
    scale = (1 / math.sqrt(D) if D else 1.0) if scale is None else scale
    for b in range(B):
        for h in range(H):
            g = h // (H // Hkv)
            for i in range(Sq):
                seen, logits = visible_logits(
                    q[b, h, i], k[b, g], b, h, i, Sq, causal, mask, window, softcap, alibi_slopes, scale, H
                )
                terms = [*logits] if sinks is None else [*logits, float(sinks[h])]
                if not terms:
                    continue
                top = max(terms)
                total = math.fsum(math.exp(t - top) for t in terms)
                lse[b, h, i] = top + math.log(total)
                if seen:  # not by the LSE, in which a score of 1e20 leaves no room for the logarithm
                    out[b, h, i] = np.exp(np.array(logits) - top) @ v[b, g, seen] / total
    return out, lse


def visible_logits(q, k, b, h, i, Sq, causal, mask, window, softcap, alibi_slopes, scale, H):
    """The keys that row i sees, and their logits."""
    Sk = len(k)
    diagonal = i + Sk - Sq
    start, stop = 0, Sk
    if causal:
        stop = min(stop, diagonal + 1)
    if window is not None:
        left, right = window
        start = max(start, diagonal - left) if left != -1 else start
        stop = min(stop, diagonal + right + 1) if right != -1 else stop
    seen = np.arange(start, max(start, stop))
    logits = scale * (k[seen] @ q)
    if softcap is not None:
        logits = softcap * np.tanh(logits / softcap)
    if alibi_slopes is not None:
        slope = float(alibi_slopes[h] if np.ndim(alibi_slopes) == 1 else alibi_slopes[b, h])
        logits = logits - slope * np.abs(diagonal - seen)
    if mask is not None:
        # reshaped to 4 dimensions by hand: numpy's broadcasting is what the library uses
        shape = (1,) * (4 - mask.ndim) + mask.shape
        at = tuple(0 if size == 1 else index for size, index in zip(shape[:3], (b, h, i), strict=True))
        row = mask.reshape(shape)[at].astype(mask.dtype if mask.dtype == bool else np.float64)
        row = np.repeat(row, Sk) if len(row) == 1 else row
        row = row[seen]
        keep = row if row.dtype == bool else row != -np.inf
        logits = logits if row.dtype == bool else logits + row
        seen, logits = seen[keep], logits[keep]
    return seen.tolist(), logits.tolist()
