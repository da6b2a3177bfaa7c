"""The diagram of how a backend and its kernels are chosen, and the README's badge."""

from __future__ import annotations

from diagram import Diagram

LEFT, QUESTION, RIGHT, ANSWER, STEP = 10, 196, 256, 124, 88  # pixels


def backends() -> str:
    """Return the decision tree of docs/backends.md: which backend, and within ``gpu`` which kernels."""
    code, small = "code", "small"
    steps = [  # a question of two lines, the answer that ends it, and where it leads
        ("A GPU that is able to do", "what the call asks for?", "no", (("cpu-flash", code), ("else cpu", small))),
        ("The backward", "pass?", "yes", (("backward", code), ("flash kernels", small))),
        ("Flash kernels off, D above", "576, or huge strides?", "yes", (("standard", code), ("five kernels", small))),
        ("≤ 32 queries, ≤ 128 rows", "a KV head, ≥ 512 keys?", "yes", (("flash_decode", code), ("split keys", small))),
        ("Causal,", "and nothing else?", "yes", (("flash_attention", small), ("_causal", code))),
        ("No mask, window", "or option?", "yes", (("flash_attention", small), ("_nocausal", code))),
    ]
    tree = Diagram(390, 10 + STEP * len(steps) + 76, "Which backend runs a call, and which kernels of the GPU's")
    for number, (first, second, ending, answer) in enumerate(steps):
        y = 10 + STEP * number
        end = tree.box((LEFT, y), QUESTION, ((first, ""), (second, "")))
        tree.box((RIGHT, y), ANSWER, answer, "good")
        tree.arrow((LEFT + QUESTION, y + 27), (RIGHT - 2, y + 27), label=ending)
        middle, other = LEFT + QUESTION / 2, {"yes": "no", "no": "yes"}[ending]
        tree.arrow((middle, end), (middle, y + STEP - 2), label=other)
    options = (("masks, windows, softcap,", small), ("ALiBi, sinks", small))
    tree.box((LEFT, 10 + STEP * len(steps)), QUESTION, (("flash_attention", code), *options), "good")
    return tree.svg()


def badge() -> str:
    """Return the README's badge."""
    left, right = "AMD GPU", "not measured yet"
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="196" height="22" role="img" '
        f'aria-label="{left}: {right}"><rect width="196" height="22" rx="4" fill="#8a5a00"/>'
        '<path d="M0 4a4 4 0 0 1 4-4h68v22H4a4 4 0 0 1-4-4z" fill="#444d56"/>'
        '<g fill="#fff" font-family="system-ui,sans-serif" font-size="12" text-anchor="middle">'
        f'<text x="36" y="15">{left}</text><text x="134" y="15">{right}</text></g></svg>\n'
    )


PICTURES = {"backends.svg": backends, "badge-no-amd-gpu.svg": badge}
