"""The whole GPU path on an NVIDIA card, through research/hipcuda: asynchronous hardware, where no AMD GPU is at hand.

hip-python and every line of rocattn above it run unchanged; HIP's calls go to the card's driver, kernels are PTX of the
same clang. **No time printed here says anything about an AMD GPU.** On the machine with the card, with rocattn and
PyTorch (CUDA) installed::

    python research/peers/on_nvidia.py                       # all steps, each in a process of its own
    python research/peers/on_nvidia.py streams times         # some of them
    python research/peers/on_nvidia.py gate                  # also against kernels that sleep in their hot loop

Steps: doctor, verify, bench, memory, streams, graphs, out-of-memory, fault, killed, times, host, archive, gate.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from runpy import run_path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CALLS, CALLS_A_CHECK, STREAMS = 10_000, 200, 4
REPEATS, WARMUP = 15, 3
HOST_TURNS, HOST_CALLS = 40, 50
GATE_TIME = "110s"  # of each comparison
SLEEPS_NS = (0, 50, 100, 200)  # of a wave, for each tile of keys: +2 to +11 % of D = 64 and S = 1024 on an H200
LARGE = "bench_gpu.*Prefill.*q1024.*warm"  # of benchmarks/, for the gate


def environment() -> dict[str, str]:
    """Return the environment in which HIP is forwarded to the card's driver."""
    root = str(run_path(str(ROOT / "research/hipcuda/hipcuda.py"))["hipcuda_library"]())
    paths = os.pathsep.join(filter(None, (f"{root}/lib", os.environ.get("LD_LIBRARY_PATH"))))
    return os.environ | {"ROCM_PATH": root, "LD_LIBRARY_PATH": paths}


def card() -> str:
    """Return the card's name, or end with the reason why there is none."""
    from rocattn.gpu.probe import probe

    found = probe()
    if not found.devices:
        raise SystemExit(found.reason)
    return f"{found.devices[0].name} ({found.devices[0].arch}), not an AMD GPU"


def problems(torch: Any) -> list[dict[str, Any]]:
    """Return attention calls of several kinds with their inputs on the card: prefill, decode, standard path."""
    generator = torch.Generator("cuda").manual_seed(0)

    def tensors(batch: int, seq_q: int, seq_k: int, heads: int, kv_heads: int, dim: int, dtype: str) -> tuple[Any, ...]:
        shapes = ((batch, seq_q, heads, dim), *[(batch, seq_k, kv_heads, dim)] * 2)
        return tuple(
            torch.randn(shape, generator=generator, device="cuda", dtype=getattr(torch, dtype)) for shape in shapes
        )

    return [
        {"tensors": tensors(2, 200, 200, 8, 2, 64, "float16"), "causal": True},
        {"tensors": tensors(1, 333, 517, 4, 4, 128, "bfloat16")},
        {"tensors": tensors(2, 1, 4096, 8, 1, 128, "float16")},
        {"tensors": tensors(1, 3, 1500, 8, 2, 80, "float32"), "causal": True},
        {"tensors": tensors(1, 128, 128, 2, 2, 300, "float16")},  # beyond the flash kernels' head dimensions
        {"tensors": tensors(1, 257, 300, 4, 2, 64, "float16"), "window": (40, 3)},
    ]


def call(problem: dict[str, Any]) -> Any:
    """Compute one of `problems`."""
    import rocattn

    options = {name: value for name, value in problem.items() if name != "tensors"}
    return rocattn.attention(*problem["tensors"], **options)


def streams() -> str:
    """Make 10,000 calls in four streams with one pool; every result must equal that of a lone call, bit by bit."""
    import torch

    from rocattn.gpu.runtime import open_runtime

    cases = problems(torch)
    alone = [call(case) for case in cases]
    torch.cuda.synchronize()
    lanes = [torch.cuda.Stream() for _ in range(STREAMS)]
    pool = open_runtime().pool
    wrong, free = 0, 0
    for first in range(0, CALLS, CALLS_A_CHECK):
        results = []
        for number in range(first, first + CALLS_A_CHECK):
            with torch.cuda.stream(lanes[number % STREAMS]):
                index = number * 7 % len(cases)
                results.append((index, call(cases[index])))
        torch.cuda.synchronize()
        wrong += sum(not torch.equal(alone[index], result) for index, result in results)
        del results
        if first == CALLS_A_CHECK:
            pool.trim()
            torch.cuda.empty_cache()
            free = torch.cuda.mem_get_info()[0]
    pool.trim()
    torch.cuda.empty_cache()
    lost = free - torch.cuda.mem_get_info()[0]
    if wrong or lost > 1 << 21:
        raise SystemExit(f"{wrong} of {CALLS} results differ from a lone call's; {lost} bytes are lost")
    return f"{CALLS} calls in {STREAMS} streams: all equal to a lone call's, {max(lost, 0)} bytes lost"


def host_streams() -> str:
    """Do the same with numpy arrays from four threads, whose workspaces and pinned memory come from rocattn's pool."""
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    import rocattn

    rng = np.random.default_rng(0)
    shapes = ((1, 100, 4, 64), (1, 1, 8, 128), (2, 65, 2, 80))
    keys = ((1, 140, 2, 64), (1, 2000, 2, 128), (2, 65, 2, 80))
    cases = [
        [rng.standard_normal(s, dtype=np.float32).astype(np.float16) for s in (q, k, k)]
        for q, k in zip(shapes, keys, strict=True)
    ]
    alone = [rocattn.attention(*case, backend="gpu") for case in cases]

    def one(number: int) -> bool:
        index = number % len(cases)
        return bool(np.array_equal(rocattn.attention(*cases[index], backend="gpu"), alone[index]))

    with ThreadPoolExecutor(STREAMS) as threads:
        wrong = CALLS - sum(threads.map(one, range(CALLS)))
    if wrong:
        raise SystemExit(f"{wrong} of {CALLS} results differ from a lone call's")
    return f"{CALLS} calls with numpy arrays from {STREAMS} threads: all equal to a lone call's"


def graphs() -> str:
    """Capture prefill and decode in one graph of PyTorch's and replay it on two streams with new contents."""
    import torch

    cases = problems(torch)[:3]
    for case in cases:
        call(case)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = [call(case) for case in cases]
    lanes = [torch.cuda.Stream() for _ in range(2)]
    for turn in range(100):
        with torch.cuda.stream(lanes[turn % 2]):
            for case in cases:
                case["tensors"][0].normal_()
            graph.replay()
            torch.cuda.current_stream().synchronize()
            expected = [call(case) for case in cases]
            torch.cuda.current_stream().synchronize()
        if not all(map(torch.equal, outputs, expected)):
            raise SystemExit(f"replay {turn} differs from the same calls without a graph")
    return "a graph of 3 calls, replayed 100 times on 2 streams with new contents: equal to calls without it"


def own_graphs() -> str:
    """Capture with `rocattn.gpu.graphs`, whose workspaces are the graph's own."""
    import torch

    from rocattn.gpu.graphs import capture
    from rocattn.gpu.runtime import open_runtime

    case = problems(torch)[2]
    expected = call(case)
    torch.cuda.synchronize()
    lane = torch.cuda.Stream()
    with torch.cuda.stream(lane), capture(open_runtime(), lane.cuda_stream) as graph:
        out = call(case)
    other = torch.cuda.Stream()
    for turn in range(50):
        out.fill_(math.nan)
        torch.cuda.synchronize()
        graph.launch((lane, other)[turn % 2].cuda_stream)
        call(case)  # an eager call between replays must not share the graph's memory
        torch.cuda.synchronize()
        if not torch.equal(out, expected):
            raise SystemExit(f"replay {turn} differs from the call without a graph")
    graph.close()
    return "rocattn's own graph of a decode, replayed 50 times on 2 streams among eager calls: equal"


def out_of_memory() -> str:
    """Ask for more memory than there is; the next call must work."""
    import torch

    from rocattn.gpu.errors import DeviceMemoryError
    from rocattn.gpu.runtime import open_runtime

    case = problems(torch)[0]
    expected = call(case)
    pool = open_runtime().pool
    try:
        pool.take(1 << 50, 0)
    except DeviceMemoryError as error:
        said = str(error)
    else:
        raise SystemExit("a pebibyte was allocated")
    if not torch.equal(call(case), expected):
        raise SystemExit("the call after it is wrong")
    return f"{said}; the next call is right"


def fault() -> str:
    """Let a kernel read an address that is not there; the error must name the failure, in one line."""
    program = (
        "import torch\n"
        "from rocattn.config import AttentionConfig\n"
        "from rocattn.gpu.plan import plan\n"
        "from rocattn.gpu.runtime import PreparedPlan, open_runtime\n"
        "runtime = open_runtime()\n"
        "config = AttentionConfig(batch=1, seq_q=64, seq_k=64, num_heads=2, head_dim=64, dtype='float16')\n"
        "prepared = PreparedPlan(runtime, plan(config, runtime.arch))\n"
        "prepared.run(dict.fromkeys(prepared.plan.buffers, 0x1000), runtime.stream)\n"
        "runtime.hip.stream_synchronize(runtime.stream)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    last = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ""
    if "LaunchError: a kernel failed while it ran" not in last:
        raise SystemExit(f"status {done.returncode}: {last or 'nothing was said'}")
    return last


def killed() -> str:
    """Kill a process while its kernels run; the next one must work, and the memory must come back."""
    import torch

    before = torch.cuda.mem_get_info()[0]
    program = (
        "import torch, rocattn\n"
        "q = torch.randn(4, 8192, 16, 128, device='cuda', dtype=torch.float16)\n"
        "print('running', flush=True)\n"
        "while True: rocattn.attention(q, q, q)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    time.sleep(2)
    child.send_signal(signal.SIGKILL)
    child.wait(60)
    time.sleep(3)
    call(problems(torch)[0])
    torch.cuda.synchronize()
    lost = before - torch.cuda.mem_get_info()[0]
    if lost > 1 << 29:
        raise SystemExit(f"{lost} bytes are still taken after the process was killed")
    return "killed while launching: the next process computes, and its memory came back"


def times() -> str:
    """Time forward and backward beside PyTorch's attention, in turns in one process."""
    import torch

    rows = []
    for dim in (64, 128):
        for causal in (False, True):
            for length in (512, 1024, 2048, 4096, 8192, 16384):
                for direction in ("forward", "backward"):
                    rows.append(_timed(torch, dim, length, direction, causal=causal))
                    print(json.dumps(rows[-1]), flush=True)
    said = []
    for direction in ("forward", "backward"):
        for peer in ("torch", "fa2"):
            ratios = [row[peer] / row["rocattn"] for row in rows if row["direction"] == direction and peer in row]
            if ratios:
                said.append(f"{direction} {_mean(ratios):.2f} x {peer}'s speed (worst {min(ratios):.2f})")
    return "; ".join(said)


def _timed(torch: Any, dim: int, length: int, direction: str, *, causal: bool) -> dict[str, Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    import rocattn

    heads, batch = 16, max(1, 16384 // length)
    generator = torch.Generator("cuda").manual_seed(0)
    make = {"generator": generator, "device": "cuda", "dtype": torch.float16}
    q, k, v, dout = (torch.randn(batch, heads, length, dim, **make) for _ in range(4))
    calls = {}
    if direction == "forward":
        calls["rocattn"] = lambda: rocattn.attention(q, k, v, layout="BHSD", causal=causal)
        calls["torch"] = lambda: scaled_dot_product_attention(q, k, v, is_causal=causal)
    else:
        out, lse = rocattn.attention(q, k, v, layout="BHSD", causal=causal, return_lse=True)
        calls["rocattn"] = lambda: rocattn.attention_backward(dout, q, k, v, out, lse, layout="BHSD", causal=causal)
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        result = scaled_dot_product_attention(*leaves, is_causal=causal)
        calls["torch"] = lambda: torch.autograd.grad(result, leaves, dout, retain_graph=True)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            by_fa2 = scaled_dot_product_attention(*leaves, is_causal=causal)
        calls["fa2"] = lambda: torch.autograd.grad(by_fa2, leaves, dout, retain_graph=True)

    def fa2() -> Any:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

    calls.setdefault("fa2", fa2)
    flops = (4 if direction == "forward" else 10) * batch * heads * length**2 * dim * (0.5 if causal else 1)
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(REPEATS + WARMUP):
        for name, one in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            torch.cuda._sleep(20_000_000)  # noqa: SLF001 - 10 ms, so that no launch waits for the host
            start.record()
            one()
            end.record()
            end.synchronize()
            if turn >= WARMUP:
                found[name].append(start.elapsed_time(end))
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(20):
        calls["rocattn"]()
    host_us = (time.perf_counter() - began) / 20 * 1e6  # of a call, if the card is not slower
    torch.cuda.synchronize()
    row = {"host_us": round(host_us), "D": dim, "S": length, "causal": causal, "direction": direction}
    medians = {name: statistics.median(ms) for name, ms in found.items()}
    return row | medians | {"TFLOP/s": round(flops / medians["rocattn"] / 1e9, 1)}


def host() -> str:
    """Time what an eager call costs the host, ours in turns with PyTorch's, while the card is busy with other work."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    import rocattn
    import rocattn.torch

    said = []
    for name, rows, keys, heads, kv_heads, dim in (("decode", 1, 4096, 32, 8, 128), ("prefill", 512, 512, 8, 8, 64)):
        shapes = (1, rows, heads, dim), (1, keys, kv_heads, dim), (1, keys, kv_heads, dim)
        q, k, v = (torch.randn(shape, device="cuda", dtype=torch.float16) for shape in shapes)
        turned, grouped = [x.transpose(1, 2) for x in (q, k, v)], {"enable_gqa": heads != kv_heads}
        leaves = [x.detach().requires_grad_() for x in turned]
        own = rocattn.torch.scaled_dot_product_attention
        calls = {
            "attention": functools.partial(rocattn.attention, q, k, v),
            "rocattn.torch": functools.partial(own, *turned, **grouped),
            "the operator": functools.partial(torch.ops.rocattn.attention, *turned),
            "rocattn.torch with gradients": functools.partial(own, *leaves, **grouped),
            "PyTorch with gradients": functools.partial(scaled_dot_product_attention, *leaves, **grouped),
            "PyTorch": functools.partial(scaled_dot_product_attention, *turned, **grouped),
        }
        exact = calls["PyTorch"]().transpose(1, 2)
        for one in (calls["attention"](), calls["rocattn.torch"]().transpose(1, 2)):
            if not torch.allclose(one, exact, atol=2e-3, rtol=2e-2):
                raise SystemExit(f"{name}: the results differ by {(one - exact).abs().max()}")
        found: dict[str, list[float]] = {each: [] for each in calls}
        for turn in range(HOST_TURNS + WARMUP):
            for each, one in calls.items():
                torch.cuda.synchronize()
                torch.cuda._sleep(20_000_000)  # noqa: SLF001 - 10 ms
                began = time.perf_counter()
                for _ in range(HOST_CALLS):
                    one()
                if turn >= WARMUP:
                    found[each].append((time.perf_counter() - began) / HOST_CALLS * 1e6)
        torch.cuda.synchronize()
        row = {each: (min(us), statistics.median(us)) for each, us in found.items()}
        print(f"{name}: us of the host a call, least and median of {HOST_TURNS} times {HOST_CALLS} calls: "
              + ", ".join(f"{each} {low:.1f} {mid:.1f}" for each, (low, mid) in row.items()), flush=True)  # fmt: skip
        for each, (_, mid) in row.items():
            beside = "PyTorch with gradients" if each.endswith("gradients") else "PyTorch"
            if each != beside:
                said.append(f"{name} {each} {mid / row[beside][1]:.2f}")
    return f"of PyTorch's time: {'; '.join(said)}; load {os.getloadavg()[0]:.1f}"


def _mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(math.log(x) for x in values))


def gate(rounds: int) -> str:
    """Judge identical code, and this checkout against copies with a slower kernel, by the GPU's clock."""
    base, said = _environment_of(ROOT, "base"), []
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # a side imports its own
    for sleep_ns in SLEEPS_NS:
        name = f"asleep for {sleep_ns} ns a tile of keys" if sleep_ns else "the same code"
        out = Path("out", f"nvidia-gate-{sleep_ns}").absolute()
        path = _planted(sleep_ns) if sleep_ns else ROOT
        command = [
            *(base, "-m", "rocattn_profiling.cli", "gate", "run", "--base-python", base),
            *("--head-python", _environment_of(path, "head"), "--suite", str(ROOT / "benchmarks"), "--bench", LARGE),
            *(
                "--no-noise",
                "--no-exact",
                "--fresh",
                "--rounds",
                str(rounds),
                "--max-time",
                GATE_TIME,
                "--out",
                str(out),
            ),
        ]
        done = subprocess.run(command, env=clean, capture_output=True, text=True, check=False)
        print(f"{name}:", done.stdout[-3000:], done.stderr[-1500:], sep="\n", flush=True)
        said.append(f"{name}: status {done.returncode}")
    return "; ".join(said)


def _planted(sleep_ns: int) -> Path:
    """Return a copy of the checkout whose flash kernels sleep in their hot loop: what ptxas cannot find unused."""
    copy = Path(tempfile.mkdtemp(prefix="rocattn-planted-"))
    for name in ("rocattn", "kernels", "profiling"):
        shutil.copytree(ROOT / name, copy / name)
    header = copy / "kernels" / "include" / "rocattn" / "flash.h"
    sleep = f'                asm volatile("nanosleep.u32 {sleep_ns};");\n'
    text, loops = re.subn(r"(\n +compute\(key, [\w.]+\);\n)", lambda call: call[0] + sleep, header.read_text())
    if not loops:
        raise SystemExit(f"{header} has no hot loop as this program knows it")
    header.write_text(text)
    return copy


def _environment_of(checkout: Path, side: str) -> str:
    """Return the Python of an environment that imports rocattn from a checkout, and all else from this one."""
    import venv

    home = Path(tempfile.mkdtemp(prefix=f"rocattn-{side}-"))
    venv.create(home)
    site = next((home / "lib").glob("python*/site-packages"))
    ours = {str(ROOT), str(ROOT / "profiling"), str(Path(__file__).parent)}
    others = [entry for entry in sys.path if entry and entry not in ours]
    site.joinpath("checkout.pth").write_text("\n".join([str(checkout), str(checkout / "profiling"), *others]) + "\n")
    return str(home / "bin" / "python")


def _command(*arguments: str) -> str:
    """Run one of rocattn's own commands and return its last line."""
    command = [sys.executable, "-m", "rocattn_profiling.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout[-6000:], flush=True)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    if done.returncode:
        raise SystemExit(f"rocattn {' '.join(arguments)}: status {done.returncode}: {done.stderr[-2000:]} {last}")
    return last


def _within(limit_s: float, command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as late:
        said = [text.decode(errors="replace") if text else "" for text in (late.stdout, late.stderr)]
        return subprocess.CompletedProcess(command, 124, said[0], f"{said[1]}\nno end within {limit_s:g} s")


def archive() -> str:
    """Rehearse `rocattn ci --gpu`: the archive has all but the profiles, for which AMD's profilers are needed."""
    out = ROOT / "out/nvidia-ci"
    command = [sys.executable, "-m", "rocattn_profiling.cli", "ci", "--gpu", "--quick", "--skip", "gate", "site"]
    status = subprocess.run([*command, "--out", str(out)], cwd=ROOT, check=False).returncode
    with tarfile.open(out / "rocattn-gpu.tar.gz") as packed:
        texts = {member.name.partition("/")[2]: packed.extractfile(member).read().decode() for member in packed}
    missing = texts["SUMMARY.md"].partition("## Not measured")[2]
    private = (str(ROOT), str(Path.home()), os.uname().nodename)
    told = [(name, word) for name, text in texts.items() for word in private if len(word) > 3 and word in text]
    rows = [row for row in json.loads(texts["beside.json"]) if row["kernels_ns"][0] > 0]
    if status != 3 or "known: no profiler is installed" not in missing or told or not rows:
        raise SystemExit(f"status {status}, {len(rows)} timed kernels, in the archive {told}, {missing}")
    return f"{len(texts)} files, {len(rows)} kernels timed on host and card; status 3, because nothing was profiled"


STEPS = {
    "doctor": lambda: _command("doctor"),
    "verify": lambda: _command("verify", "--backend", "gpu", "--level", "core", "--out", "out/nvidia-verify"),
    "bench": lambda: _command("bench", "--grid", "inference", "decode", "--backend", "gpu", "--dtype", "float16",
                              "--quick", "--out", "out/nvidia-bench"),
    "memory": lambda: _command("memory", "--backend", "gpu", "gpu-standard", "--quick", "--dtype", "float16",
                               "--out", "out/nvidia-memory"),
    "streams": streams, "host-streams": host_streams, "graphs": graphs, "own-graphs": own_graphs,
    "out-of-memory": out_of_memory, "fault": fault, "killed": killed, "times": times,
    "host": host, "archive": archive,
}  # fmt: skip


def main() -> int:
    """Run the steps, each in a process of its own: a fault ends the use of the card in its process."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("steps", nargs="*", choices=[*STEPS, "gate", []], metavar="STEP")
    parser.add_argument("--rounds", type=int, default=12, help="for gate")
    parser.add_argument("--limit", type=float, default=600, help="seconds of a step")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        step = options.steps[0]
        print(gate(options.rounds) if step == "gate" else STEPS[step]())
        return 0
    os.environ.update(environment())
    print(card())
    failed = 0
    for step in options.steps or [*STEPS, "gate"]:
        start = time.monotonic()
        command = [sys.executable, __file__, "--here", "--rounds", str(options.rounds), step]
        done = _within(options.limit, command)
        lines = (done.stdout if not done.returncode else done.stderr).strip().splitlines()
        failed += bool(done.returncode)
        print("\n".join(f"    {line}" for line in done.stdout.splitlines()[:-1][-60:]))
        verdict = "ok" if not done.returncode else "FAILED"
        print(f"{step}: {verdict}, {time.monotonic() - start:.0f} s: {lines[-1] if lines else ''}", flush=True)
        if done.returncode:
            print("\n".join(f"    {line}" for line in done.stderr.splitlines()[-12:]), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
