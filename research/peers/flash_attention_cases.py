"""flash-attention's own tests of variable lengths and paged caches, run with rocattn in place of its kernels.

Needs a checkout of flash-attention (its tests/test_flash_attn.py is read from there; tried at 0251105 of August 2026)
and PyTorch, of which the CPU build does::

    python3 -m venv torchenv && torchenv/bin/pip install '.[toolchain]' torch==2.13.0 einops pytest
    torchenv/bin/python research/peers/flash_attention_cases.py /path/to/flash-attention --sample 200
    export ROCM_PATH=$(rocattn doctor --hostgpu)        # the same on the GPU's kernels, executed by the stand-in
    torchenv/bin/python research/peers/flash_attention_cases.py /path/to/flash-attention --backend gpu --sample 20

The tests, their inputs, their reference and their tolerances are flash-attention's (an error of at most 2 to 5 times
that of PyTorch in the same dtype, gradients too). The layer here gives their functions rocattn's, and replaces "cuda"
by "cpu". Of their grids of 400 000 cases so many are drawn of each test: without dropout, rotary embedding and left
padding, which rocattn does not have, and up to a length.
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

import ml_dtypes
import pytest
import torch

import rocattn

TESTS = (
    "test_flash_attn_varlen_output", "test_flash_attn_varlen_qkvpacked", "test_flash_attn_varlen_causal",
    "test_flash_attn_kvcache",
)  # fmt: skip
LACKING = {"dropout_p": 0.0, "rotary_fraction": 0.0, "has_leftpad": False}  # what the cases that run have
BACKEND = "cpu-flash"


def to_numpy(tensor: torch.Tensor) -> Any:
    """Return a tensor's memory as an array."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def to_torch(array: Any) -> torch.Tensor:
    """Return an array's memory as a tensor."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


def options_of(causal: bool, window: Any, softcap: float, slopes: torch.Tensor | None) -> dict[str, Any]:
    """Return flash-attention's options as rocattn's."""
    left, right = (int(side) for side in window)
    return {
        "causal": causal, "window": None if left == right == -1 else (left, right), "softcap": softcap or None,
        "alibi_slopes": None if slopes is None else to_numpy(slopes),
    }  # fmt: skip


class Varlen(torch.autograd.Function):
    """`rocattn.attention_varlen` with its gradients."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, starts_q: Any, starts_k: Any, options: dict[str, Any]) -> Any:
        """Compute the output and the LSE."""
        arrays = [to_numpy(x.contiguous()) for x in (q, k, v)]
        where = [to_numpy(x) for x in (starts_q, starts_k)]
        out, lse = rocattn.attention_varlen(*arrays, *where, return_lse=True, backend=BACKEND, **options)
        ctx.kept = arrays, out, lse, where, options
        return to_torch(out), to_torch(lse)

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor, dlse: torch.Tensor) -> Any:
        """Compute the gradients of q, k and v."""
        del dlse
        arrays, out, lse, where, options = ctx.kept
        dout = to_numpy(dout.contiguous())
        gradients = rocattn.attention_varlen_backward(dout, *arrays, out, lse, *where, backend=BACKEND, **options)
        return (*(to_torch(x) for x in gradients), None, None, None)


def flash_attn_varlen_func(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, *, causal: bool = False, window_size: Any = (-1, -1), softcap: float = 0.0,
    alibi_slopes: Any = None, deterministic: bool = False, return_attn_probs: bool = False, block_table: Any = None,
) -> Any:  # fmt: skip
    """Take flash-attention's arguments."""
    del max_seqlen_q, max_seqlen_k, deterministic
    assert dropout_p == 0
    options = options_of(causal, window_size, softcap, alibi_slopes)
    if block_table is None:
        out, lse = Varlen.apply(q, k, v, cu_seqlens_q, cu_seqlens_k, options)
    else:
        lengths = to_numpy(cu_seqlens_k[1:] - cu_seqlens_k[:-1])
        out, lse = rocattn.attention_varlen(
            *(to_numpy(x) for x in (q, k, v)), to_numpy(cu_seqlens_q), seqlens_k=lengths,
            block_table=to_numpy(block_table), return_lse=True, backend=BACKEND, **options,
        )  # fmt: skip
        out, lse = to_torch(out), to_torch(lse)
    return (out, lse, None) if return_attn_probs else out


def flash_attn_varlen_kvpacked_func(q: Any, kv: Any, *arguments: Any, **options: Any) -> Any:
    """Take K and V as one tensor."""
    return flash_attn_varlen_func(q, kv[:, 0], kv[:, 1], *arguments, **options)


def flash_attn_varlen_qkvpacked_func(qkv: Any, cu_seqlens: Any, longest: int, *arguments: Any, **options: Any) -> Any:
    """Take Q, K and V as one tensor."""
    parts = (qkv[:, 0], qkv[:, 1], qkv[:, 2])
    return flash_attn_varlen_func(*parts, cu_seqlens, cu_seqlens, longest, longest, *arguments, **options)


def flash_attn_with_kvcache(
    q: Any, k_cache: Any, v_cache: Any, k: Any = None, v: Any = None, *, cache_seqlens: Any, block_table: Any = None,
    causal: bool = False, window_size: Any = (-1, -1), alibi_slopes: Any = None, num_splits: int = 0, **lacking: Any,
) -> torch.Tensor:  # fmt: skip
    """Append k and v to the cache in place, then attend to it; a cache of rows is one of a page a sequence."""
    del num_splits
    batch, rows, page = q.shape[0], q.shape[1], k_cache.shape[1]
    table = torch.arange(batch, dtype=torch.int32)[:, None] if block_table is None else block_table
    lengths = cache_seqlens.clone()
    if k is not None:
        for sequence, length in enumerate(cache_seqlens.tolist()):
            for at in range(k.shape[1]):
                block = int(table[sequence, (length + at) // page])
                k_cache[block, (length + at) % page] = k[sequence, at]
                v_cache[block, (length + at) % page] = v[sequence, at]
        lengths += k.shape[1]
    assert not any(value is not None for name, value in lacking.items() if name != "rotary_interleaved"), lacking
    starts = torch.arange(batch + 1, dtype=torch.int32) * rows
    out = rocattn.attention_varlen(
        to_numpy(q.reshape(batch * rows, *q.shape[2:])), to_numpy(k_cache), to_numpy(v_cache), to_numpy(starts),
        seqlens_k=to_numpy(lengths), block_table=to_numpy(table), backend=BACKEND,
        **options_of(causal, window_size, 0.0, alibi_slopes),
    )  # fmt: skip
    return to_torch(out).reshape(batch, rows, *out.shape[1:])


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
    global BACKEND  # noqa: PLW0603 - what the functions above pass on
    parser = argparse.ArgumentParser(description="flash-attention's own cases on rocattn")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--backend", default=BACKEND)
    parser.add_argument("--sample", type=int, default=200, help="cases of each test (default 200)")
    parser.add_argument("--longest", type=int, default=1100, help="tokens (default 1100)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    BACKEND = arguments.backend
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
