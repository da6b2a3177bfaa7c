"""Public models: the sizes that their GGUF files have, and the attention layers that llama.cpp makes of them."""

from rocattn_profiling.workloads.models import Layer


def _each(blocks, period, kept, other):
    """Return one value for each block: the second where the first so many of a period end."""
    return [other if at % period == period - 1 else kept for at in range(blocks)]


_HEAD_128 = {"attention.key_length": 128, "attention.value_length": 128}
_HEAD_256 = {"attention.key_length": 256, "attention.value_length": 256}
_MLA = {"attention.key_length": 576, "attention.value_length": 512}
_WINDOW = "attention.sliding_window"
_PATTERN = "attention.sliding_window_pattern"
_NEXTN = "nextn_predict_layers"
_MIMO = [at % 6 != 0 for at in range(48)]

# name: (architecture, blocks, embedding, heads, KV heads, further keys, expected layers)
FAMILIES = {
    "llama3-8b": ("llama", 32, 4096, 32, 8, {}, {Layer(32, 8, 128, 128): 32}),
    "mistral-7b-v0.1": ("llama", 32, 4096, 32, 8, {_WINDOW: 4096}, {Layer(32, 8, 128, 128): 32}),
    "mixtral-8x7b": ("llama", 32, 4096, 32, 8, {"expert_count": 8}, {Layer(32, 8, 128, 128): 32}),
    "qwen2-7b": ("qwen2", 28, 3584, 28, 4, {}, {Layer(28, 4, 128, 128): 28}),
    "qwen3-4b": ("qwen3", 36, 2560, 32, 8, _HEAD_128, {Layer(32, 8, 128, 128): 36}),
    "gemma2-9b": (
        "gemma2", 42, 3584, 16, 8, _HEAD_256, {Layer(16, 8, 256, 256, 4096): 21, Layer(16, 8, 256, 256): 21},
    ),
    "gemma3-4b": (
        "gemma3", 34, 2560, 8, 4, _HEAD_256 | {_WINDOW: 1024},
        {Layer(8, 4, 256, 256, 1024): 29, Layer(8, 4, 256, 256): 5},
    ),
    "gemma3n-e4b": (
        "gemma3n", 35, 2048, 8, 2, _HEAD_256 | {_WINDOW: 512},
        {Layer(8, 2, 256, 256, 512): 28, Layer(8, 2, 256, 256): 7},
    ),
    "phi3-mini": ("phi3", 32, 3072, 32, 32, {_WINDOW: 2047}, {Layer(32, 32, 96, 96): 32}),
    "deepseek-v3": ("deepseek2", 61, 7168, 128, 1, _MLA, {Layer(128, 1, 576, 512): 61}),
    "deepseek-v2-lite": (
        "deepseek2", 27, 2048, 16, 16, {"attention.key_length": 192, "attention.value_length": 128},
        {Layer(16, 16, 192, 128): 27},
    ),
    "falcon-7b": ("falcon", 32, 4544, 71, 1, {}, {Layer(71, 1, 64, 64): 32}),
    "gpt-oss-20b": (
        "gpt-oss", 24, 2880, 64, 8, {"attention.key_length": 64, "attention.value_length": 64, _WINDOW: 128},
        {Layer(64, 8, 64, 64, 128, sinks=True): 12, Layer(64, 8, 64, 64, sinks=True): 12},
    ),
    "command-r": ("command-r", 40, 8192, 64, 64, {}, {Layer(64, 64, 128, 128): 40}),
    "glm-4.5-air": ("glm4moe", 47, 4096, 96, 8, _HEAD_128 | {_NEXTN: 1}, {Layer(96, 8, 128, 128): 46}),
    "olmo3-7b": (
        "olmo2", 32, 4096, 32, 32, {_WINDOW: 4096}, {Layer(32, 32, 128, 128, 4096): 24, Layer(32, 32, 128, 128): 8},
    ),
    "exaone4-32b": (
        "exaone4", 64, 5120, 40, 8, {}, {Layer(40, 8, 128, 128, 4096): 48, Layer(40, 8, 128, 128): 16},
    ),
    "exaone4-1.2b": ("exaone4", 30, 2048, 32, 8, {_WINDOW: 4096}, {Layer(32, 8, 64, 64): 30}),
    "cohere2-7b": (
        "cohere2", 32, 4096, 32, 8, {_WINDOW: 4096}, {Layer(32, 8, 128, 128, 4096): 24, Layer(32, 8, 128, 128): 8},
    ),
    "mpt-7b": ("mpt", 32, 4096, 32, 32, {"attention.max_alibi_bias": 8.0}, {Layer(32, 32, 128, 128): 32}),
    "nemotron-h-8b": (
        "nemotron_h", 52, 4096, 32, [8 * (at in {7, 18, 29, 40}) for at in range(52)], _HEAD_128,
        {Layer(32, 8, 128, 128): 4},
    ),
    "qwen3-next-80b": (
        "qwen3next", 48, 2048, 16, 2, _HEAD_256 | {"full_attention_interval": 4}, {Layer(16, 2, 256, 256): 12},
    ),
    "qwen3-next-without-interval": ("qwen3next", 48, 2048, 16, 2, _HEAD_256, {Layer(16, 2, 256, 256): 12}),
    "llama4-scout": ("llama4", 48, 5120, 40, 8, _HEAD_128, {Layer(40, 8, 128, 128): 48}),
    "kimi-linear-48b": ("kimi-linear", 27, 2304, 32, _each(27, 4, 0, 1), _MLA, {Layer(32, 1, 576, 512): 6}),
    "mimo2-flash": (
        "mimo2", 48, 4096, 64, [8 if slides else 4 for slides in _MIMO],
        {"attention.key_length": 192, "attention.value_length": 128, _WINDOW: 128, _PATTERN: _MIMO},
        {Layer(64, 4, 192, 128): 8, Layer(64, 8, 192, 128, 128, sinks=True): 40},
    ),
    "trinity-nano": (
        "afmoe", 56, 1024, 8, 2, _HEAD_128 | {_WINDOW: 2048},
        {Layer(8, 2, 128, 128, 2048): 42, Layer(8, 2, 128, 128): 14},
    ),
    # Families that were not in the review.
    "exaone-moe-236b": (
        "exaone-moe", 49, 6144, 64, 8, _HEAD_128 | {_WINDOW: 128, _NEXTN: 1},
        {Layer(64, 8, 128, 128, 128): 36, Layer(64, 8, 128, 128): 12},
    ),
    "step3.5-flash": (
        "step35", 45, 4096, _each(45, 4, 96, 64), 8, _HEAD_128 | {_WINDOW: 512, _PATTERN: _each(45, 4, True, False)},
        {Layer(96, 8, 128, 128, 512): 34, Layer(64, 8, 128, 128): 11},
    ),
    "smallthinker-21b": (
        "smallthinker", 52, 2560, 28, 4, _HEAD_128 | {_WINDOW: 8192},
        {Layer(28, 4, 128, 128): 13, Layer(28, 4, 128, 128, 4096): 39},
    ),
    "qwen3.5-35b": (
        "qwen35moe", 41, 2048, 16, 2, _HEAD_256 | {_NEXTN: 1, "attention.recurrent_layers": _each(41, 4, True, False)},
        {Layer(16, 2, 256, 256): 10},
    ),
    "minimax-01": ("minimax-01", 80, 6144, 64, 8, _HEAD_128, {Layer(64, 8, 128, 128): 10}),
    "gemma4-26b": (
        "gemma4", 30, 2816, 16, _each(30, 6, 8, 2),
        {"attention.key_length": 512, "attention.value_length": 512, "attention.key_length_swa": 256,
         "attention.value_length_swa": 256, _WINDOW: 1024, _PATTERN: _each(30, 6, True, False)},
        {Layer(16, 8, 256, 256, 1024): 25, Layer(16, 2, 512, 512): 5},
    ),
    "lfm2-1.2b": (
        "lfm2", 16, 2048, 32, [8 * (at in {2, 5, 8, 10, 12, 14}) for at in range(16)], {}, {Layer(32, 8, 64, 64): 6},
    ),
    "nanbeige-looped": ("nanbeige", 16, 2048, 16, 4, {"num_loops": 2}, {Layer(16, 4, 128, 128): 32}),
}  # fmt: skip


def family(name):
    """Return a family's metadata and its expected layers with their numbers."""
    architecture, blocks, embedding, heads, kv_heads, further, expected = FAMILIES[name]
    keys = {
        "block_count": blocks, "context_length": 131072, "embedding_length": embedding, "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
    }  # fmt: skip
    own = {f"{architecture}.{key}": value for key, value in (keys | further).items()}
    return {"general.architecture": architecture} | own, expected
