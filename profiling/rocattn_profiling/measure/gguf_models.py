"""A model's attention layers, from the metadata of its GGUF file. The one home of the package ``gguf``.

Keys and their defaults are those of llama.cpp (``gguf-py/gguf/constants.py`` and ``src/models/*.cpp``): what a file
does not say, its architecture does. Sizes are read; weights are not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rocattn.config import AttentionConfig
from rocattn.errors import RocattnError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

WINDOW_PERIODS = {"gemma2": 2, "gemma3": 6, "gemma3n": 5, "cohere2": 4, "gpt-oss": 2, "plamo3": 8}
"""Of so many layers the last sees everything, the others a window; a file's ``sliding_window_pattern`` outweighs it."""
WINDOWS = {"gemma2": 4096}
SOFTCAPS = {"gemma2": 50.0}
WITHOUT_WINDOW = {"phi3": "llama.cpp runs phi3 without its window (its pull request 13676)"}
WITH_SINKS = {"gpt-oss"}
WITH_ALIBI = {"bloom", "refact"}
"""Those whose ALiBi no key tells."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One attention layer.

    Attributes:
        num_heads, num_kv_heads, head_dim, head_dim_v: H, Hkv, D and Dv.
        window: Keys that a row sees, itself included; 0 for all.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    window: int = 0


@dataclass(frozen=True, slots=True)
class Model:
    """What a GGUF file says about attention.

    Attributes:
        name: The model's name, or the file's.
        architecture: llama.cpp's name of it.
        block_count: Blocks of any kind.
        context_length: Tokens it was trained for.
        layers: Its attention layers, in order: a block without KV heads, or with linear attention, has none.
        softcap: c of c tanh(score / c); None for off.
        final_softcap: The same of the logits, which is no attention: told, not measured.
        scale: Factor on q.k; None is 1 / sqrt(D).
        causal, alibi, sinks: Of all layers.
        notes: What had to be assumed.
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
    sinks: bool = False
    notes: tuple[str, ...] = ()

    def configs(self, seq_q: int, seq_k: int, dtype: str = "float32") -> dict[AttentionConfig, int]:
        """Return the problems of one pass over all layers, with how many layers are like each.

        Args:
            seq_q: New tokens.
            seq_k: All tokens, the new ones included.
            dtype: Of q, k, v and out.
        """
        return dict(Counter(self._config(layer, seq_q, seq_k, dtype) for layer in self.layers))

    def _config(self, layer: Layer, seq_q: int, seq_k: int, dtype: str) -> AttentionConfig:
        causal = self.causal and seq_q > 1  # the newest token sees all of the others
        # llama.cpp's standard window counts the row's own key; that of encoders reaches half to each side.
        window = (layer.window - 1, -1) if self.causal else (layer.window // 2, layer.window // 2)
        return AttentionConfig(
            batch=1, num_heads=layer.num_heads, num_kv_heads=layer.num_kv_heads, seq_q=seq_q, seq_k=seq_k,
            head_dim=layer.head_dim, head_dim_v=layer.head_dim_v, dtype=dtype, causal=causal,
            window=window if 0 < layer.window < seq_k else None, softcap=self.softcap, alibi=self.alibi,
            sinks=self.sinks, scale=self.scale,
        )  # fmt: skip


def read_model(path: Path) -> Model:
    """Read a model's sizes from its GGUF file.

    Raises:
        RocattnError: When the package ``gguf`` is missing, or the file is not GGUF, is cut off, or lacks a key.
    """
    return model_of(_metadata(path), path.stem)


def _metadata(path: Path) -> dict[str, Any]:
    """Return the file's keys with their values; tokenizer tables, which are long, are left out."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise RocattnError("reading a GGUF file needs the package gguf: pip install 'rocattn[gguf]'") from error
    try:
        fields = GGUFReader(path).fields
        return {key: field.contents() for key, field in fields.items() if not key.startswith("tokenizer.")}
    except OSError as error:
        raise RocattnError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # the reader raises whatever a broken file leads it to
        text = " ".join(str(error).split())
        raise RocattnError(f"{path} is not a whole GGUF file: {type(error).__name__}: {text}") from error


def model_of(metadata: Mapping[str, Any], name: str) -> Model:
    """Return the model that metadata describe.

    Args:
        metadata: Keys and values of a GGUF file.
        name: What to call it if they do not.

    Raises:
        RocattnError: When a key is missing or contradicts another; it names the keys.
    """
    keys = _Keys(metadata, name)
    blocks, context = int(keys.need("block_count")), int(keys.need("context_length"))
    notes: list[str] = []
    slides, window = _windows(keys, blocks, notes)
    layers = [layer for at in range(blocks) if (layer := _layer(keys, at, blocks, window if slides[at] else 0))]
    interval = int(keys.get("full_attention_interval", 0))
    if interval > 1:
        layers = [layer for at, layer in enumerate(layers, 1) if at % interval == 0]
    if not layers:
        raise RocattnError(f"{name}: the architecture {keys.architecture!r} has no layer of softmax attention")
    if len(layers) < blocks:
        notes.append(f"{blocks - len(layers)} of {blocks} blocks have no softmax attention: they are left out")
    default_cap = SOFTCAPS.get(keys.architecture, 0.0)
    return Model(
        name=str(metadata.get("general.name") or name), architecture=keys.architecture, block_count=blocks,
        context_length=context, layers=tuple(layers),
        softcap=float(keys.get("attn_logit_softcapping", default_cap)) or None,
        final_softcap=float(keys.get("final_logit_softcapping", 0.0)) or None,
        scale=float(keys.get("attention.scale", 0.0)) or None, causal=bool(keys.get("attention.causal", True)),
        alibi=float(keys.get("attention.max_alibi_bias", 0.0)) > 0 or keys.architecture in WITH_ALIBI,
        sinks=keys.architecture in WITH_SINKS, notes=tuple(notes),
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
        """Return the first of these keys that is there."""
        for key in keys:
            if (value := self.get(key)) is not None:
                return value
        wanted = " or ".join(f"{self.architecture}.{key}" for key in keys)
        raise RocattnError(f"{self.name}: the key {wanted} is missing, and the sizes of attention need it")

    def of_layer(self, key: str, value: Any, layer: int, blocks: int) -> int:
        """Return a value that is one number for all blocks, or a list with one a block."""
        if not isinstance(value, list):
            return int(value)
        if len(value) != blocks:
            raise RocattnError(
                f"{self.name}: {self.architecture}.{key} has {len(value)} values, but there are {blocks} blocks"
            )
        return int(value[layer])


def _layer(keys: _Keys, at: int, blocks: int, window: int) -> Layer | None:
    """Return the attention layer of a block; None if it has none."""
    heads = keys.of_layer("attention.head_count", keys.need("attention.head_count"), at, blocks)
    kv_heads = keys.of_layer("attention.head_count_kv", keys.get("attention.head_count_kv", heads), at, blocks)
    if heads == 0 or kv_heads == 0:
        return None
    if heads % kv_heads:
        raise RocattnError(f"{keys.name}: block {at} has {heads} heads, which {kv_heads} KV heads cannot share")

    def width(of: str) -> int:
        own = keys.get(f"attention.{of}_length_swa") if window else None
        value = keys.get(f"attention.{of}_length") if own is None else own
        if value is not None:
            return int(value)
        keys.need(f"attention.{of}_length", "embedding_length")  # else the message names both
        return int(keys.need("embedding_length")) // heads

    return Layer(heads, kv_heads, width("key"), width("value"), window)


def _windows(keys: _Keys, blocks: int, notes: list[str]) -> tuple[list[bool], int]:
    """Return which blocks slide, and the window in tokens; 0 without one."""
    window = int(keys.get("attention.sliding_window", WINDOWS.get(keys.architecture, 0)))
    if not window:
        return [False] * blocks, 0
    if keys.architecture in WITHOUT_WINDOW:
        notes.append(f"the window of {window} tokens is not used: {WITHOUT_WINDOW[keys.architecture]}")
        return [False] * blocks, 0
    pattern = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        if not pattern:
            raise RocattnError(f"{keys.name}: {keys.architecture}.attention.sliding_window_pattern is empty")
        return [bool(pattern[at % len(pattern)]) for at in range(blocks)], window
    period = int(pattern) if pattern is not None else WINDOW_PERIODS.get(keys.architecture, 0)
    if pattern is None and not period:
        notes.append(f"the file names no pattern of windows: every layer is taken to see {window} tokens")
    return [period == 0 or at % period < period - 1 for at in range(blocks)], window
