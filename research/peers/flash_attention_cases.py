"""flash-attention's own tests of variable lengths and paged caches, run with rocattn in place of its kernels.

Needs a checkout of flash-attention (its tests/test_flash_attn.py is read from there; tried at 0251105 of August 2026)
and PyTorch, of which the CPU build does::

    python3 -m venv torchenv && torchenv/bin/pip install '.[toolchain]' torch==2.13.0 einops pytest
    torchenv/bin/python research/peers/flash_attention_cases.py /path/to/flash-attention --sample 200
    export ROCM_PATH=$(rocattn doctor --hostgpu)        # the same on the GPU's kernels, executed by the stand-in
    torchenv/bin/python research/peers/flash_attention_cases.py /path/to/flash-attention --backend gpu --sample 20

The tests, their inputs, their reference and their tolerances are flash-attention's (an error of at most 2 to 5 times
that of PyTorch in the same dtype, gradients too). Their functions are those of `rocattn.torch`, and "cuda" is "cpu".
Of their grids of 400 000 cases so many are drawn of each test: without dropout, rotary embedding and left padding,
which packed sequences do not have here, and up to a length.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import random
import sys
import traceback
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import rocattn
from rocattn.torch import flash_attn_varlen_func, flash_attn_with_kvcache

TESTS = (
    "test_flash_attn_varlen_output", "test_flash_attn_varlen_qkvpacked", "test_flash_attn_varlen_causal",
    "test_flash_attn_kvcache",
)  # fmt: skip
LACKING = {"dropout_p": 0.0, "rotary_fraction": 0.0, "has_leftpad": False}  # what the cases that run have


def flash_attn_varlen_kvpacked_func(q: Any, kv: Any, *arguments: Any, **options: Any) -> Any:
    """Take K and V as one tensor."""
    return flash_attn_varlen_func(q, kv[:, 0], kv[:, 1], *arguments, **options)


def flash_attn_varlen_qkvpacked_func(qkv: Any, cu_seqlens: Any, longest: int, *arguments: Any, **options: Any) -> Any:
    """Take Q, K and V as one tensor."""
    parts = (qkv[:, 0], qkv[:, 1], qkv[:, 2])
    return flash_attn_varlen_func(*parts, cu_seqlens, cu_seqlens, longest, longest, *arguments, **options)


def give_modules(checkout: Path) -> None:
    """Put modules in the place of flash_attn's, and a card in that of the GPU that its tests ask about."""
    package = types.ModuleType("flash_attn")
    for name in ("flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func"):
        setattr(package, name, None)
    for function in (
        flash_attn_varlen_func, flash_attn_varlen_kvpacked_func, flash_attn_varlen_qkvpacked_func,
        flash_attn_with_kvcache,
    ):  # fmt: skip
        setattr(package, function.__name__, function)
    interface, layers, rotary = (
        types.ModuleType(f"flash_attn.{name}") for name in ("flash_attn_interface", "layers", "layers.rotary")
    )
    interface._get_block_size_n, interface.USE_TRITON_ROCM, rotary.apply_rotary_emb = None, False, None  # noqa: SLF001
    sys.modules |= {module.__name__: module for module in (package, interface, layers, rotary)}
    spec = importlib.util.spec_from_file_location("flash_attn.bert_padding", checkout / "flash_attn/bert_padding.py")
    assert spec is not None
    assert spec.loader is not None
    padding = sys.modules["flash_attn.bert_padding"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(padding)
    torch.cuda.get_device_capability = lambda *_: (8, 0)
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=80 << 30)


def drawn(test: Any, count: int, longest: int, rng: random.Random) -> list[dict[str, Any]]:
    """Return so many different cases of a parametrized test, of those that need nothing that rocattn lacks."""
    axes = []
    for mark in test.pytestmark:
        names, values = mark.args
        several = "," in names
        axes.append([dict(zip(names.split(","), v, strict=True)) if several else {names: v} for v in values])
    cases: dict[str, dict[str, Any]] = {}
    while len(cases) < count:
        case = {name: value for axis in axes for name, value in rng.choice(axis).items()} | LACKING
        case = {name: value for name, value in case.items() if any(name in axis[0] for axis in axes)}
        if max(case[name] for name in ("seqlen", "seqlen_q", "seqlen_k") if name in case) <= longest:
            cases[str(case)] = case
    return list(cases.values())


def attempt(test: Any, case: dict[str, Any]) -> str:
    """Run a case; returns what became of it."""
    try:
        with contextlib.redirect_stdout(None):
            test(**case)
    except pytest.skip.Exception:
        return "skipped by the test"
    except AssertionError as error:
        frames = traceback.extract_tb(error.__traceback__)
        print(f"failed: {test.__name__} {case}: {frames[-1].line}", flush=True)
        return "failed"
    return "passed"


def main() -> int:
    """Run the cases; 1 if one failed."""
    parser = argparse.ArgumentParser(description="flash-attention's own cases on rocattn")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--backend", default="cpu-flash")
    parser.add_argument("--sample", type=int, default=200, help="cases of each test (default 200)")
    parser.add_argument("--longest", type=int, default=1100, help="tokens (default 1100)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rocattn.BACKENDS.set_default(arguments.backend)
    source = arguments.checkout / "tests/test_flash_attn.py"
    if not source.exists():
        parser.error(f"{source} is not there: name a checkout of flash-attention")
    give_modules(arguments.checkout)
    module: dict[str, Any] = {}
    text = source.read_text().replace('device = "cuda"', 'device = "cpu"')
    exec(compile(text, str(source), "exec"), module)  # noqa: S102 - the checkout that the user named
    rng, total = random.Random(arguments.seed), Counter[str]()  # noqa: S311 - no secrets
    for name in TESTS:
        cases = drawn(module[name], arguments.sample, arguments.longest, rng)
        counts = Counter(attempt(module[name], case) for case in cases)
        print(f"{name}: {', '.join(f'{count} {what}' for what, count in sorted(counts.items()))}", flush=True)
        total += counts
    return int(total["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
