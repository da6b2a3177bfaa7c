"""Judges the simulation of CDNA (`cdna`) against what others measured on MI300X and MI355X.

``compare.py --code CODE`` prints it. What is not there is left out and named; CODE holds

* ``aiter``: a checkout of github.com/ROCm/aiter at e4048607, of which ``hsa`` is enough;
* ``bench``: one of midiareshadi/attn-dsl-bench at 94ea7f3, of which ``results/raw`` is enough;
* ``triton/HEAD``, ``sdpa/HEAD/TOKENS``: what `launches` says;
* ``unified/3.6.0``, ``unified/3.7.0``, ``extend/3.7.1``, ``extend/3.8.0``: what `rocattn kernels capture --arch gfx950`
  keeps of ``research/peers/upgrades.py unified_attention`` and ``extend_attention 576 n64`` with that Triton.

Not simulated: AITER's rows at D = 64, which are composable_kernel's. Its stored source is of October 2024, not of the
benchmark's May 2026; LLVM's clang 19 reads it with Triton's copy of HIP's headers, but had not compiled it after 180 s.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from cdna import TIMING, Cdna, Kernel, Launch, Memory, Steady, Step, Timing, kernel_of, read_kernel, steady, whole

from rocattn.config import AttentionConfig
from rocattn.gpu.plan import plan
from rocattn.toolchain import compile_hip
from rocattn_profiling.kernels.read.assembly import Instruction
from rocattn_profiling.kernels.read.code_objects import read_objects

CUS = {"gfx942": 304, "gfx950": 256}
CLOCKS = {"gfx942": 2.1e6, "gfx950": 2.4e6}  # cycles in a millisecond at most
SEQUENCES = 16 * 16  # of attn-dsl-bench: batch and heads
_POINTS, _RATIO, _FACTOR = 8, 8, 1.5  # points of a share, per cent of a ratio, and the factor that one may be off
_ROUNDING = 522 / 449  # TFLOP/s of AITER with bf16 rounded by rtz and by rtne on MI300X: moonmath-ai/amd-kernels
_PEAK = {"": 1283 / 2517, "_causal": 1247 / 2517}  # of MI355X's, AITER at D = 128: HipKittens f09e968
_CHAINS = {"dependent": (18, [0, 0]), "independent": (17, [0, 4])}  # cycles from one v_mfma_f32_16x16x32_f16 to the
# next on gfx950, and their results: TLX, facebookexperimental/triton's pull request 2507
SPILLS = (
    ("unified", "3.6.0", "3.7.0", {256: 17.91 / 4.44, 128: 1, 64: 1}),  # ROCm/aiter issue 4137
    ("extend", "3.7.1", "3.8.0", {576: 13.78 / 5.99}),  # sglang pull request 34741: from 3.6 to 3.7, but see below
)


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        name: What was measured.
        measured, simulated: The numbers; None if nobody published one.
        met: Whether they are close enough; None if nothing says how close they ought to be.
        note: What they are of.
    """

    name: str
    measured: float | None
    simulated: float
    met: bool | None
    note: str = ""

    def text(self) -> str:
        """Return it as a line."""
        measured = "" if self.measured is None else f"{self.measured:.3g}"
        word = {True: "meets", False: "misses", None: ""}[self.met]
        return _line(self.name, measured, f"{self.simulated:.3g}", word, self.note)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def print_published(code: Path, timing: Timing = TIMING) -> None:
    """Print the tables, in Markdown."""
    shares = dict(_shares(code, timing))
    tokens = sorted({key[2] for key in shares})
    print("\n" + _line("MI300X, matrix %: counted/simulated", *map(str, tokens)))
    print("|---" * (len(tokens) + 1) + "|")
    for who, head in dict.fromkeys(key[:2] for key in shares):
        pairs = [shares[who, head, each] for each in tokens]
        print(_line(f"{who} D={head}", *(f"{a:.0f}/{'-' if b is None else format(b, '.0f')}" for a, b in pairs)))
    print("\n" + _line("", "measured", "simulated", "", "") + "\n|---|---|---|---|---|")
    for row in (*_order(shares), *_ratios(code, timing), *_latencies(timing), *_spills(code, timing)):
        print(row.text())
    _print_side_by_side(code, timing)


@lru_cache
def _steady(path: Path, timing: Timing, groups: int = 1) -> tuple[Kernel, Steady]:
    kernel = read_kernel(path, groups=groups)
    return kernel, steady(kernel, timing=timing)


def _objects(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.hsaco"))
    if not found:
        print(f"{folder}: no code objects, left out", file=sys.stderr)
    return found


# ---- shares of the matrix unit --------------------------------------------------------------------------------------


def _shares(code: Path, timing: Timing) -> Iterator[tuple[tuple[str, int, int], tuple[float, float | None]]]:
    """Yield each row of attn-dsl-bench's counters: whose, features, tokens, and the share counted and simulated."""
    path = code / "bench/results/raw/counters_v1.csv"
    if not path.is_file():
        print(f"{path}: not there, left out", file=sys.stderr)
        return
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            key = row["implementation"], int(row["head_dim"]), int(row["seq_len"])
            yield key, (float(row["mfma_util"]), _SHARES[key[0]](code, timing, *key[1:]))


def _order(shares: dict[tuple[str, int, int], tuple[float, float | None]]) -> Iterator[Row]:
    """Yield how many of them are close, and how many pairs in order."""
    known = [(measured, simulated) for measured, simulated in shares.values() if simulated is not None]
    if len(known) > 1:
        close = sum(abs(a - b) <= _POINTS for a, b in known)
        yield Row(f"of {len(shares)} rows, within {_POINTS} points", len(known), close, close == len(known))
        right = sum((a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in combinations(known, 2))
        pairs = len(known) * (len(known) - 1) // 2
        note = f"tau {2 * right / pairs - 1:.2f}, rho {_spearman(known):.2f}"
        yield Row("pairs of them in order", pairs, right, right == pairs, note)


def _of_aiter(code: Path, timing: Timing, head: int, tokens: int) -> float | None:
    if head != 128:
        return None
    kernel, state = _steady(code / "aiter/hsa/gfx942/fmha_v3_fwd/MI300/fwd_hd128_bf16_causal_rtna.co", timing, 2)
    return whole(kernel, state, Launch(tokens, head, SEQUENCES, 256, pairs=True), CUS["gfx942"])[0]


def _of_triton(code: Path, timing: Timing, head: int, tokens: int) -> float | None:
    """Return the mean over all that the tuner launches, by how often it does so: Triton's do_bench_cudagraph."""
    shares = [
        whole(*_steady(path, timing), Launch(tokens, head, SEQUENCES, 128), CUS["gfx942"])
        for path in _objects(code / f"triton/{head}/gfx942")
    ]
    launches = [7 + 10 * max(1, int(20 * CLOCKS["gfx942"] / cycles)) for _, cycles in shares]
    weighed = sum(share * times for (share, _), times in zip(shares, launches, strict=True))
    return weighed / sum(launches) if launches else None


def _of_sdpa(code: Path, timing: Timing, head: int, tokens: int) -> float | None:
    for path in _objects(code / f"sdpa/{head}/{min(tokens, 8192)}"):  # 8192 is the table's longest
        return whole(*_steady(path, timing), Launch(tokens, head, SEQUENCES, 128), CUS["gfx942"])[0]
    return None


_SHARES = {"aiter": _of_aiter, "triton": _of_triton, "pytorch_sdpa": _of_sdpa}


def _spearman(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the correlation of ranks, none of which are equal."""
    ranks = [{value: rank for rank, value in enumerate(sorted(side))} for side in zip(*pairs, strict=True)]
    squares = sum((ranks[0][a] - ranks[1][b]) ** 2 for a, b in pairs)
    return 1 - 6 * squares / (len(pairs) * (len(pairs) ** 2 - 1))


# ---- speeds, latencies, spills --------------------------------------------------------------------------------------


def _ratios(code: Path, timing: Timing) -> Iterator[Row]:
    folder = code / "aiter/hsa"
    if not folder.is_dir():
        return
    paths = {name: folder / f"gfx942/fmha_v3_fwd/MI300/fwd_hd128_bf16_{name}.co" for name in ("rtz", "rtne")}
    cycles = {name: _steady(path, timing, 2)[1].cycles for name, path in paths.items()}
    ratio = cycles["rtne"] / cycles["rtz"]
    close = abs(ratio / _ROUNDING - 1) <= _RATIO / 100
    yield Row("MI300X, AITER's rtz over rtne", _ROUNDING, ratio, close)
    for name, share in _PEAK.items():
        busy = _steady(folder / f"gfx950/fmha_v3_fwd/fwd_hd128_bf16{name}.co", timing, 2)[1].busy
        close = abs(busy - 100 * share) <= _POINTS
        note = "of 2.4 GHz; of cycles"
        yield Row(f"MI355X, AITER{name}, % of peak", 100 * share, busy, close, note)


def _latencies(timing: Timing) -> Iterator[Row]:
    for name, (measured, results) in _CHAINS.items():
        steps = [
            Step(Instruction("v_mfma_f32_16x16x32_f16", f"v[{n}:{n + 3}], v[20:23], v[24:27], v[{n}:{n + 3}]"))
            for n in results
        ]
        simulation = Cdna("gfx950", Memory(0, 0, 0), timing)
        simulation.add(steps, 0)
        (times,) = simulation.run()
        yield Row(f"{name} v_mfma 16x16x32, cycles", measured, times[1] - times[0], None, "TLX")


def _spills(code: Path, timing: Timing) -> Iterator[Row]:
    """Yield how much longer the same product takes after an upgrade that spills."""
    for name, before, after, published in SPILLS:
        for path in _objects(code / name / before):
            head, constants = _key(path)
            slower = published.get(head)
            for other in (each for each in _objects(code / name / after) if _key(each)[1] == constants):
                spills = [read_objects(each.read_bytes(), "")[0].kernels[0].vgpr_spills for each in (path, other)]
                loops = [_loops(each, timing) for each in (path, other)]
                for number, (old, new) in enumerate(zip(*loops, strict=True), 1):
                    ratio = new.cycles / new.products / (old.cycles / old.products)
                    close = slower and 1 / _FACTOR <= ratio / slower <= _FACTOR
                    where = f"{name}_attention D={head}, loop {number}/{len(loops[0])}, slower"
                    yield Row(where, slower, ratio, close, f"spills {spills[0]}-{spills[1]}; {new.causes(1)}")


def _loops(path: Path, timing: Timing) -> list[Steady]:
    """Return a steady state for each of a kernel's loops with products."""
    kernel = read_kernel(path)
    return [steady(replace(kernel, loops=(loop,)), timing=timing) for loop in kernel.product_loops()]


def _key(path: Path) -> tuple[int, dict[str, object]]:
    """Return the head dimension of a captured variant, and all constants of its kernel, the same for each Triton."""
    constants = json.loads(path.with_suffix(".json").read_text())["captured"]["constants"]
    return constants.get("HEAD_SIZE") or constants["Lq"], constants


# ---- side by side ---------------------------------------------------------------------------------------------------


def _print_side_by_side(code: Path, timing: Timing) -> None:
    """Print the causal forward kernels at D = 128 in bf16, each with its time at the highest clock and causes."""
    tokens, head = 16384, 128
    title = f"forward, causal, bf16, D={head}, {SEQUENCES}x{tokens} tokens"
    print("\n" + _line(title, "ms", "matrix, %", "lost, % of waves' time") + "\n|---|---|---|---|")
    for arch, cus in CUS.items():
        for name, (kernel, state), rows, pairs in _forward(code, arch, timing):
            share, cycles = whole(kernel, state, Launch(tokens, head, SEQUENCES, rows, pairs), cus)
            print(_line(f"{arch} {name}", f"{cycles / CLOCKS[arch]:.1f}", f"{share:.0f}", state.causes()))


def _forward(code: Path, arch: str, timing: Timing) -> Iterator[tuple[str, tuple[Kernel, Steady], int, bool]]:
    """Yield each project's kernel with the rows of its tile, and whether a block takes two."""
    config = AttentionConfig(
        batch=16, num_heads=16, seq_q=16384, seq_k=16384, head_dim=128, dtype="bfloat16", causal=True
    )
    (launch,) = plan(config, arch).launches
    built = compile_hip(launch.source, arch, defines=launch.defines, line_tables=True)
    (info,) = (each for each in read_objects(built.data, "")[0].kernels if each.symbol == launch.symbol)
    kernel = kernel_of(built.assembly, arch, info, lds_bytes=launch.dynamic_lds_bytes)
    rows = 16 * launch.defines["WAVES"] * launch.defines["QUERY_FRAGMENTS"]
    yield "ours", (kernel, steady(kernel, timing=timing)), rows, False
    file = {"gfx942": "MI300/fwd_hd128_bf16_causal_rtna.co", "gfx950": "fwd_hd128_bf16_causal.co"}[arch]
    if (path := code / f"aiter/hsa/{arch}/fmha_v3_fwd" / file).is_file():
        yield "AITER", _steady(path, timing, 2), 256, True
    tried = [_steady(path, timing) for path in _objects(code / f"triton/128/{arch}")]
    if tried:
        yield "Triton", max(tried, key=lambda each: each[1].busy), 128, False
