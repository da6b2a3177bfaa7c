"""A correctness sweep: every available backend on a covering set of cases, each output compared with float64.

The cases cover every pair of option values (each band with each layout, each mask with each dtype, each size with
each direction, …): most faults need two things at once, few need three. Outputs are handed to the backend filled with
NaN, so that an element it does not write is caught.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from rocattn.config import AttentionConfig
from rocattn.errors import ConfigError
from rocattn.layouts import empty_in_layout, heads_view
from rocattn_profiling.measure.data import make_inputs, numpy_dtype
from rocattn_profiling.measure.evaluation import check_gradients, check_output
from rocattn_profiling.measure.records import Check  # noqa: TC001 - msgspec reads the annotation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rocattn.registry import Array, Backend
    from rocattn_profiling.measure.data import Inputs

# Factor -> its values. Sizes are odd on purpose: primes, one off a tile edge, one row, one key, nothing at all.
_FACTORS: dict[str, tuple[Any, ...]] = {
    "seq": ((127, 131), (1, 257), (257, 1), (200, 61), (33, 129), (0, 5), (5, 0), (96, 251)),
    "dims": ((64, 64), (5, 7), (40, 24), (128, 33)),
    "heads": ((2, 2), (2, 1), (4, 1), (1, 1), (6, 3)),
    "batch": (2, 1),
    "dtype": ("float32", "bfloat16", "float16", "float64"),
    "layout": ("BSHD", "BHSD", "BSE"),
    "band": (
        {}, {"causal": True}, {"window": (17, 5)}, {"window": (-1, 3)}, {"window": (0, 0)},
        {"causal": True, "window": (30, -1)},
    ),
    "mask": (None, ("bool", "bhqk"), ("additive", "11qk"), ("bool", "b11k"), ("additive", "1hq1"), ("bool", "1h1k")),
    "softcap": (None, 15.0),
    "alibi": (False, True),
    "sinks": (False, True),
    "scale": (None, 0.3),
    "data": ("normal", "trig"),
    "direction": ("forward", "backward"),
}  # fmt: skip
# What the full sweep adds: sizes of several tiles, and all sixteen mask shapes of both kinds.
_MORE: dict[str, tuple[Any, ...]] = {
    "seq": ((513, 1031), (1024, 1024), (700, 1300), (1500, 90), (17, 2053), (1, 1)),
    "dims": ((64, 64), (80, 96), (256, 256), (1, 1)),
    "mask": tuple(
        (kind, "".join(axes)) for kind in ("bool", "additive") for axes in itertools.product("b1", "h1", "q1", "k1")
    ),
}
_TRIES = 40


@dataclass(frozen=True, slots=True)
class Case:
    """One problem to verify, with its data."""

    config: AttentionConfig
    data: str

    @property
    def label(self) -> str:
        """What ``rocattn verify --case`` takes."""
        return f"{self.config.label}-{self.data}"

    @property
    def options(self) -> list[str]:
        """Which options the case exercises: the groups that the summary counts it in."""
        c = self.config
        used = {
            "causal": c.causal, "window": c.window is not None, "bool mask": c.mask == "bool",
            "additive mask": c.mask == "additive", "softcap": c.softcap is not None, "alibi": c.alibi,
            "sinks": c.sinks, "scale": c.scale is not None, "gqa": c.num_heads != c.num_kv_heads,
            "head_dim_v": c.head_dim != c.head_dim_v, "empty": not (c.seq_q and c.seq_k),
        }  # fmt: skip
        return [f"{c.direction}", c.dtype, c.layout, *(name for name, on in used.items() if on)]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to one case on one backend.

    Attributes:
        case, backend: Which.
        options: `Case.options`.
        check: The comparison with float64; None if there is nothing to compare.
        error: What the backend raised; empty if it did not.
        skipped: Why the backend does not support the case; empty if it ran.
    """

    case: str
    backend: str
    options: list[str]
    check: Check | None = None
    error: str = ""
    skipped: str = ""

    @property
    def ran(self) -> bool:
        """Whether the backend was asked to compute it."""
        return not self.skipped

    @property
    def ok(self) -> bool:
        """Whether it was right, or was not asked."""
        return bool(self.skipped) or (self.check is not None and self.check.ok)


def cases(*, quick: bool) -> list[Case]:
    """Return the cases, always in the same order: small ones that cover all pairs, then, unless quick, larger ones."""
    return list(_small_cases() if quick else _all_cases())


def find_case(label: str) -> Case:
    """Return the case of a label.

    Raises:
        ConfigError: When there is none.
    """
    for case in _all_cases():
        if case.label == label:
            return case
    raise ConfigError(f"no case is labelled {label!r}: labels are in verify.json, or in `rocattn verify --json`")


def verify(
    chosen: Sequence[Case], backends: Sequence[Backend], on_step: Callable[[str], None] = lambda _: None
) -> list[Outcome]:
    """Run every case on every backend; ``on_step`` is called with a line after each."""
    outcomes = []
    for case in chosen:
        inputs = make_inputs(case.config, data=case.data)
        for backend in backends:
            outcomes.append(_run(case, inputs, backend))
            on_step(f"{backend.name} {case.label}")
    return outcomes


def _run(case: Case, inputs: Inputs, backend: Backend) -> Outcome:
    common: dict[str, Any] = {"case": case.label, "backend": backend.name, "options": case.options}
    answer = backend.supports(case.config)
    if not answer:
        return Outcome(**common, skipped=answer.reason)
    try:
        return Outcome(**common, check=_checked(case.config, inputs, backend))
    except Exception as error:  # noqa: BLE001 - whatever a backend raises is a finding of the sweep, not its end
        return Outcome(**common, error=f"{type(error).__name__}: {' '.join(str(error).split())}")


def _checked(config: AttentionConfig, inputs: Inputs, backend: Backend) -> Check:
    operands = inputs.operands(config)
    forward = config.replace(direction="forward", return_lse=True)
    out, out_view = _nan((config.batch, config.num_heads, config.seq_q, config.head_dim_v), config)
    lse = np.full((config.batch, config.num_heads, config.seq_q), np.nan, np.float32)
    backend.forward(forward, operands, out_view, lse)
    if config.direction == "forward":
        return check_output(config, inputs, out, lse)
    assert inputs.dout is not None
    dout_view = heads_view(inputs.dout, config.layout, config.num_heads, "dout")
    (dq, dq_view), (dk, dk_view), (dv, dv_view) = (_nan(x.shape, config) for x in (operands.q, operands.k, operands.v))
    backend.backward(config, operands, dout_view, out_view, lse, dq_view, dk_view, dv_view)
    return check_gradients(config, inputs, dq, dk, dv)


def _nan(shape: tuple[int, ...], config: AttentionConfig) -> tuple[Array, Array]:
    return empty_in_layout(shape, config.layout, numpy_dtype(config.dtype), fill=np.nan)


@cache
def _small_cases() -> tuple[Case, ...]:
    return tuple(_covering(_FACTORS, random.Random(0)))  # noqa: S311 - a fixed choice of cases, not a secret


@cache
def _all_cases() -> tuple[Case, ...]:
    larger = _covering(_FACTORS | _MORE, random.Random(1))  # noqa: S311 - as above
    return tuple({case.label: case for case in (*_small_cases(), *larger)}.values())


def _covering(factors: dict[str, tuple[Any, ...]], rng: random.Random) -> list[Case]:
    """Choose cases until all pairs of values of two factors occur together (greedy, as AETG: Cohen et al. 1997)."""
    names = list(factors)
    sizes = {name: range(len(factors[name])) for name in names}
    # A dict keeps its order from run to run, which a set of strings would not.
    missing = dict.fromkeys(
        ((a, i), (b, j)) for a, b in itertools.combinations(names, 2) for i in sizes[a] for j in sizes[b]
    )
    found: dict[str, Case] = {}
    while missing:
        wanted = dict(next(iter(missing)))
        tries = [{name: wanted.get(name, rng.choice(sizes[name])) for name in names} for _ in range(_TRIES)]
        best = max(tries, key=lambda pick: sum(pair in missing for pair in itertools.combinations(pick.items(), 2)))
        for pair in itertools.combinations(best.items(), 2):
            missing.pop(pair, None)
        case = _case({name: factors[name][index] for name, index in best.items()})
        found[case.label] = case
    return list(found.values())


def _case(values: dict[str, Any]) -> Case:
    (seq_q, seq_k), (head_dim, head_dim_v), (heads, kv_heads) = values["seq"], values["dims"], values["heads"]
    options: dict[str, Any] = dict(values["band"])
    if values["mask"] is not None:
        kind, axes = values["mask"]
        full = {"b": values["batch"], "h": heads, "q": seq_q, "k": seq_k, "1": 1}
        options |= {"mask": kind, "mask_shape": tuple(full[axis] for axis in axes)}
    config = AttentionConfig(
        batch=values["batch"],
        num_heads=heads,
        num_kv_heads=kv_heads,
        seq_q=seq_q,
        seq_k=seq_k,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        return_lse=values["direction"] == "forward",
        **{name: values[name] for name in ("dtype", "layout", "softcap", "alibi", "sinks", "scale", "direction")},
        **options,
    )
    return Case(config, values["data"])
