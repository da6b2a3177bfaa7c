"""The cases of `rocattn verify`, in families, at three levels.

"basics" tests each typical mistake of a kernel separately: a case with five options reveals nothing about a backend
that rejects one of them, so each point of `POINTS` is tested in the simplest case that the backend supports, per dtype
and direction. "accuracy" is a sweep that covers every pair of option values (each band with each layout, each mask with
each dtype, each size with each direction, …): most faults need two options at once, few need three. The other families
are written by hand, each for one kind of fault. Each level includes the cases of the levels below it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from rocattn.config import DTYPE_BYTES, FP8_DTYPES, AttentionConfig, VarlenShape
from rocattn.errors import ConfigError

if TYPE_CHECKING:
    from rocattn.backend import Backend


LEVELS = ("quick", "core", "full")
FAMILIES = {
    "basics": "grouped heads, bottom right, batches, layouts, Dv, the last tile: each alone, in each dtype",
    "accuracy": "options in all pairs, against float64 and the other backends",
    "visibility": "which keys each row sees: uniform scores, one-hot values",
    "positions": "where K and V are read: one key a row",
    "edges": "sizes around tiles, arrays surrounded by NaN",
    "layouts": "layouts and strides, with and without the LSE",
    "scales": "numbers from subnormal to 1e4, scores of thousands, rising scores, faint probabilities",
    "stability": "scores of 1e8 to 1e31, equal over a row: the largest is subtracted before anything is rounded",
    "containment": "NaN and inf in hidden keys",
    "varlen": "sequences of different lengths in packed rows, gradients too; NaN between them",
    "paged": "K and V in pages of any size and order, in prompts, chunks and decode steps; NaN in unused memory",
    "fp8": "8-bit K and V, and Q, in both formats, with scales: all bytes, prompts, decode, packed rows, pages",
    "gradients": "gradients against finite differences in float64",
    "determinism": "the same bits again, on any number of threads, from several threads at once",
}
"""Family -> its description."""
STORAGES = ("plain", "moat", "reversed", "wide")
"""Memory layouts: contiguous; inside a buffer of NaN; reversed along the sequence; every second feature."""

# Factor -> its values. Sizes are deliberately odd: primes, one off a tile edge, one row, one key, none.
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
# Added by the full sweep: sizes of several tiles, and all sixteen mask shapes of both kinds.
_MORE: dict[str, tuple[Any, ...]] = {
    "seq": ((513, 1031), (1024, 1024), (700, 1300), (1500, 90), (17, 2053), (1, 1)),
    "dims": ((64, 64), (80, 96), (256, 256), (1, 1)),
    "mask": tuple(
        (kind, "".join(axes)) for kind in ("bool", "additive") for axes in itertools.product("b1", "h1", "q1", "k1")
    ),
}
_TRIES = 40
_SIZES: dict[str, Any] = {"batch": 1, "num_heads": 4, "num_kv_heads": 2, "seq_q": 67, "seq_k": 131, "head_dim": 64}
_HALVES, _WAYS = ("float16", "bfloat16"), ("forward", "backward")
_DTYPES = ("float32", *_HALVES)
TILE = 16  # the smallest tile of a kernel: sizes that are not multiples of it are not multiples of a larger tile
POINTS: dict[str, Callable[[AttentionConfig], bool]] = {
    "batches": lambda c: c.batch > 1,
    "more than two batches": lambda c: c.batch > 2,
    "grouped heads": lambda c: c.num_heads > c.num_kv_heads > 1,
    "causal, Sq < Sk": lambda c: c.causal and c.seq_q < c.seq_k,
    "causal, Sq > Sk": lambda c: c.causal and c.seq_q > c.seq_k,
    "BSHD": lambda c: c.layout == "BSHD",
    "BHSD": lambda c: c.layout == "BHSD",
    "BSE": lambda c: c.layout == "BSE",
    "Dv != D": lambda c: c.head_dim_v != c.head_dim,
    "a last tile of keys that is not full": lambda c: c.seq_k % TILE > 0,
}
"""Point -> whether a config tests it. A layout needs two heads, which all configs here have."""

# Factor -> its values, the simplest first. Three KV heads for six heads: h % 3, h // 3 and h // 2 all differ.
_PLAIN_FACTORS: dict[str, tuple[Any, ...]] = {
    "dims": ((64, 64), (128, 128), (64, 32), (192, 128), (32, 32), (96, 96), (80, 80), (256, 256), (32, 16), (128, 64)),
    "seq": ((67, 131), (131, 67), (131, 131), (64, 128), (128, 64), (128, 128), (1, 131), (1, 128)),
    "heads": ((2, 2), (6, 3), (4, 1)),
    "layout": ("BSHD", "BHSD", "BSE"),
    "causal": (False, True),
    "batch": (2, 1, 3),
    "lse": (True, False),
}


@dataclass(frozen=True, slots=True)
class VerifyCase:
    """A problem to verify: config, data, memory layout and family."""

    config: AttentionConfig
    data: str = "normal"
    family: str = "accuracy"
    storage: str = "plain"

    @property
    def label(self) -> str:
        """The name for ``rocattn verify --case``."""
        parts = [self.config.label, self.data, *([self.storage] if self.storage != "plain" else [])]
        text = "-".join(parts)
        return text if self.family == "accuracy" else f"{self.family}/{text}"

    @property
    def options(self) -> list[str]:
        """The options used by the case: its groups in the summary."""
        c = self.config
        used = {
            "causal": c.causal, "window": c.window is not None, "bool mask": c.mask == "bool",
            "additive mask": c.mask == "additive", "softcap": c.softcap is not None, "alibi": c.alibi,
            "sinks": c.sinks, "scale": c.scale is not None, "gqa": c.num_heads != c.num_kv_heads,
            "head_dim_v": c.head_dim != c.head_dim_v, "fp8": c.kv_dtype is not None, "empty": not (c.seq_q and c.seq_k),
            "dropout": c.dropout_p > 0,
        }  # fmt: skip
        return [f"{c.direction}", c.dtype, c.layout, *(name for name, on in used.items() if on)]


def cases(level: str = "full", backends: Sequence[Backend] = ()) -> list[VerifyCase]:
    """Return a level's cases in a fixed order: those of "quick" first, then the additions of "core".

    Args:
        level: The level.
        backends: For backends that support few of these cases, more cases of the family "basics" are appended.
    """
    wanted = LEVELS[: LEVELS.index(level) + 1]
    by_label = {case.label: case for name in wanted for case in _level(name)}
    narrow = (_basic(*pair) for backend in backends for pair in basics(backend))
    return list((by_label | {case.label: case for case in narrow}).values())


def find_case(label: str) -> VerifyCase:
    """Return the case with this label.

    Raises:
        ConfigError: When there is none.
    """
    for case in itertools.chain(cases(), (_basic(*pair) for pair in all_basics())):
        if case.label == label:
            return case
    raise ConfigError(f"no case has the label {label!r}: labels are in verify.json, or in `rocattn verify --json`")


@cache
def _level(name: str) -> tuple[VerifyCase, ...]:
    """Return the cases that a level adds to those below it."""
    generate = {"quick": _quick, "core": _core, "full": _full}[name]
    return tuple(generate())


def _basic(config: AttentionConfig, storage: str) -> VerifyCase:
    return VerifyCase(config, family="basics", storage=storage)


def _quick() -> Iterator[VerifyCase]:
    yield from (_basic(*pair) for pair in basics())
    yield from _covering(_FACTORS, random.Random(0))  # noqa: S311 - fixed choice of cases, not a secret
    yield from _visibility(("float32",))
    yield from _positions(("float16",))
    for data in ("x0.0001", "x10000", "large-scores", "rising", "falling", "faint"):
        yield _case("scales", data, dtype="float32", num_kv_heads=4)
    for data, dtype in itertools.product(("large-scores", "rising"), _HALVES):  # 16-bit kernels rescale elsewhere
        yield _case("scales", data, dtype=dtype)
    yield _case("stability", "flat-1e10", dtype="bfloat16")
    yield _case("stability", "stepped-1e20", dtype="float32", num_kv_heads=4)
    yield _case("stability", "flat-1e10", dtype="bfloat16", direction="backward")
    yield _case("containment", "hidden-nan", causal=True, dtype="float16")
    yield _case("containment", "hidden-inf", mask="bool", mask_shape=(1, 1, 1, 131))
    yield from itertools.islice(_varlen(("float32",)), 2)
    yield from itertools.islice(_paged(("float16",)), 4)
    yield from itertools.islice(_fp8(), 0, 12, 3)  # both formats, both dtypes
    yield from _gradients(("float64",))
    yield _case("determinism", causal=True, direction="backward", dtype="float16")
    yield from (_case("accuracy", dropout_p=0.2, dtype=dtype, direction=way) for dtype in _DTYPES for way in _WAYS)
    yield _case("edges", storage="moat", seq_q=65, seq_k=129, dtype="bfloat16")
    yield from _wide(("float16",))


def _core() -> Iterator[VerifyCase]:
    masks = {"mask": _MORE["mask"]}
    yield from _covering(_FACTORS | masks, random.Random(2))  # noqa: S311 - as above
    yield from _visibility(_HALVES)
    yield from _positions(("float32", "bfloat16"))
    yield from _edges()
    yield from _layouts()
    yield from _scales()
    yield from _stability()
    yield from _containment()
    yield from _varlen(_DTYPES)
    yield from _paged(_DTYPES)
    yield from _fp8()
    yield from _gradients(("float32", *_HALVES))
    yield from _determinism()


def _full() -> Iterator[VerifyCase]:
    yield from _covering(_FACTORS | _MORE, random.Random(1))  # noqa: S311 - as above
    yield from _visibility(("float64",))
    for dtype, edge in itertools.product(_DTYPES, (16, 32, 48, 64, 96, 128, 192, 256)):
        for seq_q, seq_k in itertools.product((edge - 1, edge + 1), repeat=2):
            yield _case("edges", storage="moat", seq_q=seq_q, seq_k=seq_k, dtype=dtype, causal=seq_q < seq_k)
    for dtype in _DTYPES:
        big: dict[str, Any] = {"seq_q": 1031, "seq_k": 2053, "head_dim": 128, "dtype": dtype}
        for data in ("x10000", "large-scores", "rising", "faint"):
            yield _case("scales", data, **big)
        for data in ("flat-1e8", "stepped-1e8"):
            yield _case("stability", data, **big)
        yield _case("stability", "flat-1e8", direction="backward", **big)
        yield _case("containment", "hidden-nan", causal=True, **big)
        for direction in ("forward", "backward"):
            yield _case("determinism", causal=True, direction=direction, num_heads=8, **big)


def _case(family: str, data: str = "normal", storage: str = "plain", **changes: Any) -> VerifyCase:
    options = _SIZES | changes
    backward = options.get("direction") == "backward"
    return VerifyCase(AttentionConfig(**{"return_lse": not backward} | options), data, family, storage)


def _visibility(dtypes: tuple[str, ...]) -> Iterator[VerifyCase]:
    bands: tuple[dict[str, Any], ...] = (
        {}, {"causal": True}, {"window": (9, 4)}, {"window": (-1, 0)}, {"causal": True, "window": (16, -1)},
    )  # fmt: skip
    for dtype in dtypes:
        for band, (seq_q, seq_k) in itertools.product(bands, ((33, 61), (61, 33), (64, 64))):
            yield _case("visibility", "uniform", dtype=dtype, seq_q=seq_q, seq_k=seq_k, **band)
        for offset in range(1, 32):  # the diagonal leaves a tile, which may be unmasked, at each column
            single: dict[str, Any] = {"num_heads": 1, "num_kv_heads": 1, "seq_q": 64, "seq_k": 64 + offset}
            yield _case("visibility", "uniform", dtype=dtype, causal=True, **single)
        three: dict[str, Any] = {"batch": 3, "num_heads": 2, "num_kv_heads": 1, "mask_shape": (3, 2, 33, 61)}
        for data in ("blank", "uniform"):
            kinds = ("bool", "additive") if data == "uniform" else ("bool",)
            for kind in kinds:
                yield _case("visibility", data, dtype=dtype, mask=kind, seq_q=33, seq_k=61, **three)
        yield _case("visibility", "uniform", dtype=dtype, seq_q=1, seq_k=63)


def _positions(dtypes: tuple[str, ...]) -> Iterator[VerifyCase]:
    for dtype, layout in itertools.product(dtypes, ("BSHD", "BHSD", "BSE")):
        yield _case("positions", "positions", dtype=dtype, layout=layout, batch=2, seq_q=67, seq_k=61)
        yield _case("positions", "positions", dtype=dtype, layout=layout, batch=3, head_dim_v=32, seq_q=1, seq_k=61)


def _edges() -> Iterator[VerifyCase]:
    for index, edge in enumerate((16, 32, 64, 128)):
        for seq_q, seq_k in ((edge - 1, edge + 1), (edge, edge), (edge + 1, edge - 1)):
            dtype = _DTYPES[(index + seq_q - edge) % 3]
            yield _case("edges", storage="moat", seq_q=seq_q, seq_k=seq_k, dtype=dtype, causal=seq_q == edge)
        both: dict[str, Any] = {"seq_q": edge + 1, "seq_k": edge + 1, "direction": "backward", "causal": True}
        yield _case("edges", storage="moat", dtype=_DTYPES[index % 3], **both)
    for index, dim in enumerate((1, 15, 16, 63, 65, 72, 127, 128, 257, 320)):
        yield _case("edges", storage="moat", head_dim=dim, seq_q=17, seq_k=65, dtype=_DTYPES[index % 3])
    yield from _wide(_DTYPES)
    latent: dict[str, Any] = {"head_dim": 576, "head_dim_v": 512, "num_heads": 20, "num_kv_heads": 1, "causal": True}
    for dtype in ("float16", "bfloat16"):  # multi-head latent attention: a decode step, speculative tokens, a prompt
        for seq_q, seq_k in ((1, 700), (3, 531), (40, 70)):
            yield _case("edges", storage="moat", seq_q=seq_q, seq_k=seq_k, dtype=dtype, **latent)


def _wide(dtypes: tuple[str, ...]) -> Iterator[VerifyCase]:
    """Yield heads unsupported by flash kernels: scores in memory, rows of one and several waves, also with a mask."""
    mask: dict[str, Any] = {"mask": "additive", "mask_shape": (1, 1, 1, 2600)}
    for dtype in dtypes:
        heads: dict[str, Any] = {"dtype": dtype, "num_heads": 2, "num_kv_heads": 1, "head_dim": 640}
        yield _case("edges", storage="moat", seq_q=37, seq_k=61, causal=True, **heads)
        yield _case("edges", seq_q=3, seq_k=2600, **mask, **heads)


def _layouts() -> Iterator[VerifyCase]:
    for index, (layout, storage) in enumerate(itertools.product(("BSHD", "BHSD", "BSE"), STORAGES)):
        if layout == "BSE" and storage == "wide":
            continue  # heads are part of the last axis: every second feature would mix heads
        options: dict[str, Any] = {
            "layout": layout,
            "batch": 2,
            "seq_q": 37,
            "dtype": _DTYPES[index % 3],
            "head_dim_v": 40,
        }
        yield _case("layouts", storage=storage, causal=True, **options)
        yield _case("layouts", storage=storage, return_lse=False, **options)
        yield _case("layouts", storage=storage, direction="backward", **options)


def _scales() -> Iterator[VerifyCase]:
    kinds = ("x0.0001", "x0.01", "x100", "x10000", "large-scores", "subnormal", "rising", "falling", "faint", "offset")
    for dtype, data in itertools.product((*_DTYPES, "float64"), kinds):
        yield _case("scales", data, dtype=dtype, causal=data in {"x100", "offset"})
    for dtype, data in itertools.product(_DTYPES, ("x0.01", "large-scores", "rising")):
        yield _case("scales", data, dtype=dtype, direction="backward")
    for dtype, data in itertools.product(_DTYPES, ("lowest", "blank")):
        yield _case("scales", data, dtype=dtype, mask="additive", mask_shape=(1, 1, 67, 131), sinks=data == "blank")
    sunk: dict[str, Any] = {"num_heads": 2, "num_kv_heads": 2, "sinks": True}
    for dtype, direction in itertools.product(_DTYPES, ("forward", "backward")):  # the first 32 rows see no key
        yield _case("scales", "no-sink", dtype=dtype, direction=direction, causal=True, seq_k=35, **sunk)
    for dtype in _DTYPES:  # a decode step with split keys
        yield _case("scales", "no-sink", dtype=dtype, seq_q=1, seq_k=1031, **sunk)
        yield _case("scales", "rising", dtype=dtype, seq_q=1, seq_k=1031, batch=2)
        yield _case("scales", "large-scores", dtype=dtype, softcap=8.0, alibi=True, sinks=True)


def _stability() -> Iterator[VerifyCase]:
    options: tuple[dict[str, Any], ...] = (
        {}, {"causal": True}, {"window": (20, 3)}, {"mask": "bool", "mask_shape": (1, 1, 1, 131)},
        {"mask": "additive", "mask_shape": (1, 1, 67, 131)}, {"softcap": 15.0}, {"alibi": True}, {"sinks": True},
        {"seq_q": 1, "seq_k": 2053, "batch": 2}, {"seq_q": 2, "seq_k": 1031, "causal": True},
    )  # fmt: skip
    for dtype in _DTYPES:
        # 1e10 exceeds the range of a product of two float16 numbers.
        scale: dict[str, Any] = {"scale": 8.0} if dtype == "float16" else {}
        for option in options:
            yield _case("stability", "flat-1e10", dtype=dtype, **scale, **option)
            gradients = "flat-1e8" if scale else "flat-1e10"  # dk for 1e10 exceeds float16
            yield _case("stability", gradients, dtype=dtype, direction="backward", **option)
        yield _case("stability", "equal-1e10", dtype=dtype, seq_q=33, seq_k=528)
        for data in ("flat-1e8", "stepped-1e8") if dtype == "float16" else ("flat-1e8", "flat-1e20", "flat-1e31"):
            yield _case("stability", data, dtype=dtype)
        for option in ({"causal": True}, {"seq_q": 1, "seq_k": 2053}):
            for direction in ("forward", "backward"):
                stepped = "stepped-1e8" if scale else "stepped-1e20"
                yield _case("stability", stepped, dtype=dtype, direction=direction, **option)


def _containment() -> Iterator[VerifyCase]:
    for dtype, data in itertools.product(_DTYPES, ("hidden-nan", "hidden-inf", "hidden-minus-inf")):
        yield _case("containment", data, dtype=dtype, causal=True)
        yield _case("containment", data, dtype=dtype, mask="additive", mask_shape=(1, 1, 67, 131))
    for dtype in _DTYPES:
        yield _case("containment", "hidden-nan", dtype=dtype, window=(20, 3), seq_q=131)
        yield _case("containment", "hidden-nan", dtype=dtype, mask="bool", mask_shape=(1, 4, 67, 131), softcap=9.0)
        yield _case("containment", "hidden-nan", dtype=dtype, mask="bool", mask_shape=(1, 1, 1, 131), seq_q=1)
        for kind in ("bool", "additive"):
            hidden: dict[str, Any] = {"mask": kind, "mask_shape": (1, 1, 1, 131), "direction": "backward"}
            yield _case("containment", "hidden-nan", dtype=dtype, **hidden)


# (Sq, Sk) of each sequence: tiles plus or minus one row, no rows, no keys, decode steps, a chunk of a prompt.
_PROMPTS = ((65, 65), (0, 7), (1, 130), (33, 129), (5, 0), (70, 17), (128, 128))
_STEPS = ((1, 1031), (1, 1), (2, 700), (1, 0), (1, 64))
_CHUNKS = ((16, 900), (1, 333), (16, 16), (9, 2053))


def _of_lengths(family: str, lengths: tuple[tuple[int, int], ...], page_size: int = 0, **changes: Any) -> VerifyCase:
    """Return a case of sequences of these (Sq, Sk), with one unused page and one unused block-table entry per row."""
    rows, keys = (sum(pair[axis] for pair in lengths) for axis in (0, 1))
    pages = [-(-k // page_size) for _, k in lengths] if page_size else []
    varlen = VarlenShape(
        total_q=rows, total_k=0 if page_size else keys + 3, page_size=page_size,
        num_pages=sum(pages) + 1 if page_size else 0, max_pages=max(pages) + 1 if page_size else 0,
        counts_keys=page_size > 0, lengths=lengths,
    )  # fmt: skip
    longest: dict[str, Any] = {
        name: max(pair[axis] for pair in lengths) for axis, name in enumerate(("seq_q", "seq_k"))
    }
    return _case(family, batch=len(lengths), varlen=varlen, **longest, **changes)


_EVERY = {"causal": True, "window": (40, -1), "softcap": 15.0, "alibi": True, "sinks": True, "scale": 0.3}


def _varlen(dtypes: tuple[str, ...]) -> Iterator[VerifyCase]:
    options: tuple[dict[str, Any], ...] = (
        {"causal": True}, {"causal": True, "direction": "backward"}, {}, {"window": (20, 3), "sinks": True}, _EVERY,
        {"head_dim": 40, "head_dim_v": 24, "num_kv_heads": 4},
    )  # fmt: skip
    for dtype in dtypes:
        for option in options:
            yield _of_lengths("varlen", _PROMPTS, dtype=dtype, **option)
        yield _of_lengths("varlen", _STEPS, dtype=dtype, causal=True)
        yield _of_lengths("varlen", _CHUNKS, dtype=dtype, causal=True)


def _paged(dtypes: tuple[str, ...]) -> Iterator[VerifyCase]:
    for dtype in dtypes:
        for page_size in (16, 256):
            for lengths in (_PROMPTS, _STEPS, _CHUNKS):
                yield _of_lengths("paged", lengths, page_size, dtype=dtype, causal=True)
        yield _of_lengths("paged", _PROMPTS, 24, dtype=dtype, **_EVERY)
        yield _of_lengths("paged", _STEPS, 24, dtype=dtype, num_heads=32, window=(600, 0), sinks=True)
        yield _of_lengths("paged", _PROMPTS, 64, dtype=dtype, head_dim=40, head_dim_v=24)


def _fp8() -> Iterator[VerifyCase]:
    scaled: dict[str, Any] = {"k_scale": True, "v_scale": True}
    decode: dict[str, Any] = {"batch": 2, "num_heads": 8, "seq_q": 1, "seq_k": 1031, "head_dim": 128}
    options: tuple[tuple[Callable[..., VerifyCase], dict[str, Any]], ...] = (
        (partial(_case, "fp8", "all-bytes"), decode | scaled),
        (partial(_of_lengths, "fp8", _STEPS, 16), {"causal": True} | scaled),
        (partial(_case, "fp8", "all-bytes", "moat"), {"causal": True, "batch": 2} | scaled),
        (partial(_case, "fp8", "normal", "moat"),
         decode | {"seq_q": 7, "head_dim": 40, "head_dim_v": 20, "k_scale": True}),
        (partial(_case, "fp8"),
         {"layout": "BHSD", "window": (20, 3), "softcap": 9.0, "alibi": True, "sinks": True} | scaled),
        (partial(_case, "fp8"), {"layout": "BSE", "mask": "bool", "mask_shape": (1, 4, 67, 131), "v_scale": True}),
        (partial(_case, "fp8", "normal", "reversed"), {"head_dim": 192, "head_dim_v": 128}),
        (partial(_of_lengths, "fp8", _PROMPTS), {"causal": True} | scaled),
        (partial(_of_lengths, "fp8", _CHUNKS, 24), {"causal": True} | scaled),
        (partial(_of_lengths, "fp8", _PROMPTS, 64), {"head_dim": 40, "head_dim_v": 24} | scaled),
        (partial(_case, "fp8", "positions"), {"seq_k": 61}),
        (partial(_case, "containment", "hidden-nan"), {"causal": True} | scaled),
        (partial(_case, "containment", "hidden-nan"),
         decode | {"mask": "bool", "mask_shape": (1, 1, 1, 1031)} | scaled),
    )  # fmt: skip
    kinds = tuple(zip((*FP8_DTYPES, *FP8_DTYPES), (*_HALVES, *reversed(_HALVES)), strict=True))
    for (case, sizes), (kv_dtype, dtype) in itertools.product(options, kinds):
        yield case(**sizes, dtype=dtype, kv_dtype=kv_dtype)
    of_q = scaled | {"q_scale": True}
    small_q: tuple[tuple[Callable[..., VerifyCase], dict[str, Any]], ...] = (
        (partial(_case, "fp8", "all-bytes"), {"causal": True} | of_q),
        (partial(_case, "fp8", "normal", "moat"), decode | {"seq_q": 7, "head_dim": 40, "head_dim_v": 20} | of_q),
        (partial(_of_lengths, "fp8", _CHUNKS, 24), {"causal": True, "head_dim": 80} | of_q),
        (partial(_of_lengths, "fp8", _PROMPTS), {"softcap": 9.0, "alibi": True, "sinks": True}),
    )
    for (case, sizes), (kv_dtype, dtype) in itertools.product(small_q, kinds):
        yield case(**sizes, dtype=dtype, kv_dtype=kv_dtype, q_dtype=kv_dtype)
    for kv_dtype in FP8_DTYPES:  # float16 needs 2^15 for such scores, which exceeds 8 bits
        yield _case("fp8", "flat-1e10", dtype="bfloat16", kv_dtype=kv_dtype, **scaled)


def _gradients(dtypes: tuple[str, ...]) -> Iterator[VerifyCase]:
    sizes: dict[str, Any] = {
        "seq_q": 9,
        "seq_k": 11,
        "head_dim": 8,
        "head_dim_v": 8,
        "direction": "backward",
        "num_kv_heads": 4,
    }
    options: tuple[dict[str, Any], ...] = (
        {}, {"causal": True}, {"window": (3, 2)}, {"mask": "bool", "mask_shape": (1, 4, 9, 11)},
        {"mask": "additive", "mask_shape": (1, 1, 9, 11)}, {"softcap": 2.0}, {"alibi": True}, {"sinks": True},
        {"scale": 0.7}, {"num_kv_heads": 2}, {"head_dim_v": 5}, {"seq_q": 13, "causal": True},
        {
            "causal": True, "window": (6, -1), "mask": "additive", "mask_shape": (1, 4, 1, 11), "softcap": 3.0,
            "alibi": True, "sinks": True, "scale": 0.5, "num_kv_heads": 1, "head_dim_v": 5,
        },
    )  # fmt: skip
    for dtype in dtypes:
        for option in options:
            yield _case("gradients", dtype=dtype, **sizes | option)


def _determinism() -> Iterator[VerifyCase]:
    for dtype, direction in itertools.product(_DTYPES, ("forward", "backward")):
        yield _case("determinism", dtype=dtype, direction=direction, seq_q=131, causal=True)
    yield _case("determinism", dtype="float16", seq_q=1, seq_k=1031, batch=2)
    many: dict[str, Any] = {
        "alibi": True,
        "sinks": True,
        "softcap": 15.0,
        "mask": "bool",
        "mask_shape": (1, 1, 67, 131),
    }
    yield _case("determinism", dtype="bfloat16", **many)


def _covering(factors: dict[str, tuple[Any, ...]], rng: random.Random) -> list[VerifyCase]:
    """Choose cases until all pairs of values of two factors occur together (greedy, as AETG: Cohen et al. 1997)."""
    names = list(factors)
    sizes = {name: range(len(factors[name])) for name in names}
    # A dict, unlike a set of strings, has the same order in every run.
    missing = dict.fromkeys(
        ((a, i), (b, j)) for a, b in itertools.combinations(names, 2) for i in sizes[a] for j in sizes[b]
    )
    chosen_cases: dict[str, VerifyCase] = {}
    while missing:
        wanted = dict(next(iter(missing)))
        tries = [{name: wanted.get(name, rng.choice(sizes[name])) for name in names} for _ in range(_TRIES)]
        best = max(tries, key=lambda pick: sum(pair in missing for pair in itertools.combinations(pick.items(), 2)))
        for pair in itertools.combinations(best.items(), 2):
            missing.pop(pair, None)
        case = _combined({name: factors[name][index] for name, index in best.items()})
        chosen_cases[case.label] = case
    return list(chosen_cases.values())


def _combined(values: dict[str, Any]) -> VerifyCase:
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
    return VerifyCase(config, values["data"])


def basics(backend: Backend | None = None) -> Iterator[tuple[AttentionConfig, str]]:
    """Yield the simplest problem for each point, dtype and direction, with its memory layout.

    Args:
        backend: Limits the problems to those it supports; None for no limit.
    """
    for dtype, direction in itertools.product(DTYPE_BYTES, ("forward", "backward")):
        able = _Able(dtype, direction, backend)
        for name, shows in POINTS.items():
            if (config := able.first(shows)) is not None:
                # Surrounded by NaN, so that the last tile's reads past the last key show.
                yield config, "moat" if "tile" in name else "plain"


def all_basics() -> Iterator[tuple[AttentionConfig, str]]:
    """Yield everything that `basics` can yield for any backend."""
    for dtype, direction in itertools.product(DTYPE_BYTES, ("forward", "backward")):
        yield from itertools.product(_configs(dtype, direction), ("plain", "moat"))


class _Able:
    """The configs of a dtype and direction that a backend supports, simplest first; each is checked once."""

    def __init__(self, dtype: str, direction: str, backend: Backend | None) -> None:
        configs = _configs(dtype, direction)
        self._more: Iterator[AttentionConfig] = (c for c in configs if backend is None or _supports(backend, c))
        self._known: list[AttentionConfig] = []

    def first(self, shows: Callable[[AttentionConfig], bool]) -> AttentionConfig | None:
        """Return the simplest config that tests a point, or None."""
        for config in self._known:
            if shows(config):
                return config
        for config in self._more:
            self._known.append(config)
            if shows(config):
                return config
        return None


def _supports(backend: Backend, config: AttentionConfig) -> bool:
    try:
        return bool(backend.supports(config))
    except Exception:  # noqa: BLE001 - the case is then run and reports the exception
        return True


def _configs(dtype: str, direction: str) -> Iterator[AttentionConfig]:
    """Yield all combinations of the factors, simplest first."""
    for picked in _places():
        if (config := _config(dtype, direction, picked)) is not None:
            yield config


@cache
def _places() -> list[tuple[int, ...]]:
    """Return the indices of the factors' values, simplest combination first: by the sum of the indices."""
    return sorted(itertools.product(*(range(len(values)) for values in _PLAIN_FACTORS.values())), key=sum)


@cache
def _config(dtype: str, direction: Any, picked: tuple[int, ...]) -> AttentionConfig | None:
    values = {name: _PLAIN_FACTORS[name][place] for name, place in zip(_PLAIN_FACTORS, picked, strict=True)}
    if direction == "backward" and values["lse"]:  # gradients have no LSE
        return None
    (head_dim, head_dim_v), (seq_q, seq_k), (heads, kv_heads) = values["dims"], values["seq"], values["heads"]
    return AttentionConfig(
        batch=values["batch"], num_heads=heads, num_kv_heads=kv_heads, seq_q=seq_q, seq_k=seq_k, head_dim=head_dim,
        head_dim_v=head_dim_v, dtype=dtype, layout=values["layout"], causal=values["causal"],
        return_lse=values["lse"], direction=direction,
    )  # fmt: skip
