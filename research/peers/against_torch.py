"""cpu-flash beside PyTorch's ``scaled_dot_product_attention``: the ratios of docs/cpu-kernels.md.

Run it with a Python that has both this project and the CPU build of PyTorch 2.13::

    python -m venv torchenv && torchenv/bin/pip install . ziglang==0.17.0 torch==2.13.0   # the CPU build
    torchenv/bin/python research/peers/against_torch.py --threads 2 --json ratios.json
    torchenv/bin/python research/peers/against_torch.py --scaling docs/data/cpu-threads.tsv    # 1, 2, 4, … threads

Every configuration is run by both, on the same memory, in turns within one process, with the same number of threads; a
ratio is PyTorch's median time over ours. Every output is compared with float64 on sampled rows, beside PyTorch's error.
The ceilings are measured in the same turns: a register-only FMA loop, and for decode a linear read of the same K and V
by as many threads; both find K and V in memory, as the other layers of a model leave them, and their code warm.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "profiling")]

SCALING = {  # as the documents name them: config, without threads
    "float32, 512 tokens": {"num_heads": 8, "seq_q": 512, "seq_k": 512, "head_dim": 128},
    "float32, 2,048 tokens": {"num_heads": 16, "seq_q": 2048, "seq_k": 2048, "head_dim": 128},
    "bfloat16, causal, 2,048 tokens": {
        "num_heads": 32, "num_kv_heads": 8, "seq_q": 2048, "seq_k": 2048, "head_dim": 128, "causal": True,
        "dtype": "bfloat16",
    },
    "decode, bfloat16, 4,096 keys": {
        "num_heads": 32, "num_kv_heads": 8, "seq_q": 1, "seq_k": 4096, "head_dim": 128, "dtype": "bfloat16",
    },
    "float32, 128 tokens": {"num_heads": 4, "seq_q": 128, "seq_k": 128, "head_dim": 64},
    "backward, float32, causal": {
        "batch": 4, "num_heads": 8, "seq_q": 512, "seq_k": 512, "head_dim": 128, "causal": True,
        "direction": "backward",
    },
}  # fmt: skip
GROUPS = ("inference", "gemma", "reduced", "decode", "backward", "peak", "random", "random-bf16", "random-backward")
RANDOM_PROBLEMS, RANDOM_GFLOP = 60, 20  # so many of at most this size
TARGETS = {  # floor and aim
    "fp32 forward": (1.6, 2.0),
    "fp32 forward, worst": (1.1, 1.4),
    "16-bit forward": (3.0, 6.0),
    "decode": (2.0, 4.0),
    "backward": (1.3, 2.0),
    "share of FMA peak, worst": (0.65, 0.80),
    "share of read bandwidth": (0.70, 0.85),
    "share of read bandwidth, worst": (0.70, 0.85),
    "random": (1.4, 2.0),
    "random, worst": (1.0, 1.4),
    "random-bf16": (2.5, 3.0),
    "random-bf16, worst": (1.2, 1.5),
    "random-backward": (1.3, 1.6),
    "random-backward, worst": (1.0, 1.2),
}


@dataclass
class Row:
    """One measured configuration; times in seconds."""

    group: str
    config: Any
    torch: list[float]
    ours: list[float]
    error: float
    torch_error: float
    peak_gflops: float = 0.0
    cold: tuple[float, ...] = ()
    read: tuple[float, ...] = ()

    @property
    def ratio(self) -> float:
        """PyTorch's median time over ours."""
        return statistics.median(self.torch) / statistics.median(self.ours)

    @property
    def best(self) -> float:
        """PyTorch's best time over our best: less disturbed on a busy machine."""
        return min(self.torch) / min(self.ours)

    @property
    def peak_share(self) -> float:
        """Of the FMA peak, by exact FLOPs."""
        return self.config.flops / statistics.median(self.ours) / 1e9 / self.peak_gflops if self.peak_gflops else 0.0

    @property
    def read_share(self) -> float:
        """Time of a linear read of K and V over ours, both from memory."""
        return statistics.median(self.read) / statistics.median(self.cold) if self.read else 0.0

    @property
    def read_gbps(self) -> float:
        """Bandwidth of that read."""
        return self.config.kv_bytes / statistics.median(self.read) / 1e9 if self.read else 0.0


def _configs(group: str, quick: bool) -> list[Any]:
    from rocattn.config import AttentionConfig
    from rocattn_profiling.workloads.grids import get_grid

    if group in {"inference", "gemma"}:
        return get_grid(group).configs(quick)
    if group == "reduced":
        chosen = get_grid("inference").configs(True) if quick else get_grid("inference").configs()
        chosen = [c for c in chosen if quick or (c.batch == 1 and c.head_dim > 32)]
        return [c.replace(dtype=dtype) for dtype in ("bfloat16", "float16") for c in chosen]
    if group == "decode":
        sizes = (1024, 4096, 16384) if quick else (1024, 2048, 4096, 8192, 16384)
        return [
            AttentionConfig(batch=1, num_heads=32, num_kv_heads=8, seq_q=1, seq_k=n, head_dim=128, dtype=dtype)
            for dtype in ("float32", "bfloat16") for n in sizes
        ]  # fmt: skip
    if group.startswith("random"):
        return _random(group)[: 20 if quick else None]
    if group == "backward":
        return [c for c in get_grid("inference").configs(quick, "backward") if quick or c.batch == 1]
    sizes = (1024,) if quick else (1024, 2048)
    return [AttentionConfig(batch=1, num_heads=8, seq_q=n, seq_k=n, head_dim=128) for n in sizes]


def _random(group: str) -> list[Any]:
    """Return seeded draws of the sizes that people use, odd ones too: nothing here was tuned for them."""
    from rocattn.config import AttentionConfig

    rng, found = np.random.default_rng(29), []
    while len(found) < RANDOM_PROBLEMS:
        seq, dim = int(2 ** rng.uniform(6, 12)), int(rng.choice([int(rng.integers(16, 257)), 32, 64, 80, 96, 128, 256]))
        batch, kv_heads, group_size = (int(2 ** rng.integers(0, n)) for n in (4, 4, 3))
        if rng.random() < 0.5:
            seq = -(-seq // 64) * 64
        config = AttentionConfig(
            batch=batch, num_heads=kv_heads * group_size, num_kv_heads=kv_heads, seq_q=seq, seq_k=seq, head_dim=dim,
            causal=bool(rng.random() < 0.5), layout=str(rng.choice(["BSHD", "BHSD"])),
            dtype="bfloat16" if group == "random-bf16" else "float32",
            direction="backward" if group == "random-backward" else "forward",
        )  # fmt: skip
        if batch * config.num_heads <= 64 and config.flops <= RANDOM_GFLOP * 1e9:
            found.append(config)
    return found


class Probe:
    """The ceilings of this machine for a number of threads."""

    def __init__(self, threads: int) -> None:
        from rocattn.backends.cpu_flash import load_library

        self._library, self._threads = load_library(), threads
        self._other = np.ones(48 << 20, np.float32)  # 192 MiB: larger than the last-level cache

    def peak_gflops(self) -> float:
        """FP32 FMA rate of all threads together."""
        start = time.perf_counter()
        flops = self._library.rocattn_cpu_probe_flops(0, 50_000, self._threads)
        return float(flops) / (time.perf_counter() - start) / 1e9

    def read(self, *arrays: np.ndarray) -> None:
        """Read contiguous arrays linearly, by all threads."""
        for array in arrays:
            self._library.rocattn_cpu_probe_read(array.ctypes.data, array.nbytes // 4, self._threads)

    def from_memory(self, function: Callable[..., Any], k: np.ndarray, v: np.ndarray) -> float:
        """Time a function of K and V that are in no cache, while its code is."""
        self.read(self._other)
        # Reading something larger does not evict all: parts of 8 MiB were read at 95 GB/s afterwards.
        for array in (k, v):
            self._library.rocattn_cpu_probe_flush(array.ctypes.data, array.nbytes)
        for _ in range(2):
            function(k[:, :16], v[:, :16])
        return _timed(lambda: function(k, v))[0]


def _timed(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def _arrays(config: Any, seed: int) -> dict[str, np.ndarray]:
    """Return q, k, v, dout as numpy arrays, seeded normal: memory as this library's users bring it."""
    from rocattn_profiling.workloads.inputs import numpy_dtype

    rng = np.random.default_rng(seed)
    shapes = {
        "q": (config.batch, config.seq_q, config.num_heads, config.head_dim),
        "k": (config.batch, config.seq_k, config.num_kv_heads, config.head_dim),
        "v": (config.batch, config.seq_k, config.num_kv_heads, config.head_dim_v),
        "dout": (config.batch, config.seq_q, config.num_heads, config.head_dim_v),
    }
    if config.layout == "BHSD":
        shapes = {name: (b, h, s, d) for name, (b, s, h, d) in shapes.items()}
    return {
        name: rng.standard_normal(shape, np.float32).astype(numpy_dtype(config.dtype))
        for name, shape in shapes.items() if name != "dout" or config.direction == "backward"
    }  # fmt: skip


def _tensor(array: np.ndarray) -> Any:
    """Return a torch view of an array's memory."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _array(tensor: Any) -> np.ndarray:
    """Return a numpy view of a tensor's memory."""
    import ml_dtypes
    import torch

    if tensor.dtype == torch.bfloat16:
        return tensor.detach().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.detach().numpy()


def _rows_first(array: np.ndarray) -> np.ndarray:
    """Return a view of [B, H, S, D] as [B, S, H, D], or the other way round."""
    return array.swapaxes(1, 2)


def _sampled_error(config: Any, arrays: dict[str, np.ndarray], out: np.ndarray) -> float:
    """Return the largest error of some rows of the output ([B, S, H, D]) against float64."""
    rng, worst = np.random.default_rng(1), 0.0
    group = config.num_heads // config.num_kv_heads
    for _ in range(3):
        b, h = int(rng.integers(config.batch)), int(rng.integers(config.num_heads))
        rows = np.unique(rng.integers(0, config.seq_q, 24))
        q, k = arrays["q"][b, rows, h].astype(np.float64), arrays["k"][b, :, h // group].astype(np.float64)
        scores = q @ k.T * config.softmax_scale
        if config.causal:
            scores[np.arange(config.seq_k) > (rows + config.seq_k - config.seq_q)[:, None]] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        exact = weights @ arrays["v"][b, :, h // group].astype(np.float64) / weights.sum(axis=1, keepdims=True)
        worst = max(worst, float(np.abs(out[b, rows, h].astype(np.float64) - exact).max()))
    return worst


def measure(group: str, config: Any, probe: Probe, seconds: float) -> Row:
    """Run one configuration in turns with PyTorch."""
    import torch

    from rocattn import attention, attention_backward

    arrays = _arrays(config, 0)
    by_rows = config.layout == "BSHD"
    heads_first = {
        name: _tensor(array).transpose(1, 2) if by_rows else _tensor(array) for name, array in arrays.items()
    }
    q, k, v = (heads_first[name] for name in "qkv")
    grouped = config.num_heads != config.num_kv_heads
    options = {"causal": config.causal, "backend": "cpu-flash", "layout": config.layout}

    def theirs() -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=config.causal, enable_gqa=grouped)

    def ours() -> Any:
        return attention(arrays["q"], arrays["k"], arrays["v"], **options)

    def step(k: np.ndarray, v: np.ndarray) -> Any:
        return attention(arrays["q"], k, v, backend="cpu-flash")

    backward = config.direction == "backward"
    if backward:
        out, lse = attention(arrays["q"], arrays["k"], arrays["v"], return_lse=True, **options)
        for tensor in (q, k, v):
            tensor.requires_grad_()
        graph, dout = theirs(), heads_first["dout"]

        def theirs() -> Any:
            return torch.autograd.grad(graph, (q, k, v), dout, retain_graph=True)

        def ours() -> Any:
            return attention_backward(arrays["dout"], arrays["q"], arrays["k"], arrays["v"], out, lse, **options)

    first, their_result = _timed(theirs)
    _, our_result = _timed(ours)
    if backward:
        pairs = [
            (a, _rows_first(_array(t)) if by_rows else _array(t)) for a, t in zip(our_result, their_result, strict=True)
        ]
        error = max(float(np.abs(a.astype(np.float64) - t).max()) for a, t in pairs)
        torch_error = math.nan  # gradients: compared with PyTorch's
    else:
        rows = {name: array if by_rows else _rows_first(array) for name, array in arrays.items()}
        error = _sampled_error(config, rows, our_result if by_rows else _rows_first(our_result))
        torch_error = _sampled_error(config, rows, _rows_first(_array(their_result)))
    turns = max(3, min(25, int(seconds / max(first, 1e-5))))
    times: tuple[list[float], list[float]] = ([], [])
    peaks, colds, reads = [], [], []
    for _ in range(turns):
        times[0].append(_timed(theirs)[0])
        times[1].append(_timed(ours)[0])
        if group == "peak":
            peaks.append(probe.peak_gflops())
        if group == "decode":
            colds.append(probe.from_memory(step, arrays["k"], arrays["v"]))
            reads.append(probe.from_memory(probe.read, arrays["k"], arrays["v"]))
    return Row(
        group, config, *times, error, torch_error,
        statistics.median(peaks) if peaks else 0.0, tuple(colds), tuple(reads),
    )  # fmt: skip


def _mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(math.log(x) for x in values)) if values else math.nan


def summary(rows: list[Row]) -> dict[str, float]:
    """Return the numbers of `TARGETS` that were measured."""

    def of(*groups: str) -> list[Row]:
        return [row for row in rows if row.group in groups]

    found = {
        "fp32 forward": _mean([row.ratio for row in of("inference", "gemma")]),
        "fp32 forward, worst": min((row.ratio for row in of("inference", "gemma")), default=math.nan),
        "16-bit forward": _mean([row.ratio for row in of("reduced")]),
        "decode": _mean([row.ratio for row in of("decode")]),
        "backward": _mean([row.ratio for row in of("backward")]),
        "share of FMA peak, worst": min((row.peak_share for row in of("peak")), default=math.nan),
        "share of read bandwidth": _mean([row.read_share for row in of("decode")]),
        "share of read bandwidth, worst": min((row.read_share for row in of("decode")), default=math.nan),
    }
    for group in ("random", "random-bf16", "random-backward"):
        found[group] = _mean([row.ratio for row in of(group)])
        found[f"{group}, worst"] = min((row.ratio for row in of(group)), default=math.nan)
    return {name: value for name, value in found.items() if not math.isnan(value)}


def scaling(path: Path, seconds: float) -> None:
    """Write how long each of `SCALING` takes with 1, 2, 4, … threads, up to the CPUs of this process."""
    import torch

    from rocattn.config import AttentionConfig

    lines, threads = ["work\tthreads\tours_us\ttorch_us"], 1
    while threads <= len(os.sched_getaffinity(0)):
        os.environ["ROCATTN_NUM_THREADS"] = str(threads)
        torch.set_num_threads(threads)
        for name, shape in SCALING.items():
            row = measure("scaling", AttentionConfig(**{"batch": 1} | shape), Probe(threads), seconds)
            times = (f"{statistics.median(side) * 1e6:.0f}" for side in (row.ours, row.torch))
            lines.append("\t".join((name, str(threads), *times)))
            print(f"{lines[-1]}  ratio {row.ratio:.2f}, of best runs {row.best:.2f}", flush=True)
        threads *= 2
    path.write_text("\n".join(lines) + "\n")


def main() -> int:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--groups", default=",".join(GROUPS), help="any of " + ", ".join(GROUPS))
    parser.add_argument("--quick", action="store_true", help="the quick subset of each grid")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="for both")
    parser.add_argument("--seconds", type=float, default=1.5, help="of PyTorch's time a configuration")
    parser.add_argument("--max-gflop", type=float, default=800.0, help="skip larger configurations")
    parser.add_argument("--json", type=Path, help="also write all samples here")
    parser.add_argument("--scaling", type=Path, metavar="TSV", help="measure `SCALING` instead, and write this table")
    options = parser.parse_args()
    if options.scaling:
        scaling(options.scaling, options.seconds)
        return 0
    os.environ["ROCATTN_NUM_THREADS"] = str(options.threads)
    import torch

    torch.set_num_threads(options.threads)
    probe = Probe(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads; ratio = PyTorch's median time / cpu-flash's")
    rows: list[Row] = []
    for group in options.groups.split(","):
        for config in _configs(group, options.quick):
            if config.flops > options.max_gflop * 1e9 or config.bytes_moved > 8 << 30:
                size = f"{config.flops / 1e9:.0f} GFLOP, {config.bytes_moved >> 20} MiB"
                print(f"{group:10} {config.label:45} skipped: {size}")
                continue
            row = measure(group, config, probe, options.seconds)
            rows.append(row)
            theirs, ours = statistics.median(row.torch) * 1e3, statistics.median(row.ours) * 1e3
            extra = f"  {row.peak_share:4.0%} of FMA peak" if row.peak_gflops else ""
            extra += f"  {row.read_share:4.0%} of {row.read_gbps:.0f} GB/s" if row.read_gbps else ""
            print(
                f"{group:10} {config.label:45} torch {theirs:9.3f} ms  ours {ours:9.3f} ms  ratio {row.ratio:6.2f} "
                f"(best runs {row.best:5.2f})  error {row.error:.1e} (torch {row.torch_error:.1e}){extra}",
                flush=True,
            )
    print(f"\n{'':32}measured   floor     aim")
    for name, value in summary(rows).items():
        floor, aim = TARGETS[name]
        verdict = "meets the aim" if value >= aim else "meets the floor" if value >= floor else "BELOW THE FLOOR"
        print(f"{name:32}{value:8.2f}{floor:8.2f}{aim:8.2f}   {verdict}")
    if options.json:
        records = [
            {"group": r.group, "config": r.config.to_dict(), "torch_s": r.torch, "ours_s": r.ours, "error": r.error,
             "torch_error": r.torch_error, "peak_gflops": r.peak_gflops, "cold_s": r.cold, "read_s": r.read}
            for r in rows
        ]  # fmt: skip
        options.json.write_text(json.dumps({"threads": options.threads, "torch": torch.__version__, "rows": records}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
