"""The GPU kernels on an NVIDIA card: a check of their portable parts on real hardware, where no AMD GPU is at hand.

The same sources and the same launch plans (those of gfx1100: waves of 32 lanes), compiled to PTX by the same clang.
None of its times says anything about an AMD GPU. Two steps, because the card is often elsewhere::

    python research/peers/on_nvidia.py prepare FOLDER [--quick]   # where this project and its compiler are
    python research/peers/on_nvidia.py run FOLDER [--json FILE]   # where the card is; needs numpy and PyTorch (CUDA)

``prepare`` writes plans, PTX and, for the checked problems, inputs and the float64 result. ``run`` executes the checked
problems, then times flash against the standard path and PyTorch's ``scaled_dot_product_attention`` in turns, by events,
each output compared with float64.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import statistics
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
PLANNED_FOR = "gfx1100"
SM = "sm_80"
_PTX_OPTIONS = (
    *("-x", "cuda", f"--cuda-gpu-arch={SM}", "--cuda-device-only", "-nocudainc", "-nocudalib"),
    *("-nostdinc", "-nostdinc++", "-std=c++20", "-O3", "-Wall", "-Wextra", "-Wno-unknown-cuda-version"),
)
_PACK = {"u32": "I", "i32": "i", "f32": "f", "u64": "Q", "i64": "q"}


# ---- prepare -------------------------------------------------------------------------------------------------------


def checked_problems() -> list[dict[str, Any]]:
    """Return small problems that take every kernel and option: the fields of their configs."""
    base = {"batch": 2, "num_heads": 4, "num_kv_heads": 2, "seq_q": 99, "seq_k": 133, "head_dim": 64}
    found = []
    for dtype in ("float16", "bfloat16", "float32"):
        found += [
            base | {"return_lse": True} | change | {"dtype": dtype}
            for change in (
                {"causal": True},
                {},
                {"head_dim": 128, "causal": True, "layout": "BHSD"},
                {"head_dim": 80, "head_dim_v": 96, "layout": "BSE"},
                {"head_dim": 33, "seq_q": 1, "seq_k": 1},
                {"mask": "bool", "mask_shape": (2, 1, 99, 133)},
                {"mask": "additive", "mask_shape": (1, 4, 99, 133), "alibi": True, "softcap": 20.0},
                {"window": (40, 3), "sinks": True},
                {"head_dim": 256, "causal": True},
                {"batch": 1, "seq_q": 1, "seq_k": 1500, "num_heads": 8, "head_dim": 128},
                {"seq_q": 2, "seq_k": 1000, "causal": True, "sinks": True},
                {"direction": "backward", "causal": True, "return_lse": False},
                {"direction": "backward", "head_dim": 128, "layout": "BHSD", "return_lse": False},
                {"direction": "backward", "window": (40, 3), "softcap": 20.0, "alibi": True, "return_lse": False},
                {"direction": "backward", "head_dim": 256, "causal": True, "return_lse": False},
                {"direction": "backward", "head_dim": 192, "head_dim_v": 40, "window": (40, 3), "return_lse": False},
            )
        ]
    return found


def prepare(folder: Path, *, quick: bool) -> None:
    """Write everything that `run` needs."""
    sys.path[:0] = [str(ROOT), str(ROOT / "profiling")]
    from rocattn.config import AttentionConfig
    from rocattn.gpu.plan import plan
    from rocattn_profiling.workloads.grids import get_grid

    folder.mkdir(parents=True, exist_ok=True)
    sources: dict[str, tuple[str, dict[str, Any]]] = {}

    def planned(config: AttentionConfig, *, flash: bool, mask_dtype: str | None = None) -> dict[str, Any]:
        made = plan(config, PLANNED_FOR, use_flash_attention=flash, mask_dtype=mask_dtype).as_dict()
        for launch in made["launches"]:
            launch["code_object"] = launch["code_object"].replace(".hsaco", ".ptx")
            sources[launch["code_object"]] = (launch["source"], launch["defines"])
        return made

    checks = []
    for number, fields in enumerate(checked_problems()):
        config = AttentionConfig(**fields)
        mask_dtype = _write_problem(config, folder / f"check-{number}.npz")
        paths = ["backward"] if config.direction == "backward" else ["flash", "standard"]
        plans = {path: planned(config, flash=path == "flash", mask_dtype=mask_dtype) for path in paths}
        checks.append({"label": config.label, "data": f"check-{number}.npz", "plans": plans})
    timed = [
        {"label": config.label, "config": config.to_dict(), "flops": config.flops,
         "plans": {path: planned(config, flash=path == "flash") for path in ("flash", "standard")}}
        for config in dict.fromkeys(c.replace(dtype="float16", causal=causal)
                                    for causal in (False, True) for c in get_grid("inference").configs(quick))
    ]  # fmt: skip
    for name, (source, defines) in sources.items():
        _compile(source, defines, folder / name)
    (folder / "work.json").write_text(json.dumps({"sm": SM, "checks": checks, "timed": timed}))
    print(f"{len(checks)} problems to check, {len(timed)} to time, {len(sources)} kernels in {folder}")


def _write_problem(config: Any, path: Path) -> str | None:
    """Write inputs, float64 results and the errors of a naive program of the same dtype; returns the mask's dtype."""
    from rocattn import backends, layouts
    from rocattn_profiling.workloads import naive
    from rocattn_profiling.workloads.inputs import make_inputs

    inputs = make_inputs(config)
    operands = inputs.operands(config)
    rows, group = np.arange(config.seq_q), config.num_heads // config.num_kv_heads
    q, kv = (config.batch, config.num_heads, config.seq_q), (config.batch, config.num_kv_heads, config.seq_k)
    d, d_v = config.head_dim, config.head_dim_v
    backward = config.direction == "backward"
    shapes = {"dq": (*q, d), "dk": (*kv, d), "dv": (*kv, d_v)} if backward else {"out": (*q, d_v), "lse": q}
    exact, rough = ({name: np.empty(shape) for name, shape in shapes.items()} for _ in range(2))
    arrays = {name: getattr(operands, name) for name in ("q", "k", "v", "mask", "alibi_slopes", "sinks")}
    if backward:
        forward = config.replace(direction="forward", return_lse=True)
        arrays["out"], arrays["lse"] = np.empty((*q, d_v), operands.q.dtype), np.empty(q, np.float32)
        backends.CpuBackend().forward(forward, operands, arrays["out"], arrays["lse"])
        arrays["dout"] = layouts.heads_view(inputs.dout, config.layout, config.num_heads, "dout")
    np.seterr(divide="ignore")  # the logarithm of a row that sees nothing
    for b in range(config.batch):
        for head in range(config.num_kv_heads):
            heads = naive.one_kv_head(config, b, head)
            if backward:
                programs = (naive.exact_gradients, naive.naive_gradients)
                both = [program(config, operands, arrays["dout"], heads) for program in programs]
            else:
                both = [f(config, operands, heads, rows) for f in (naive.exact_forward, naive.naive_forward)]
            for into, found in zip((exact, rough), both, strict=True):
                for name, array in into.items():
                    part = head if name in {"dk", "dv"} else slice(head * group, (head + 1) * group)
                    array[b, part] = getattr(found, name).reshape(array[b, part].shape)
    for name in shapes:
        arrays[f"exact_{name}"] = exact[name].astype(np.float64 if name == "lse" else np.float32)
        if name != "lse":
            arrays[f"naive_error_{name}"] = np.float64(np.abs(rough[name] - exact[name]).max())
    stored = {name: np.ascontiguousarray(array) for name, array in arrays.items() if array is not None}
    np.savez(path, **{n: a.view(np.uint16) if a.dtype.name == "bfloat16" else a for n, a in stored.items()})
    return None if operands.mask is None or operands.mask.dtype == bool else operands.mask.dtype.name


def _compile(source: str, defines: dict[str, Any], target: Path) -> None:
    from rocattn.sources import kernel_root
    from rocattn.toolchain import choose_compiler
    from rocattn.toolchain.hip import define_options

    root = kernel_root()
    command = [*choose_compiler().argv, *_PTX_OPTIONS, *define_options(defines), f"-I{root / 'include'}"]
    done = subprocess.run(
        [*command, "-S", str(root / source), "-o", str(target)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{source} does not compile for {SM}: {done.stderr[:3000]}")


# ---- run -----------------------------------------------------------------------------------------------------------


class Card:
    """The CUDA driver, as far as launching PTX needs it; memory and streams are PyTorch's."""

    def __init__(self, folder: Path) -> None:
        import torch

        torch.zeros(1, device="cuda")  # makes the context current
        self._cuda, self._folder = ctypes.CDLL("libcuda.so.1"), folder
        self._functions: dict[tuple[str, str], ctypes.c_void_p] = {}

    def _check(self, status: int, what: str) -> None:
        if status:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(status, ctypes.byref(text))
            raise SystemExit(f"{what}: {(text.value or b'').decode()}")

    def _function(self, code: str, symbol: str) -> ctypes.c_void_p:
        if (code, symbol) not in self._functions:
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            image = (self._folder / code).read_bytes() + b"\0"
            self._check(self._cuda.cuModuleLoadData(ctypes.byref(module), image), f"loading {code}")
            self._check(self._cuda.cuModuleGetFunction(ctypes.byref(function), module, symbol.encode()), symbol)
            self._functions[code, symbol] = function
        return self._functions[code, symbol]

    def prepared(self, plan: dict[str, Any], addresses: dict[str, int]) -> Any:
        """Return a function that issues all launches of a plan on PyTorch's current stream."""
        import torch

        sizes: dict[str, int] = {}
        for launch in plan["launches"]:
            for arg in launch["args"]:
                if arg["kind"] == "workspace":
                    sizes[arg["name"]] = max(arg["bytes"], sizes.get(arg["name"], 1))
        spaces = {name: torch.empty(size, dtype=torch.uint8, device="cuda") for name, size in sizes.items()}
        known = addresses | {name: space.data_ptr() for name, space in spaces.items()}
        calls = []
        for launch in plan["launches"]:
            packed = b""
            for arg in launch["args"]:
                pointer = arg["kind"] != "scalar"
                code, value = ("Q", known[arg["name"]]) if pointer else (_PACK[arg["type"]], arg["value"])
                part = struct.pack("<" + code, value)
                packed += b"\0" * (-len(packed) % len(part)) + part
            buffer, size = ctypes.create_string_buffer(packed, len(packed)), ctypes.c_size_t(len(packed))
            extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
            calls.append((self._function(launch["code_object"], launch["symbol"]), launch, extra, (buffer, size)))

        def go() -> None:
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            for function, launch, extra, _ in calls:
                status = self._cuda.cuLaunchKernel(function, *launch["grid"], *launch["block"], 0, stream, None, extra)
                self._check(status, f"launching {launch['symbol']}")

        go.keep = spaces  # type: ignore[attr-defined]
        return go


def run(folder: Path, json_file: Path | None) -> int:
    """Check, then time; returns 1 if something was wrong."""
    import torch

    work, card = json.loads((folder / "work.json").read_text()), Card(folder)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}: not an AMD GPU")
    wrong = 0
    for case in work["checks"]:
        for path, plan in case["plans"].items():
            ratio, lse_error = _checked(card, folder / case["data"], plan)
            bad = not (ratio <= (3.0 if path == "backward" else 2.0) and lse_error < 1e-3)
            wrong += bad
            found = f"error {ratio:.2f} x naive's, LSE {lse_error:.1e}"
            print(f"{'WRONG' if bad else 'ok':5} {path:8} {case['label']:60} {found}", flush=True)
    rows = [_timed(card, case) for case in work["timed"]]
    for causal in (False, True):
        part = [row for row in rows if row["causal"] is causal]
        if part:
            ratio = {
                name: _mean([row[f"{name}_ms"] / row["flash_ms"] for row in part]) for name in ("standard", "torch")
            }
            print(
                f"{'causal' if causal else 'full'}: flash is {ratio['standard']:.2f}x as fast as the standard path,"
                f" {ratio['torch']:.2f}x as PyTorch's attention (geometric means of {len(part)})"
            )
    if json_file:
        json_file.write_text(json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}))
    return 1 if wrong else 0


def _tensor(array: np.ndarray, dtype: str) -> Any:
    import torch

    tensor = torch.from_numpy(array.view(np.int16) if array.dtype == np.uint16 else array).cuda()
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" and array.dtype == np.uint16 else tensor


def _strided(tensor: Any, buffer: dict[str, Any]) -> Any:
    """Return a copy in the memory order that a plan's buffer describes."""
    import torch

    empty = torch.empty_strided(buffer["shape"], buffer["strides"], dtype=tensor.dtype, device="cuda")
    return empty.copy_(tensor.expand(buffer["shape"]))


def _checked(card: Card, data: Path, plan: dict[str, Any]) -> tuple[float, float]:
    """Return the worst output's error over the naive program's, and the LSE's error."""
    import torch

    arrays, tensors = np.load(data), {}
    for name, buffer in plan["buffers"].items():
        if buffer["role"] == "input":
            tensors[name] = _strided(_tensor(arrays[name], buffer["dtype"]), buffer)
        else:
            dtype = getattr(torch, buffer["dtype"])
            empty = torch.empty_strided(buffer["shape"], buffer["strides"], dtype=dtype, device="cuda")
            tensors[name] = empty.fill_(math.nan)
    card.prepared(plan, {name: tensor.data_ptr() for name, tensor in tensors.items()})()
    torch.cuda.synchronize()
    worst = lse_error = 0.0
    for name in [key.removeprefix("exact_") for key in arrays.files if key.startswith("exact_")]:
        exact, found = arrays[f"exact_{name}"], tensors[name].double().cpu().numpy()
        if name == "lse":
            seen = np.isfinite(exact)  # -inf: a row that sees nothing
            same = np.array_equal(found[~seen], exact[~seen])
            lse_error = float(np.abs(found[seen] - exact[seen]).max()) if same else math.nan
        else:
            error = float(np.abs(found - exact).max()) / max(arrays[f"naive_error_{name}"].item(), 1e-12)
            worst = error if math.isnan(error) else max(worst, error)
    return worst, lse_error


def _timed(card: Card, case: dict[str, Any]) -> dict[str, Any]:
    import torch

    plan, config = case["plans"]["flash"], case["config"]
    generator = torch.Generator("cuda").manual_seed(0)
    tensors = {}
    for name, buffer in plan["buffers"].items():
        tensors[name] = torch.empty_strided(buffer["shape"], buffer["strides"], dtype=torch.float16, device="cuda")
        tensors[name].normal_(generator=generator)
    addresses = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    calls = {path: card.prepared(one, addresses) for path, one in case["plans"].items()}
    q, k, v = tensors["q"], tensors["k"], tensors["v"]
    calls["torch"] = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=config["causal"])
    exact = torch.nn.functional.scaled_dot_product_attention(
        q[:1, :2].double(), k[:1, :2].double(), v[:1, :2].double(), is_causal=config["causal"]
    )
    row: dict[str, Any] = {"label": case["label"], "causal": config["causal"]}
    for path in ("flash", "standard"):
        tensors["out"].fill_(math.nan)
        calls[path]()
        row[f"{path}_error"] = float((tensors["out"][:1, :2].double() - exact).abs().max())
    row["torch_error"] = float((calls["torch"]()[:1, :2].double() - exact).abs().max())
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(15):
        for name, call in calls.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            call()
            end.record()
            end.synchronize()
            if turn >= 3:
                times[name].append(start.elapsed_time(end))
    row |= {f"{name}_ms": statistics.median(found) for name, found in times.items()}
    row["flash_tflops"] = case["flops"] / row["flash_ms"] / 1e9
    print(
        f"{row['label']:45} flash {row['flash_ms']:8.3f} ms ({row['flash_tflops']:5.1f} TFLOP/s), standard"
        f" {row['standard_ms']:8.3f}, torch {row['torch_ms']:8.3f}; errors {row['flash_error']:.1e}"
        f" {row['standard_error']:.1e} {row['torch_error']:.1e}", flush=True,
    )  # fmt: skip
    return row


def _mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(math.log(x) for x in values))


def main() -> int:
    """Do one of the two steps."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    steps = parser.add_subparsers(dest="step", required=True)
    first = steps.add_parser("prepare")
    first.add_argument("folder", type=Path)
    first.add_argument("--quick", action="store_true", help="the quick subset of the grid")
    second = steps.add_parser("run")
    second.add_argument("folder", type=Path)
    second.add_argument("--json", type=Path, help="also write the timed rows here")
    options = parser.parse_args()
    if options.step == "prepare":
        prepare(options.folder, quick=options.quick)
        return 0
    return run(options.folder, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
