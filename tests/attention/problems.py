"""Inputs for the contract's tests, in any layout, and the options under test."""

import ml_dtypes
import numpy as np

LAYOUTS = ("BSHD", "BHSD", "BSE")
BACKENDS = ("cpu", "cpu-flash")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def make(B=2, H=4, Hkv=2, Sq=13, Sk=29, D=12, Dv=None, dtype=np.float32, seed=0):
    """Seeded normal q, k, v as [B, H or Hkv, S, D]."""
    rng = np.random.default_rng(seed)
    shapes = ((B, H, Sq, D), (B, Hkv, Sk, D), (B, Hkv, Sk, D if Dv is None else Dv))
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)


def stored(array, layout):
    """A [B, H, S, D] array as a caller of the layout holds it, in memory of its own."""
    if layout == "BHSD":
        return array.copy()
    moved = array.swapaxes(1, 2).copy()
    return moved if layout == "BSHD" else moved.reshape(*moved.shape[:2], moved.shape[2] * moved.shape[3])


def heads_first(array, layout, heads):
    """The way back: [B, H, S, D]."""
    if layout == "BHSD":
        return array
    if layout == "BSE":
        array = array.reshape(*array.shape[:2], heads, array.shape[2] // heads)
    return array.swapaxes(1, 2)


def head_counts(layout, H, Hkv):
    """The head counts that BSE needs, and the others check if given."""
    return {"num_heads": H, "num_kv_heads": Hkv} if layout == "BSE" else {}


def option_sets(B, H, Sq, Sk, seed=1):
    """Every option of `attention` alone, then combined, by name."""
    rng = np.random.default_rng(seed)
    allowed = rng.random((B, H, Sq, Sk)) < 0.7
    added = np.where(rng.random((B, 1, Sq, Sk)) < 0.8, rng.standard_normal((B, 1, Sq, Sk)), -np.inf).astype(np.float32)
    slopes = rng.uniform(0.05, 0.6, H).astype(np.float32)
    sinks = rng.standard_normal(H).astype(np.float32)
    return {
        "plain": {},
        "causal": {"causal": True},
        "window": {"window": (5, 3)},
        "window-left": {"window": (9, -1)},
        "window-right": {"window": (-1, 0)},
        "window-open": {"window": (-1, -1)},
        "causal-window": {"causal": True, "window": (7, 4)},
        "bool-mask": {"mask": allowed},
        "additive-mask": {"mask": added},
        "softcap": {"softcap": 1.5},
        "alibi": {"alibi_slopes": slopes},
        "alibi-per-batch": {"alibi_slopes": rng.uniform(0.05, 0.6, (B, H)).astype(np.float32)},
        "sinks": {"sinks": sinks},
        "scale": {"scale": 0.21},
        "negative-scale": {"scale": -0.4},
        "softcap-alibi-mask": {"softcap": 2.0, "alibi_slopes": slopes, "mask": added},
        "all": {
            "causal": True, "window": (11, 0), "mask": allowed, "softcap": 1.7, "alibi_slopes": slopes,
            "sinks": sinks, "scale": 0.3,
        },
    }  # fmt: skip


OPTION_NAMES = tuple(option_sets(1, 1, 1, 1))
