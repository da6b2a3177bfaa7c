"""Judges the simulation of CDNA (`cdna`) against what others measured on MI300X and MI355X.

``compare.py --code CODE`` prints it. What is not there is left out and named; CODE holds

* ``aiter``: a checkout of github.com/ROCm/aiter at e4048607, of which ``hsa`` is enough;
* ``bench``: one of midiareshadi/attn-dsl-bench at 94ea7f3, of which ``results/raw`` is enough;
* ``triton/HEAD``, ``sdpa/HEAD/TOKENS``: what `launches` says;
* ``unified/3.6.0``, ``unified/3.7.0``, ``extend/3.7.1``, ``extend/3.8.0``: what `rocattn kernels capture --arch gfx950`
  keeps of ``research/peers/upgrades.py unified_attention`` and ``extend_attention 576 n64`` with that Triton.

Not simulated: AITER's rows at D = 64, which are composable_kernel's: its sources need ROCm's headers to compile.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from cdna import Cdna, Kernel, Launch, Memory, Steady, Step, kernel_of, read_kernel, steady, whole

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
    ("unified", "3.6.0", "3.7.0", 17.91 / 4.44, "ROCm/aiter issue 4137"),
    ("extend", "3.7.1", "3.8.0", 13.78 / 5.99, "sglang pull request 34741"),
)


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        name: What was measured.
        measured, simulated: The numbers.
        met: Whether they are close enough; None if nothing says how close they ought to be.
        note: What they are of.
    """

    name: str
    measured: float
    simulated: float
    met: bool | None
    note: str = ""

    def text(self) -> str:
        """Return it as a line."""
        word = {True: "meets", False: "misses", None: ""}[self.met]
        return f"{self.name:52} {self.measured:9.2f} {self.simulated:9.2f} {word:6} {self.note}".rstrip()


def print_published(code: Path) -> bool:
    """Print the tables; return whether no aim is missed."""
    rows = [*_counters(code), *_ratios(code), *_latencies(), *_spills(code)]
    print(f"\n{'':52} {'measured':>9} {'simulated':>9}")
    for row in rows:
        print(row.text())
    _print_side_by_side(code)
    return all(row.met is not False for row in rows)


@lru_cache
def _steady(path: Path, groups: int = 1) -> tuple[Kernel, Steady]:
    kernel = read_kernel(path, groups=groups)
    return kernel, steady(kernel)


def _objects(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.hsaco"))
    if not found:
        print(f"{folder}: no code objects, left out", file=sys.stderr)
    return found


# ---- shares of the matrix unit --------------------------------------------------------------------------------------


def _counters(code: Path) -> Iterator[Row]:
    """Yield each row of attn-dsl-bench's counters, and how they are in order."""
    with (code / "bench/results/raw/counters_v1.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    shares = []
    for row in rows:
        who, head, tokens = row["implementation"], int(row["head_dim"]), int(row["seq_len"])
        simulated = _SHARES[who](code, head, tokens)
        if simulated is not None:
            measured = float(row["mfma_util"])
            shares.append((measured, simulated))
            close = abs(simulated - measured) <= _POINTS
            yield Row(f"MI300X, matrix share %, {who} D={head} {tokens}", measured, simulated, close)
    right = sum((a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in combinations(shares, 2))
    pairs = len(shares) * (len(shares) - 1) // 2
    tau, rho = 2 * right / pairs - 1, _spearman(shares)
    note = f"Kendall {tau:.2f}, Spearman {rho:.2f}"
    yield Row(f"MI300X, pairs of these {len(shares)} of {len(rows)} rows in order", pairs, right, right == pairs, note)


def _of_aiter(code: Path, head: int, tokens: int) -> float | None:
    if head != 128:
        return None
    kernel, state = _steady(code / "aiter/hsa/gfx942/fmha_v3_fwd/MI300/fwd_hd128_bf16_causal_rtna.co", 2)
    return whole(kernel, state, Launch(tokens, head, SEQUENCES, 256, pairs=True), CUS["gfx942"])[0]


def _of_triton(code: Path, head: int, tokens: int) -> float | None:
    """Return the mean over all that the tuner launches, by how often it does so: Triton's do_bench_cudagraph."""
    shares = [
        whole(*_steady(path), Launch(tokens, head, SEQUENCES, 128), CUS["gfx942"])
        for path in _objects(code / f"triton/{head}/gfx942")
    ]
    launches = [7 + 10 * max(1, int(20 * CLOCKS["gfx942"] / cycles)) for _, cycles in shares]
    weighed = sum(share * times for (share, _), times in zip(shares, launches, strict=True))
    return weighed / sum(launches) if launches else None


def _of_sdpa(code: Path, head: int, tokens: int) -> float | None:
    for path in _objects(code / f"sdpa/{head}/{min(tokens, 8192)}"):  # 8192 is the table's longest
        return whole(*_steady(path), Launch(tokens, head, SEQUENCES, 128), CUS["gfx942"])[0]
    return None


_SHARES = {"aiter": _of_aiter, "triton": _of_triton, "pytorch_sdpa": _of_sdpa}


def _spearman(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the correlation of ranks, none of which are equal."""
    ranks = [{value: rank for rank, value in enumerate(sorted(side))} for side in zip(*pairs, strict=True)]
    squares = sum((ranks[0][a] - ranks[1][b]) ** 2 for a, b in pairs)
    return 1 - 6 * squares / (len(pairs) * (len(pairs) ** 2 - 1))


# ---- speeds, latencies, spills --------------------------------------------------------------------------------------


def _ratios(code: Path) -> Iterator[Row]:
    folder = code / "aiter/hsa"
    if not folder.is_dir():
        return
    rtz, rtne = (_steady(folder / f"gfx942/fmha_v3_fwd/MI300/fwd_hd128_bf16_{name}.co", 2)[1] for name in ("rtz", "rtne"))
    ratio = rtne.cycles / rtz.cycles
    close = abs(ratio / _ROUNDING - 1) <= _RATIO / 100
    yield Row("MI300X, speed of AITER's rtz over rtne", _ROUNDING, ratio, close)
    for name, share in _PEAK.items():
        busy = _steady(folder / f"gfx950/fmha_v3_fwd/fwd_hd128_bf16{name}.co", 2)[1].busy
        close = abs(busy - 100 * share) <= _POINTS
        note = "measured: of the peak at 2.4 GHz; simulated: of cycles"
        yield Row(f"MI355X, % of peak, AITER D=128{name}", 100 * share, busy, close, note)


def _latencies() -> Iterator[Row]:
    for name, (measured, results) in _CHAINS.items():
        steps = [
            Step(Instruction("v_mfma_f32_16x16x32_f16", f"v[{n}:{n + 3}], v[20:23], v[24:27], v[{n}:{n + 3}]"))
            for n in results
        ]
        simulation = Cdna("gfx950", Memory(0, 0, 0))
        simulation.add(steps, 0)
        (times,) = simulation.run()
        yield Row(f"gfx950, cycles of a {name} v_mfma 16x16x32", measured, times[1] - times[0], None, "TLX")


def _spills(code: Path) -> Iterator[Row]:
    """Yield how much longer the same product takes after an upgrade that spills."""
    for name, before, after, slower, where in SPILLS:
        for path in _objects(code / name / before):
            kernel, old = _steady(path)
            others = [each for each in _objects(code / name / after) if _key(each) == _key(path)]
            for other in others:
                new = _steady(other)[1]
                ratio = new.cycles / new.products / (old.cycles / old.products)
                spills = [read_objects(each.read_bytes(), "")[0].kernels[0].vgpr_spills for each in (path, other)]
                note = f"spills {spills[0]} to {spills[1]}, {kernel.blocks} blocks, {where}; then {new.causes(1)}"
                judged = spills[1] > spills[0]
                close = 1 / _FACTOR <= ratio / slower <= _FACTOR if judged else None
                yield Row(f"gfx950, {name} {_key(path)}, times slower", slower if judged else 1, ratio, close, note)


def _key(path: Path) -> str:
    """Return what two captures of one variant share: LDS and waves, as the key has the options of one Triton."""
    (device,) = read_objects(path.read_bytes(), path.name)
    return f"{device.kernels[0].block // 64} waves"


# ---- side by side ---------------------------------------------------------------------------------------------------


def _print_side_by_side(code: Path) -> None:
    """Print the causal forward kernels at D = 128 in bf16, each with its time and causes."""
    tokens, head = 16384, 128
    print(f"\nCausal forward, bf16, D = {head}, {SEQUENCES} sequences of {tokens} tokens, at the highest clock:")
    print(f"{'':15} {'ms':>6} {'matrix %':>8}  of a wave's time, %: the largest causes, each with its costliest place")
    for arch, cus in CUS.items():
        for name, (kernel, state), rows, pairs in _forward(code, arch):
            share, cycles = whole(kernel, state, Launch(tokens, head, SEQUENCES, rows, pairs), cus)
            print(f"{arch} {name:8} {cycles / CLOCKS[arch]:6.1f} {share:8.1f}  {state.causes()}")


def _forward(code: Path, arch: str) -> Iterator[tuple[str, tuple[Kernel, Steady], int, bool]]:
    """Yield each project's kernel with the rows of its tile, and whether a block takes two."""
    config = AttentionConfig(
        batch=16, num_heads=16, seq_q=16384, seq_k=16384, head_dim=128, dtype="bfloat16", causal=True
    )
    (launch,) = plan(config, arch).launches
    built = compile_hip(launch.source, arch, defines=launch.defines, line_tables=True)
    (info,) = (each for each in read_objects(built.data, "")[0].kernels if each.symbol == launch.symbol)
    kernel = kernel_of(built.assembly, arch, info, lds_bytes=launch.dynamic_lds_bytes)
    yield "ours", (kernel, steady(kernel)), 16 * launch.defines["WAVES"] * launch.defines["QUERY_FRAGMENTS"], False
    file = {"gfx942": "MI300/fwd_hd128_bf16_causal_rtna.co", "gfx950": "fwd_hd128_bf16_causal.co"}[arch]
    if (path := code / f"aiter/hsa/{arch}/fmha_v3_fwd" / file).is_file():
        yield "AITER", _steady(path, 2), 256, True
    tried = [_steady(path) for path in _objects(code / f"triton/128/{arch}")]
    if tried:
        yield "Triton", max(tried, key=lambda each: each[1].busy), 128, False
