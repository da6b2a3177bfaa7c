"""The options that describe one attention problem, shared by ``rocattn bench`` and ``rocattn plan``."""

from __future__ import annotations

import argparse
from typing import Any

from rocattn.config import DTYPE_BYTES, FP8_DTYPES, LAYOUTS, AttentionConfig

SIZES = {
    "batch": "sequences (default 1)",
    "num_heads": "query heads (default 8)",
    "num_kv_heads": "KV heads (default: as many as query heads)",
    "seq_q": "query tokens (default 512)",
    "seq_k": "key tokens (default: as many as query tokens)",
    "head_dim": "D of q and k (default 64)",
    "head_dim_v": "D of v and out (default: as q and k)",
}
BAND = ("causal", "window", "softcap")
STORAGE = ("layout", "dtype", "q_dtype", "kv_dtype")
MOST_THREADS = 4096
MOST_SECONDS = 1e7


def natural(text: str) -> int:
    """Parse an integer of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 0 or more")
    return int(text)


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 1 or more")
    return int(text)


def thread_number(text: str) -> int:
    """Parse a number of threads; with more than any machine has, measurements would not end."""
    if not text.isdecimal() or not 1 <= int(text) <= MOST_THREADS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of threads, 1 to {MOST_THREADS}")
    return int(text)


def seconds(text: str) -> float:
    """Parse a time: waiting for a process is limited to about 10^9 seconds, and NaN is invalid."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0, at most {MOST_SECONDS:.0f}")
    return value


def flag(name: str) -> str:
    """Return the option for a field: ``--num-heads`` for "num_heads"."""
    return f"--{name.replace('_', '-')}"


def add_storage(group: argparse._ArgumentGroup) -> None:
    """Add ``--direction``, ``--layout``, ``--dtype``, ``--q-dtype`` and ``--kv-dtype``."""
    group.add_argument("--direction", choices=("forward", "backward"), default="forward", help="(default forward)")
    group.add_argument("--layout", choices=LAYOUTS, help="memory layout (default BSHD)")
    group.add_argument("--dtype", choices=tuple(DTYPE_BYTES), help="element type (default float32)")
    group.add_argument("--q-dtype", choices=FP8_DTYPES, help="8-bit element type of q, with the same --kv-dtype")
    group.add_argument("--kv-dtype", choices=FP8_DTYPES, help="8-bit element type of k and v (default: the dtype)")


def add_sizes(group: argparse._ArgumentGroup) -> None:
    """Add an option for each size, and for causal, window and softcap; None if not given."""
    for name, text in SIZES.items():
        # Queries and keys may be empty; without a head dimension there is nothing to time or check.
        kind = positive if name in {"head_dim", "head_dim_v"} else natural
        group.add_argument(flag(name), type=kind, metavar="N", help=text)
    group.add_argument("--causal", action="store_true", default=None, help="causal, aligned bottom-right")
    group.add_argument("--window", type=int, nargs=2, metavar=("LEFT", "RIGHT"), help="sliding window; -1 is open")
    group.add_argument("--softcap", type=float, metavar="C", help="c tanh(score / c)")


def given(arguments: argparse.Namespace, names: tuple[str, ...] = (*SIZES, *BAND)) -> dict[str, Any]:
    """Return the fields given on the command line."""
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}


def config_of(fields: dict[str, Any], direction: Any) -> AttentionConfig:
    """Return the config with these fields, and defaults for the others.

    Raises:
        ConfigError: When they contradict each other.
    """
    seq_q = fields.get("seq_q", 512)
    defaults = {"batch": 1, "num_heads": 8, "seq_q": seq_q, "seq_k": seq_q, "head_dim": 64, "direction": direction}
    return AttentionConfig(**(defaults | fields))
