"""Read a model's attention layers from the metadata of its GGUF file.

Keys are those of llama.cpp (``gguf-py/gguf/constants.py``); ``llama_cpp.toml`` describes how its loaders interpret
them, and keys that a file omits. Only sizes are read, not weights.
"""

from __future__ import annotations

import math
import mmap
import struct
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import msgspec

from rocattn.config import AttentionConfig
from rocattn.errors import RocattnError
from rocattn_profiling.base.markup import terminal

MOST, MOST_BLOCKS = (1 << 32) - 1, 1 << 16
"""Largest integer in a file, and largest number of blocks, all of which are read."""
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LEAST_KEY_BYTES, _MOST_TEXTS = 13, 1 << 22  # a key's length, type and a byte; no larger vocabularies are known
_LONGEST_TEXT, _MOST_VALUES = 1 << 10, 1 << 20  # bytes read per text, and elements of all arrays together
_BAICHUAN_13B = 40  # blocks


class _Windows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An architecture's row of ``[windows]`` in ``llama_cpp.toml``, where the fields are described."""

    period: int | None = None
    dense_first: bool = False
    window: int = 0
    fixed: int = 0
    blocks: int = 0
    chunks: bool = False


class _LlamaCpp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``llama_cpp.toml``."""

    date: str
    commit: str
    names: frozenset[str]
    not_causal: frozenset[str]
    alibi: frozenset[str]
    alibi_by_key: frozenset[str]
    indexed: frozenset[str]
    recurrent: frozenset[str]
    scaled: frozenset[str]
    looped: frozenset[str]
    windows: dict[str, _Windows]
    full_attention_interval: dict[str, int]
    softcaps: dict[str, float]
    scales: dict[str, float]
    sinks: dict[str, Literal["all", "sliding"]]
    not_measured: dict[str, str]


LLAMA_CPP = msgspec.convert(tomllib.loads(files(__package__).joinpath("llama_cpp.toml").read_text("utf-8")), _LlamaCpp)
"""How llama.cpp at a certain date handles attention beyond a file's keys, by architecture."""


@dataclass(frozen=True, slots=True)
class Layer:
    """An attention layer.

    Attributes:
        num_heads, num_kv_heads, head_dim, head_dim_v: H, Hkv, D and Dv.
        window: Keys that a row sees, itself included; 0 for all.
        sinks: Whether it has learned sinks.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    window: int = 0
    sinks: bool = False


@dataclass(frozen=True, slots=True)
class Model:
    """The attention metadata of a GGUF file.

    Attributes:
        name: The model's name, or the file's.
        architecture: llama.cpp's name for the architecture.
        block_count: Number of blocks of any kind.
        context_length: Context length in training, in tokens.
        layers: Its attention layers, in order: a block without KV heads, with linear attention, or for multi-token
            prediction (MTP) has none.
        softcap: c in c tanh(score / c); None for off.
        final_softcap: The same for the logits, which are not attention: reported, not measured.
        scale: Factor of q.k; None is 1 / sqrt(D).
        causal, alibi: For all layers.
        notes: Assumptions.
    """

    name: str
    architecture: str
    block_count: int
    context_length: int
    layers: tuple[Layer, ...]
    softcap: float | None = None
    final_softcap: float | None = None
    scale: float | None = None
    causal: bool = True
    alibi: bool = False
    notes: tuple[str, ...] = ()

    def configs(self, seq_q: int, seq_k: int, dtype: str = "float32") -> dict[AttentionConfig, int]:
        """Return the problems of a pass over all layers, with the number of layers for each.

        Args:
            seq_q: New tokens.
            seq_k: All tokens, including the new ones.
            dtype: Dtype of q, k, v and out.
        """
        return dict(Counter(self._config(layer, seq_q, seq_k, dtype) for layer in self.layers))

    def _config(self, layer: Layer, seq_q: int, seq_k: int, dtype: str) -> AttentionConfig:
        causal = self.causal and seq_q > 1  # the newest token sees all others
        # llama.cpp's standard window includes the row's own key; encoders' windows extend half to each side.
        window = (layer.window - 1, -1) if self.causal else (layer.window // 2, layer.window // 2)
        return AttentionConfig(
            batch=1, num_heads=layer.num_heads, num_kv_heads=layer.num_kv_heads, seq_q=seq_q, seq_k=seq_k,
            head_dim=layer.head_dim, head_dim_v=layer.head_dim_v, dtype=dtype, causal=causal,
            window=window if 0 < layer.window < seq_k else None, softcap=self.softcap, alibi=self.alibi,
            sinks=layer.sinks, scale=self.scale,
        )  # fmt: skip


def read_model(path: Path) -> Model:
    """Read a model's sizes from its GGUF file.

    Raises:
        RocattnError: When the file is not GGUF, is truncated, or lacks a key.
    """
    return model_of(_metadata(path), path.stem)


def _metadata(path: Path) -> dict[str, Any]:
    """Return the file's keys and values, skipping the long tokenizer tables."""
    try:
        if not path.stat().st_size:
            raise RocattnError(f"{path} is not a whole GGUF file: it is empty")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Gguf(data).metadata()
    except OSError as error:
        raise RocattnError(f"cannot read {path}: {error.strerror or error}") from error
    except (_GgufError, struct.error) as error:
        why = "it ends within its metadata" if isinstance(error, struct.error) else error
        raise RocattnError(f"{path} is not a whole GGUF file: {why}") from error


class _GgufError(Exception):
    """A short description of a problem with a file."""


class _Gguf:
    """The metadata of a GGUF file (llama.cpp's ``docs`` and ``gguf-py``), for versions 2 and 3 and both byte orders.

    The package ``gguf`` trusts every count, so a file of 49 bytes can exhaust memory, and it must know the types of all
    tensors.
    """

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at, self._order, self._left = data, 0, "<", _MOST_VALUES
        if data[:4] != b"GGUF":
            raise _GgufError("it does not begin with GGUF")
        self._at = 4
        version = self._number("I")
        if version >> 16:  # a small number in the upper half means the other byte order
            self._order, self._at = ">", 4
            version = self._number("I")
        if version not in {2, 3}:
            raise _GgufError(f"its version is {version}, but only 2 and 3 can be read")

    def metadata(self) -> dict[str, Any]:
        """Return the keys and their values."""
        self._number("Q")  # tensors
        found: dict[str, Any] = {}
        for _ in range(self._count(_LEAST_KEY_BYTES, MOST_BLOCKS)):
            key = self._text()
            kind = self._number("I")
            wanted = not key.startswith("tokenizer.")
            value = self._array(key, wanted=wanted) if kind == _ARRAY else self._value(kind)
            if wanted:
                found[key] = value
        return found

    def _number(self, code: str) -> Any:
        (number,) = struct.unpack_from(f"{self._order}{code}", self._data, self._at)
        self._at += struct.calcsize(f"={code}")
        return number

    def _count(self, least_bytes: int, most: int) -> int:
        """Return the count that follows, for items with a minimum size in bytes."""
        count = int(self._number("Q"))
        if count > min(most, (len(self._data) - self._at) // least_bytes):
            raise _GgufError(f"it says that {count} entries follow at byte {self._at}, more than it can hold")
        return count

    def _text(self) -> str:
        """Return the text that follows, or its beginning, as one line of printable text."""
        size = self._count(1, MOST)
        begin, self._at = self._at, self._at + size
        return terminal(self._data[begin : begin + min(size, _LONGEST_TEXT)].decode(errors="replace"))

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind not in _NUMBERS:
            raise _GgufError(f"a value has the unknown type {kind}")
        return self._number(_NUMBERS[kind])

    def _array(self, key: str, *, wanted: bool) -> list[Any]:
        kind = self._number("I")
        if kind != _STRING and kind not in _NUMBERS:
            raise _GgufError(f"{key} is an array of the unknown type {kind}")
        code = _NUMBERS.get(kind, "Q")  # a text begins with its length
        size = struct.calcsize(f"={code}")
        if not wanted:
            self._pass_over(self._count(size, _MOST_TEXTS if kind == _STRING else MOST), size, texts=kind == _STRING)
            return []
        count = self._count(size, self._left)
        self._left -= count
        return [self._text() if kind == _STRING else self._number(code) for _ in range(count)]

    def _pass_over(self, count: int, size: int, *, texts: bool) -> None:
        """Skip an array; texts, of which a vocabulary has hundreds of thousands, are skipped by their lengths."""
        if not texts:
            self._at += count * size
            return
        length, at, end = struct.Struct(f"{self._order}Q").unpack_from, self._at, len(self._data)
        for _ in range(count):
            at += size + length(self._data, at)[0]
            if at > end:
                raise _GgufError(f"it says that a text ends at byte {at}, beyond its own end")
        self._at = at


def model_of(metadata: Mapping[str, Any], name: str) -> Model:
    """Return the model described by metadata.

    Args:
        metadata: Keys and values of a GGUF file.
        name: Its name if the metadata has none.

    Raises:
        RocattnError: When a key is missing or contradicts another, or the architecture is unsupported.
    """
    keys = _Keys(metadata, name)
    if (own := keys.architecture) in LLAMA_CPP.not_measured:
        raise RocattnError(f"{name}: {own!r} is not measured: it is {LLAMA_CPP.not_measured[own]}")
    blocks = keys.whole("block_count", keys.need("block_count"), MOST_BLOCKS)
    context = keys.whole("context_length", keys.need("context_length"))
    notes = [] if own in LLAMA_CPP.names else [f"llama.cpp of {LLAMA_CPP.date} does not know {own!r}"]
    if own in LLAMA_CPP.indexed:
        notes.append("llama.cpp's indexer chooses the keys that rows see; here they see all before them")
    predicting = keys.whole("nextn_predict_layers", most=blocks)
    if predicting:
        notes.append(f"the last {predicting} of {blocks} blocks predict further tokens (MTP): they are left out")
    trunk = blocks - predicting
    slides, window = _windows(keys, trunk, notes)
    layers = [
        layer
        for at in _attending(keys, trunk, blocks)
        if (layer := _layer(keys, at, blocks, window if slides[at] else 0))
    ]
    if not layers:
        raise RocattnError(f"{name}: the architecture {own!r} has no layer of softmax attention")
    if len(layers) < trunk:
        notes.append(f"{trunk - len(layers)} of {blocks} blocks have no softmax attention: they are left out")
    alibi = own in LLAMA_CPP.alibi or (own == "baichuan" and blocks == _BAICHUAN_13B)
    loops = max(1, keys.whole("num_loops", most=MOST_BLOCKS // blocks)) if own in LLAMA_CPP.looped else 1
    softcap = LLAMA_CPP.softcaps.get(own)
    scale = LLAMA_CPP.scales.get(own, 0.0)
    return Model(
        name=str(metadata.get("general.name") or name), architecture=own, block_count=blocks,
        context_length=context, layers=tuple(layers) * loops,
        softcap=None if softcap is None else keys.size("attn_logit_softcapping", softcap) or None,
        final_softcap=keys.size("final_logit_softcapping") or None,
        scale=(keys.size("attention.scale") if own in LLAMA_CPP.scaled else scale) or None,
        causal=own not in LLAMA_CPP.not_causal and bool(keys.get("attention.causal", True)),
        alibi=alibi or (own in LLAMA_CPP.alibi_by_key and keys.size("attention.max_alibi_bias") > 0),
        notes=tuple(notes),
    )  # fmt: skip


class _Keys:
    """Metadata under an architecture's name."""

    def __init__(self, metadata: Mapping[str, Any], name: str) -> None:
        if "general.architecture" not in metadata:
            raise RocattnError(
                f"{name}: the key general.architecture is missing (of a model in several files, name the first)"
            )
        self.metadata, self.name, self.architecture = metadata, name, str(metadata["general.architecture"])

    def get(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def need(self, *keys: str) -> Any:
        """Return the first of these keys that exists."""
        for key in keys:
            if (value := self.get(key)) is not None:
                return value
        wanted = " or ".join(f"{self.architecture}.{key}" for key in keys)
        raise RocattnError(f"{self.name}: the key {wanted} is missing, and attention needs it")

    def whole(self, key: str, value: Any = None, most: int = MOST) -> int:
        """Return a key's value, or the given one, as an integer; 0 for a missing key."""
        value = self.get(key, 0) if value is None else value
        if not isinstance(value, int) or not 0 <= value <= most:
            entry = f"{self.architecture}.{key} is {_shown(value)}"
            raise RocattnError(f"{self.name}: {entry}, not a whole number from 0 to {most}")
        return value

    def size(self, key: str, default: float = 0.0) -> float:
        """Return a key's value as a finite number of at least 0."""
        value = self.get(key, default)
        if not isinstance(value, int | float) or not 0 <= value < math.inf:
            entry = f"{self.architecture}.{key} is {_shown(value)}"
            raise RocattnError(f"{self.name}: {entry}, not a finite number, 0 or more")
        return float(value)

    def of_layer(self, key: str, value: Any, layer: int, blocks: int) -> int:
        """Return a value that is one number for all blocks, or a list with one per block."""
        if not isinstance(value, list):
            return self.whole(key, value)
        if len(value) != blocks:
            raise RocattnError(
                f"{self.name}: {self.architecture}.{key} has {len(value)} values, but there are {blocks} blocks"
            )
        return self.whole(key, value[layer])


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _layer(keys: _Keys, at: int, blocks: int, window: int) -> Layer | None:
    """Return the attention layer of a block, or None."""
    heads = keys.of_layer("attention.head_count", keys.need("attention.head_count"), at, blocks)
    kv_heads = keys.of_layer("attention.head_count_kv", keys.get("attention.head_count_kv", heads), at, blocks)
    if heads == 0 or kv_heads == 0:
        return None
    if heads % kv_heads:
        raise RocattnError(f"{keys.name}: block {at} has {heads} heads, which {kv_heads} KV heads cannot share")

    def width(of: str) -> int:
        own = keys.get(f"attention.{of}_length_swa") if window else None
        value = keys.get(f"attention.{of}_length") if own is None else own
        if value is None:
            keys.need(f"attention.{of}_length", "embedding_length")  # otherwise the message names both
            length = keys.whole("embedding_length") // heads
        else:
            length = keys.whole(f"attention.{of}_length{'' if own is None else '_swa'}", value)
        if not length:
            raise RocattnError(f"{keys.name}: block {at} has heads of 0 elements by its {of}_length")
        return length

    sinks = LLAMA_CPP.sinks.get(keys.architecture)
    return Layer(
        heads, kv_heads, width("key"), width("value"), window, sinks == "all" or (sinks == "sliding" and window > 0)
    )


def _attending(keys: _Keys, trunk: int, blocks: int) -> list[int]:
    """Return which of the first ``count`` blocks may have softmax rather than linear attention."""
    if keys.architecture in LLAMA_CPP.recurrent:
        return []
    linear = "attention.recurrent_layers"
    if (value := keys.get(linear)) is not None:
        return [at for at in range(trunk) if not keys.of_layer(linear, value, at, blocks)]
    usual = LLAMA_CPP.full_attention_interval.get(keys.architecture, 1)
    interval = keys.whole("full_attention_interval", keys.get("full_attention_interval", usual)) or 1
    return [at for at in range(trunk) if (at + 1) % interval == 0]


def _windows(keys: _Keys, trunk: int, notes: list[str]) -> tuple[list[bool], int]:
    """Return which of the first blocks have a sliding window, and the window in tokens, 0 without one.

    Raises:
        RocattnError: When there is a window, but it is unknown which blocks have it.
    """
    none = [False] * trunk, 0
    given = keys.whole("attention.sliding_window")
    row = LLAMA_CPP.windows.get(keys.architecture)
    if row is None:
        if given and keys.architecture not in LLAMA_CPP.names:
            raise RocattnError(
                f"{keys.name}: {keys.architecture!r} is not in this version's table (llama.cpp of {LLAMA_CPP.date}): "
                f"it has a window of {given} tokens, and which layers see no more is not known"
            )
        if given:
            notes.append(f"the window of {given} tokens is not used: llama.cpp runs {keys.architecture} without one")
        return none
    window = row.window if keys.get("attention.sliding_window") is None else given and (row.fixed or given)
    if not window or row.blocks not in {0, trunk}:
        return none
    if row.chunks:
        notes.append(f"layers that see chunks of {window} tokens in llama.cpp see everything before them here")
        return none
    name = "attention.sliding_window_pattern"
    pattern = keys.get(name)
    if pattern == []:
        raise RocattnError(f"{keys.name}: {keys.architecture}.{name} is empty")
    if isinstance(pattern, list):  # blocks beyond a short list see everything, as in llama.cpp
        return [at < len(pattern) and keys.whole(name, pattern[at]) > 0 for at in range(trunk)], window
    if row.period is None:
        keys.need(name)
        raise RocattnError(f"{keys.name}: {keys.architecture}.{name} is {_shown(pattern)}, not a list of its blocks")
    period = keys.whole(name, row.period if pattern is None else pattern)
    full = 0 if row.dense_first else period - 1
    return [period == 0 or at % period != full for at in range(trunk)], window
