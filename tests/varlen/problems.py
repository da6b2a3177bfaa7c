"""Problems of sequences of lengths of their own, packed or in pages, judged sequence by sequence by the project's rule.

By hand, for more than the tests run: ``python -m tests.varlen.problems --problems 300 [--backend gpu]``.
"""

import argparse
import sys
from dataclasses import dataclass

import numpy as np

import rocattn
from rocattn.config import AttentionConfig
from rocattn_profiling.workloads.accuracy import check_gradients, check_output
from rocattn_profiling.workloads.inputs import Inputs, make_inputs, numpy_dtype

from ..attention.random_problems import DTYPES, moat


@dataclass
class Problem:
    """Each sequence's own config and inputs, and the arrays that hold all of them: NaN wherever no sequence is."""

    configs: list  # of the sequences
    inputs: list
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    where: dict  # arguments that say where the sequences are
    options: dict

    def attend(self, backend):
        """Return out and lse of all."""
        return rocattn.attention_varlen(
            self.q, self.k, self.v, **self.where, **self.options, return_lse=True, backend=backend
        )

    def rows(self, index):
        """Return the rows of q of a sequence."""
        return slice(*self.where["cu_seqlens_q"][index : index + 2])

    def faults(self, backend, out, lse):
        """Return what is wrong with each sequence that breaks the rule; -inf and 0 where nothing is seen included."""
        faults = []
        for index, (config, inputs) in enumerate(zip(self.configs, self.inputs, strict=True)):
            rows = self.rows(index)
            check = check_output(config, inputs, out[None, rows], np.ascontiguousarray(lse[None, :, rows]))
            faults += [] if check.ok else [f"{config.label} on {backend}: {check}"]
        return faults


def packed_rows(arrays, dtype):
    """Return arrays [1, S, heads, D] one after the other in a buffer of NaN."""
    return moat(np.concatenate([array[0] for array in arrays]).astype(dtype))[1]


def paged_rows(seed, arrays, page_size, *, shuffled=True, shared=0, spare=2):
    """Return pages of [1, S, heads, D] arrays and the table; of the first ``shared`` pages, full ones are shared.

    The table has ``spare`` columns more than the longest sequence has pages.
    """
    counts = [-(-array.shape[1] // page_size) for array in arrays]
    total = sum(counts) + 3
    order = np.random.default_rng(seed).permutation(total) if shuffled else np.arange(total)
    table = np.full((len(arrays), max(counts) + spare), -7, np.int32)
    pages = np.full((total, page_size, *arrays[0].shape[2:]), np.nan, arrays[0].dtype)
    taken = 0
    for index, (array, count) in enumerate(zip(arrays, counts, strict=True)):
        table[index, :count] = order[taken : taken + count]
        taken += count
        full = min(shared, *(x.shape[1] // page_size for x in (arrays[0], array)))
        table[index, :full] = table[0, :full]
        for at in range(count):
            part = array[0, at * page_size : (at + 1) * page_size]
            pages[table[index, at], : len(part)] = part
    return pages, table


def problem(
    lengths, dtype, *, heads=4, kv_heads=2, dim=64, dim_v=None, page_size=0, shared=0, seed=0, shuffled=True,
    direction="forward", unused=0, spare=2, own_slopes=False, **options,
):  # fmt: skip
    """Return the problem of sequences of these (Sq, Sk).

    ``unused``: rows of packed k after those of each sequence; ``spare``: columns of the table beyond all pages;
    ``own_slopes``: each sequence's are half of those of the one before it.
    """
    configs = [
        AttentionConfig(
            batch=1, num_heads=heads, num_kv_heads=kv_heads, seq_q=seq_q, seq_k=seq_k, head_dim=dim,
            head_dim_v=dim if dim_v is None else dim_v, dtype=dtype, direction=direction,
            return_lse=direction == "forward", **options,
        )
        for seq_q, seq_k in lengths
    ]  # fmt: skip
    inputs = [make_inputs(config, seed=seed + index) for index, config in enumerate(configs)]
    if shared:  # the same keys at the front of all
        for one in inputs[1:]:
            for name in ("k", "v"):
                first, mine = getattr(inputs[0], name), getattr(one, name)
                count = min(shared, first.shape[1] // page_size, mine.shape[1] // page_size) * page_size
                mine[:, :count] = first[:, :count]
    # One value a head for all sequences.
    slopes, sinks = inputs[0].alibi_slopes, inputs[0].sinks
    if own_slopes:
        slopes = np.stack([slopes / np.float32(2**index) for index in range(len(inputs))])
    inputs = [
        Inputs(q=x.q, k=x.k, v=x.v, alibi_slopes=slopes[index] if own_slopes else slopes, sinks=sinks, dout=x.dout)
        for index, x in enumerate(inputs)
    ]
    starts = np.zeros((2, len(lengths) + 1), np.int32)
    starts[:, 1:] = np.cumsum([(seq_q, seq_k + unused) for seq_q, seq_k in lengths], axis=0).T
    where = {"cu_seqlens_q": starts[0]}
    stored = numpy_dtype(dtype)
    q = packed_rows([x.q for x in inputs], stored)
    if page_size:
        k, table = paged_rows(seed, [x.k for x in inputs], page_size, shared=shared, shuffled=shuffled, spare=spare)
        v, _ = paged_rows(seed, [x.v for x in inputs], page_size, shared=shared, shuffled=shuffled, spare=spare)
        where |= {"block_table": table, "seqlens_k": np.array([n for _, n in lengths], np.int32)}
    else:
        blank = [np.full((1, unused, *x.k.shape[2:]), np.nan, stored) for x in inputs]
        blank_v = [np.full((1, unused, *x.v.shape[2:]), np.nan, stored) for x in inputs]
        k = packed_rows([a for x, b in zip(inputs, blank, strict=True) for a in (x.k, b)], stored)
        v = packed_rows([a for x, b in zip(inputs, blank_v, strict=True) for a in (x.v, b)], stored)
        where["cu_seqlens_k"] = starts[1]
        if unused:
            where["seqlens_k"] = np.array([n for _, n in lengths], np.int32)
    given = {name: value for name, value in options.items() if name not in {"alibi", "sinks"}}
    return Problem(configs, inputs, q, k, v, where, given | {"alibi_slopes": slopes, "sinks": sinks})


def random_problem(seed, dtype, *, most_keys=1500):
    """Return a problem of any lengths, options and page size."""
    rng = np.random.default_rng([seed, DTYPES.index(dtype)])

    def pick(*values):
        return values[rng.integers(len(values))]

    kv_heads, group = pick(1, 2, 3), pick(1, 2, 4, 8)
    decode, paged = rng.random() < 0.4, rng.random() < 0.7
    lengths = [
        (int(rng.integers(0, 4 if decode else 150)), min(most_keys, pick(0, 1, 17, 64, 100, 257, 600, 1500)))
        for _ in range(rng.integers(1, 9))
    ]
    options = {"causal": bool(rng.random() < 0.6)}
    if rng.random() < 0.4:
        options["window"] = (pick(-1, 0, 5, 130), pick(-1, 0, 3, 40))
    options |= {name: value for name, value in (("softcap", 5.0), ("alibi", True), ("sinks", True), ("scale", 0.2))
                if rng.random() < 0.25}  # fmt: skip
    dim = pick(16, 20, 32, 64, 80, 128)
    return problem(
        lengths, dtype, heads=kv_heads * group, kv_heads=kv_heads, dim=dim, dim_v=pick(dim, dim, 16, 64),
        page_size=pick(16, 17, 24, 32, 48, 64, 100, 128, 256) if paged else 0, shared=pick(0, 0, 2) if paged else 0,
        unused=0 if paged else pick(0, 0, 5), shuffled=rng.random() < 0.8, seed=seed, **options,
    )  # fmt: skip


def gradient_faults(one, backend):
    """Return what is wrong with the gradients of a packed problem."""
    where = one.where
    dout = packed_rows([x.dout for x in one.inputs], one.q.dtype)
    out, lse = one.attend(backend)
    dq, dk, dv = rocattn.attention_varlen_backward(
        dout, one.q, one.k, one.v, out, lse, **where, **one.options, backend=backend
    )
    faults, k_starts = [], where["cu_seqlens_k"]
    for index, (config, inputs) in enumerate(zip(one.configs, one.inputs, strict=True)):
        keys = slice(k_starts[index], k_starts[index] + config.seq_k)
        check = check_gradients(config, inputs, dq[None, one.rows(index)], dk[None, keys], dv[None, keys])
        if not check.ok:
            faults.append(f"{config.label} on {backend}: {check}")
        rest = slice(keys.stop, k_starts[index + 1])
        if dk[rest].any() or dv[rest].any():
            faults.append(f"{config.label} on {backend}: gradients in rows of no sequence")
    return faults


def main():
    """Run many problems and print what is wrong."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="cpu-flash")
    parser.add_argument("--most-keys", type=int, default=1500)
    arguments = parser.parse_args()
    wrong = 0
    for seed in range(arguments.seed, arguments.seed + arguments.problems):
        for dtype in DTYPES:
            one = random_problem(seed, dtype, most_keys=arguments.most_keys)
            for fault in one.faults(arguments.backend, *one.attend(arguments.backend)):
                wrong += 1
                print(f"seed {seed}, {dtype}: {fault}", flush=True)
    print(f"{arguments.problems * len(DTYPES)} problems on {arguments.backend}, {wrong} sequences wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
