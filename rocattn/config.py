"""AttentionConfig: everything that selects a kernel, and the exact work it describes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any, Literal

from rocattn.errors import ConfigError

DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
FP8_DTYPES = ("float8_e4m3fn", "float8_e4m3fnuz")
"""The 8-bit dtypes for k and v: OCP's E4M3 and CDNA 3's, with the names of ml_dtypes."""
LAYOUTS = ("BSHD", "BHSD", "BSE")
LARGEST = 1e30
"""Largest scale, softcap, reciprocal of a softcap, ALiBi slope and sink: kernels multiply by them in float32."""
VARLEN_LARGEST = (1 << 31) - 1
"""Largest number of rows, pages and sequences of a `VarlenShape`, which are int32."""
MaskKind = Literal["none", "bool", "additive"]
Direction = Literal["forward", "backward"]


def _is_whole(value: object) -> bool:
    """Return whether a value is an int, but not a bool; 2.0 would make a different key than 2."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _clamped_ramp_sum(first: int, count: int, top: int) -> int:
    """Return the sum of min(max(x, 0), top) over x = first, first + 1, … (``count`` terms)."""

    def upto(n: int) -> int:  # the same sum over x = …, -1, 0, 1, … n - 1
        n = max(n, 0)
        return n * (n - 1) // 2 if n <= top else top * (top - 1) // 2 + (n - top) * top

    return upto(first + count) - upto(first)


@dataclass(frozen=True, slots=True, kw_only=True)
class VarlenShape:
    """The memory layout of sequences of different lengths: q packed, k and v packed or in pages.

    Attributes:
        total_q: Rows of q [total_q, H, D]; the rows of a sequence are adjacent.
        total_k: Rows of k and v [total_k, Hkv, D]; 0 with pages.
        page_size: Tokens per page of k and v [num_pages, page_size, Hkv, D]; 0 if they are packed.
        num_pages: Number of pages.
        max_pages: Block-table entries per sequence.
        counts_keys: Whether a separate array gives each sequence's number of keys; always with pages.
        lengths: (Sq, Sk) of each sequence, for exact counts of work; () if they are only in the caller's arrays.

    Raises:
        ConfigError: When a size is not an integer, or sizes contradict each other.
    """

    total_q: int
    total_k: int = 0
    page_size: int = 0
    num_pages: int = 0
    max_pages: int = 0
    counts_keys: bool = False
    lengths: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        """Check the sizes."""
        for name in ("total_q", "total_k", "page_size", "num_pages", "max_pages"):
            if not _is_whole(value := getattr(self, name)) or not 0 <= value <= VARLEN_LARGEST:
                raise ConfigError(f"{name} is {value!r}: it must be a whole number from 0 to 2^31 - 1")
        if (self.page_size and self.total_k) or (not self.page_size and (self.num_pages or self.max_pages)):
            raise ConfigError("k and v are packed (total_k) or in pages (page_size, num_pages, max_pages), not both")
        object.__setattr__(self, "lengths", tuple((int(q), int(k)) for q, k in self.lengths))

    @property
    def paged(self) -> bool:
        """Whether k and v are in pages."""
        return self.page_size > 0

    @property
    def label(self) -> str:
        """Its short, readable part of `AttentionConfig.label`."""
        kind = f"paged{self.page_size}" if self.paged else f"varlen{self.total_k}"
        return f"{kind}.{self.total_q}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """One attention problem without its data: sizes, dtype, layout, options.

    Attributes:
        batch, num_heads, num_kv_heads: B, H and Hkv; H must be a multiple of Hkv.
        seq_q, seq_k: Sq and Sk, in tokens; may be 0.
        head_dim, head_dim_v: D of q and k, Dv of v and out.
        dtype: "float16", "bfloat16", "float32" or "float64", shared by q, k, v and out.
        kv_dtype: Dtype of 8-bit k and v, one of `FP8_DTYPES`; None for ``dtype``. Forward only.
        q_dtype: Dtype of 8-bit q, the same as ``kv_dtype``; None for ``dtype``.
        q_scale, k_scale, v_scale: Whether factors for 8-bit q, k and v are given.
        layout: "BSHD", "BHSD" or "BSE" ([B, S, H*D]).
        causal: Row i sees keys j <= i + Sk - Sq (bottom-right alignment).
        window: (left, right) keys around the diagonal i + Sk - Sq that a row sees; -1 is open.
        mask: "none", "bool" (True = may attend) or "additive" (added to the scaled scores).
        mask_shape: The mask's shape before broadcasting to [B, H, Sq, Sk]; None without one.
        softcap: c in c * tanh(score / c), applied before the mask; None for off.
        alibi, sinks: Whether ALiBi slopes and per-head sink logits are given.
        scale: Factor of q.k; None is 1 / sqrt(D).
        return_lse: Whether to return the natural-log LSE, float32 [B, H, Sq].
        direction: "forward" or "backward".
        lse_gradient: Whether the LSE also has a gradient; backward only.
        dropout_p: The probability of dropping a weight; seed and offset determine which ones.
        varlen: For `rocattn.attention_varlen`: the memory layout of its ``batch`` sequences; ``seq_q`` and ``seq_k``
            are then the longest lengths, or bounds of them. None: all sequences have the same length.

    Raises:
        ConfigError: When the fields contradict each other.
    """

    batch: int
    num_heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    num_kv_heads: int = 0
    head_dim_v: int = -1
    dtype: str = "float32"
    layout: str = "BSHD"
    causal: bool = False
    window: tuple[int, int] | None = None
    mask: MaskKind = "none"
    mask_shape: tuple[int, int, int, int] | None = None
    softcap: float | None = None
    alibi: bool = False
    sinks: bool = False
    scale: float | None = None
    return_lse: bool = False
    direction: Direction = "forward"
    varlen: VarlenShape | None = None
    kv_dtype: str | None = None
    k_scale: bool = False
    v_scale: bool = False
    q_dtype: str | None = None
    q_scale: bool = False
    lse_gradient: bool = False
    dropout_p: float = 0.0

    def __post_init__(self) -> None:
        """Fill in fields that default to another field, then check all fields for consistency."""
        if not self.num_kv_heads:
            object.__setattr__(self, "num_kv_heads", self.num_heads)
        if self.head_dim_v < 0:
            object.__setattr__(self, "head_dim_v", self.head_dim)
        for name in ("window", "mask_shape"):
            if isinstance(value := getattr(self, name), list | tuple):
                object.__setattr__(self, name, tuple(value))
        if isinstance(varlen := self.varlen, dict):
            object.__setattr__(self, "varlen", VarlenShape(**varlen))
        if problem := self._problem():
            raise ConfigError(problem)

    def _problem(self) -> str:
        for name in ("batch", "num_heads", "num_kv_heads", "seq_q", "seq_k", "head_dim", "head_dim_v"):
            value = getattr(self, name)
            if not _is_whole(value) or value < 0:
                return f"{name} is {value!r}: it must be a whole number, 0 or more"
        if self.num_kv_heads == 0 or self.num_heads % self.num_kv_heads:
            return (
                f"{self.num_heads} query heads cannot share {self.num_kv_heads} KV heads: "
                "num_heads must be a multiple of num_kv_heads"
            )
        for name, allowed in (
            ("dtype", tuple(DTYPE_BYTES)),
            ("kv_dtype", (None, *FP8_DTYPES)),
            ("q_dtype", (None, *FP8_DTYPES)),
            ("layout", LAYOUTS),
            ("mask", ("none", "bool", "additive")),
            ("direction", ("forward", "backward")),
        ):
            if getattr(self, name) not in allowed:
                return f"{name} {getattr(self, name)!r} is not supported: use one of {', '.join(map(str, allowed))}"
        for name in ("causal", "alibi", "sinks", "return_lse", "q_scale", "k_scale", "v_scale", "lse_gradient"):
            if not isinstance(value := getattr(self, name), bool):
                return f"{name} is {value!r}: it must be True or False"
        for name in ("softcap", "scale"):
            if (value := getattr(self, name)) is not None and not _is_number(value):
                return f"{name} is {value!r}: it must be a number, or None"
        forward = self.lse_gradient and self.direction == "forward"
        taken = "lse_gradient is True: the forward pass takes no gradient" if forward else ""
        checks = self._storage_problem, self._band_problem, self._mask_problem, self._varlen_problem
        return taken or next(filter(None, (check() for check in (*checks, self._dropout_problem))), "")

    def _storage_problem(self) -> str:
        if self.kv_dtype is None and (self.k_scale or self.v_scale):
            return f"k_scale and v_scale are factors of 8-bit k and v ({', '.join(FP8_DTYPES)}), not of {self.dtype}"
        if self.q_dtype is None and self.q_scale:
            return f"q_scale is a factor of 8-bit q ({', '.join(FP8_DTYPES)}), not of {self.dtype}"
        if self.q_dtype is not None and self.q_dtype != self.kv_dtype:
            stored = self.kv_dtype or self.dtype
            return f"q is stored in {self.q_dtype}, k and v in {stored}: 8-bit q needs all three alike"
        if self.kv_dtype is not None and self.direction == "backward":
            return f"there are no gradients of {self.kv_dtype} keys and values: train in 16 or 32 bits"
        return ""

    def _dropout_problem(self) -> str:
        if not _is_number(self.dropout_p) or not 0 <= self.dropout_p <= 1:
            return f"dropout_p is {self.dropout_p!r}: it must be a number from 0 to 1"
        if self.dropout_p and (self.kv_dtype is not None or self.varlen is not None):
            of = "sequences of different lengths" if self.kv_dtype is None else f"{self.kv_dtype} keys and values"
            return f"dropout_p is {self.dropout_p}: there is no dropout for {of}"
        return ""

    def _band_problem(self) -> str:
        if self.window is not None and (
            not isinstance(self.window, tuple)
            or len(self.window) != 2
            or any(not _is_whole(side) or side < -1 for side in self.window)
        ):
            return f"window {self.window!r} must be (left, right), each 0 or more, or -1 for open; whole numbers"
        if self.softcap is not None and not self.softcap > 0:
            return f"softcap is {self.softcap!r}: it must be greater than 0, or None for off"
        if self.softcap is not None and not 1 / LARGEST <= self.softcap <= LARGEST:
            return f"softcap is {self.softcap!r}: it must be from {1 / LARGEST:g} to {LARGEST:g} (float32)"
        if self.scale is not None and not abs(self.scale) <= LARGEST:
            return f"scale is {self.scale!r}: it must be from -{LARGEST:g} to {LARGEST:g} (float32)"
        return ""

    def _mask_problem(self) -> str:
        if (self.mask == "none") != (self.mask_shape is None):
            return f"mask {self.mask!r} and mask_shape {self.mask_shape!r} contradict each other"
        full = self.scores_shape
        if self.mask_shape is not None and (
            not isinstance(self.mask_shape, tuple)
            or len(self.mask_shape) != 4
            or any(not _is_whole(m) or m not in {1, f} for m, f in zip(self.mask_shape, full, strict=True))
        ):
            return f"a mask of shape {self.mask_shape} does not broadcast to [B, H, Sq, Sk] = {list(full)}"
        return ""

    def _varlen_problem(self) -> str:
        if self.varlen is None:
            return ""
        if self.layout != "BSHD" or self.mask != "none":
            return "sequences of different lengths are [S, H, D], as in layout BSHD, and take no mask"
        if (lengths := self.varlen.lengths) and len(lengths) != self.batch:
            return f"{len(lengths)} lengths are given for {self.batch} sequences"
        return ""

    @property
    def sequences(self) -> tuple[AttentionConfig, ...]:
        """The problem of each sequence with rows, from ``varlen``'s lengths; only itself without ``varlen``."""
        if self.varlen is None:
            return (self,)
        lengths = self.varlen.lengths or ((self.seq_q, self.seq_k),) * self.batch
        return tuple(self.replace(batch=1, seq_q=q, seq_k=k, varlen=None) for q, k in lengths if q)

    @property
    def scores_shape(self) -> tuple[int, int, int, int]:
        """[B, H, Sq, Sk], the shape that masks broadcast to."""
        return self.batch, self.num_heads, self.seq_q, self.seq_k

    @property
    def softmax_scale(self) -> float:
        """The factor of q.k: ``scale``, or 1 / sqrt(D)."""
        if self.scale is not None:
            return float(self.scale)
        return float(self.head_dim) ** -0.5 if self.head_dim else 1.0

    @property
    def itemsize(self) -> int:
        """Bytes per element of out, and of q, k and v unless they are stored in 8 bits."""
        return DTYPE_BYTES[self.dtype]

    @property
    def kv_itemsize(self) -> int:
        """Bytes per element of k and v."""
        return self.itemsize if self.kv_dtype is None else 1

    @property
    def band(self) -> tuple[int, int] | None:
        """(left, right) around the diagonal i + Sk - Sq, including causal; -1 is open, None if everything is visible.

        A side of the window that is too wide to hide anything is open, so backends need not count beyond Sq + Sk.
        """
        left, right = self.window if self.window is not None else (-1, -1)
        left, right = -1 if left >= self.seq_k else left, -1 if right >= self.seq_q else right
        if self.causal:
            right = 0 if right < 0 else min(right, 0)
        return None if left < 0 and right < 0 else (left, right)

    @property
    def visible_pairs(self) -> int:
        """Visible (query, key) pairs over batch and heads: exact for causal and window; masks are not considered."""
        if self.varlen is not None:
            return sum(single.visible_pairs for single in self.sequences)
        per_head = self.seq_q * self.seq_k
        if self.band is not None:
            left, right = self.band
            first = self.seq_k - self.seq_q
            stops = _clamped_ramp_sum(first + right + 1, self.seq_q, self.seq_k) if right >= 0 else per_head
            starts = _clamped_ramp_sum(first - left, self.seq_q, self.seq_k) if left >= 0 else 0
            per_head = stops - starts
        return self.batch * self.num_heads * per_head

    @property
    def flops(self) -> int:
        """Exact FLOPs: 2 (D + Dv) per visible pair forward, 2 (3 D + 2 Dv) backward (five products)."""
        d, dv = self.head_dim, self.head_dim_v
        return self.visible_pairs * 2 * (d + dv if self.direction == "forward" else 3 * d + 2 * dv)

    @property
    def flops_conventional(self) -> int:
        """FLOPs as stated in papers, x 2.5 for backward, following FlashAttention-3's benchmark.

        2 (D + Dv) per query and key; causal queries count (Sk + max(0, Sk - Sq)) / 2 keys, and queries with a window
        the keys that they see.
        """
        if self.varlen is not None:
            return sum(single.flops_conventional for single in self.sequences)
        pairs = self.batch * self.num_heads * self.seq_q * self.seq_k
        if self.window is not None:
            pairs = self.visible_pairs
        elif self.causal:
            pairs = self.batch * self.num_heads * self.seq_q * (self.seq_k + max(0, self.seq_k - self.seq_q)) // 2
        full = 2 * pairs * (self.head_dim + self.head_dim_v)
        return full if self.direction == "forward" else full * 5 // 2

    @property
    def rows_q(self) -> int:
        """Rows of q per head, over all sequences."""
        return self.batch * self.seq_q if self.varlen is None else self.varlen.total_q

    @property
    def q_bytes(self) -> int:
        """Bytes of q."""
        return self.rows_q * self.num_heads * self.head_dim * (self.itemsize if self.q_dtype is None else 1)

    @property
    def kv_bytes(self) -> int:
        """Bytes of k and v together."""
        rows = self.batch * self.seq_k if self.varlen is None else sum(single.seq_k for single in self.sequences)
        return rows * self.num_kv_heads * (self.head_dim + self.head_dim_v) * self.kv_itemsize

    @property
    def out_bytes(self) -> int:
        """Bytes of out."""
        return self.rows_q * self.num_heads * self.head_dim_v * self.itemsize

    @property
    def mask_bytes(self) -> int:
        """Bytes of the stored mask: 1 per element if bool, the config's dtype if additive."""
        if self.mask_shape is None:
            return 0
        count = self.mask_shape[0] * self.mask_shape[1] * self.mask_shape[2] * self.mask_shape[3]
        return count * (1 if self.mask == "bool" else self.itemsize)

    @property
    def visible_rows(self) -> tuple[int, int]:
        """Queries that see a key, and keys that are seen, per head: all of them except for causal and window."""
        if self.band is None:
            return self.seq_q, self.seq_k
        first = self.seq_k - self.seq_q
        left, right = (self.seq_q + self.seq_k if side < 0 else side for side in self.band)
        begin, end = max(0, -first - right), min(self.seq_q, self.seq_q + left)  # visible range of queries
        keys = min(self.seq_k, self.seq_k + right) - max(0, first + begin - left)
        return max(0, end - begin), max(0, keys) if end > begin else 0

    @property
    def bytes_moved(self) -> int:
        """Compulsory traffic: read the visible rows of Q, K and V and part of the mask, write O (and LSE).

        Backward also reads the rows of O, dO and LSE that see a key, and writes dQ, dK and dV.
        """
        if self.varlen is not None:
            return sum(single.bytes_moved for single in self.sequences)
        queries, keys = self.visible_rows
        shown_q, shown_k = queries / self.seq_q if self.seq_q else 0, keys / self.seq_k if self.seq_k else 0
        reads = self.q_bytes * shown_q + self.kv_bytes * shown_k
        if self.mask_shape is not None:
            rows, columns = self.mask_shape[2] > 1, self.mask_shape[3] > 1
            pairs = self.batch * self.num_heads * self.seq_q * self.seq_k
            shown = self.visible_pairs / pairs if rows and columns else shown_q if rows else shown_k if columns else 1
            reads += self.mask_bytes * shown
        lse = 4 * self.rows_q * self.num_heads
        if self.direction == "forward":
            return round(reads) + self.out_bytes + lse * self.return_lse
        reads += (2 * self.out_bytes + lse * (1 + self.lse_gradient)) * shown_q
        return round(reads) + self.q_bytes + self.kv_bytes

    def replace(self, **changes: Any) -> AttentionConfig:
        """Return a copy with some fields changed (and checked again)."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON-ready values."""
        values: dict[str, Any] = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        if self.kv_dtype is None:  # so that other problems keep the keys from commits without this field
            del values["kv_dtype"], values["k_scale"], values["v_scale"]
        if self.q_dtype is None:  # as above
            del values["q_dtype"], values["q_scale"]
        if not self.dropout_p:  # as above
            del values["dropout_p"]
        if self.varlen is None:  # as above
            del values["varlen"]
        else:
            values["varlen"]["lengths"] = [list(pair) for pair in self.varlen.lengths]
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> AttentionConfig:
        """Rebuild a config from `to_dict`'s values.

        Raises:
            ConfigError: For an unknown field, a missing size, or contradictory values.
        """
        unknown = values.keys() - {f.name for f in fields(cls)}
        if unknown:
            raise ConfigError(f"unknown fields in a config: {', '.join(sorted(unknown))}")
        if missing := [f.name for f in fields(cls) if f.default is MISSING and f.name not in values]:
            raise ConfigError(f"missing fields in a config: {', '.join(missing)}")
        return cls(**values)

    @property
    def key(self) -> str:
        """Twelve hex digits that identify the config in all processes and commits."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        """A short readable id such as ``b2-h8x2-q1000-k1000-d128-causal-bfloat16``."""
        heads = f"{self.num_heads}" if self.num_heads == self.num_kv_heads else f"{self.num_heads}x{self.num_kv_heads}"
        dims = f"{self.head_dim}" if self.head_dim == self.head_dim_v else f"{self.head_dim}v{self.head_dim_v}"
        parts = [f"b{self.batch}", f"h{heads}", f"q{self.seq_q}", f"k{self.seq_k}", f"d{dims}"]
        parts += [self.varlen.label] if self.varlen is not None else []
        parts += ["causal"] * self.causal
        parts += [f"window{self.window[0]}.{self.window[1]}"] if self.window is not None else []
        if self.mask_shape is not None:
            parts += [f"{self.mask}mask" + "".join("1" if m == 1 else "x" for m in self.mask_shape)]
        parts += [f"softcap{self.softcap:g}"] if self.softcap is not None else []
        parts += [name for name in ("alibi", "sinks", "q_scale", "k_scale", "v_scale") if getattr(self, name)]
        parts += [f"dropout{self.dropout_p:g}"] if self.dropout_p else []
        parts += [f"scale{self.scale:g}"] if self.scale is not None else []
        parts += ["lse"] * self.return_lse + [self.layout] * (self.layout != "BSHD")
        parts += ["bwd"] * (self.direction == "backward") + ["dlse"] * self.lse_gradient
        parts += [] if self.kv_dtype is None else [f"q{self.kv_dtype}" if self.q_dtype else self.kv_dtype]
        return "-".join([*parts, self.dtype])
