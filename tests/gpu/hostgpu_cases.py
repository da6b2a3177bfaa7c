"""Run in a process whose HIP runtime is the stand-in GPU: attention through the public API, each output checked.

``python hostgpu_cases.py`` prints one JSON object: case -> [what `rocattn verify` would say, path taken].
"""

import json

import rocattn
from rocattn import BACKENDS, AttentionConfig
from rocattn_profiling.workloads.accuracy import check_gradients, check_output
from rocattn_profiling.workloads.inputs import make_inputs

SIZES = {"batch": 2, "num_heads": 4, "num_kv_heads": 2, "seq_q": 37, "seq_k": 70, "head_dim": 40, "head_dim_v": 24}
ALL = {"alibi": True, "sinks": True, "softcap": 4.0, "scale": 0.3, "return_lse": True}
CASES = {
    "plain": {},
    "causal-bfloat16-lse": {"causal": True, "dtype": "bfloat16", "return_lse": True},
    "float32-BHSD": {"dtype": "float32", "layout": "BHSD", "causal": True},
    "BSE-all-bool": {"layout": "BSE", "mask": "bool", "mask_shape": (2, 1, 37, 70), **ALL},
    "additive-window-bfloat16": {
        "mask": "additive", "mask_shape": (1, 4, 1, 70), "window": (9, 3), "dtype": "bfloat16"
    },
    "decode": {"seq_q": 1, "seq_k": 300, "head_dim": 64, "head_dim_v": 64, "return_lse": True},
    "decode-causal-additive": {
        "seq_q": 3, "seq_k": 200, "causal": True, "mask": "additive", "mask_shape": (2, 1, 3, 200)
    },
    "rows-without-keys": {"seq_q": 70, "seq_k": 37, "causal": True, "return_lse": True},
    "no-keys": {"seq_k": 0, "return_lse": True},
    "no-rows": {"seq_q": 0},
    "no-features": {"head_dim": 0, "return_lse": True},
    "no-values": {"head_dim_v": 0, "return_lse": True},
}  # fmt: skip
BACKWARD = {
    "backward": {},
    "backward-causal-BHSD": {"causal": True, "layout": "BHSD", "dtype": "bfloat16"},
    "backward-all-BSE": {"layout": "BSE", "mask": "bool", "mask_shape": (1, 1, 37, 70), **ALL},
    "backward-no-keys": {"seq_k": 0},
    "backward-no-rows": {"seq_q": 0},
    "backward-no-features": {"head_dim": 0},
    "backward-no-values": {"head_dim_v": 0},
}


def forward(options):
    """Return how a forward case fares."""
    config = AttentionConfig(**{**SIZES, "dtype": "float16", **options})
    inputs = make_inputs(config)
    found = rocattn.attention(inputs.q, inputs.k, inputs.v, backend="gpu", **inputs.options(config))
    out, lse = found if config.return_lse else (found, None)
    return check_output(config, inputs, out, lse)


def backward(options):
    """Return how a backward case fares, its out and LSE being those of the gpu backend."""
    config = AttentionConfig(**{**SIZES, "dtype": "float16", **options, "direction": "backward", "return_lse": False})
    inputs = make_inputs(config)
    out, lse = rocattn.attention(inputs.q, inputs.k, inputs.v, backend="gpu", return_lse=True, **inputs.options(config))
    gradients = rocattn.attention_backward(
        inputs.dout, inputs.q, inputs.k, inputs.v, out, lse, backend="gpu", **inputs.options(config)
    )
    return check_gradients(config, inputs, *gradients)


def main():
    """Run every case on the flash path, and the forward ones on the standard path, too."""
    gpu = BACKENDS.get("gpu")
    found = {}
    for flash in (True, False):
        gpu.use_flash_attention = flash
        for name, options in CASES.items():
            found[f"{name} {'flash' if flash else 'standard'}"] = describe(forward(options))
    gpu.use_flash_attention = True
    for name, options in BACKWARD.items():
        found[name] = describe(backward(options))
    pool = gpu.runtime().pool
    found["memory"] = [pool.current_bytes, pool.reserved_bytes]
    print(json.dumps(found))


def describe(check):
    """Return what a check found, as JSON."""
    return "right" if check.ok else f"{check.what} is {check.ratio:.3g} times what is allowed"


if __name__ == "__main__":
    main()
