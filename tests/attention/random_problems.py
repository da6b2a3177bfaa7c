"""Random problems of every option, size, stride and dtype, judged by the project's rule (measure.evaluation).

By hand, for more than the tests run: ``python -m tests.attention.random_problems --problems 3000 [--seed 0]``.
"""

import argparse
import sys

import numpy as np

from rocattn.backends import BACKENDS
from rocattn.config import AttentionConfig
from rocattn.layouts import heads_view, stored_shape
from rocattn_profiling.workloads.accuracy import check_gradients, check_output
from rocattn_profiling.workloads.inputs import Inputs, numpy_dtype

DTYPES = ("float32", "float16", "bfloat16")
LOWEST = {"float32": np.finfo(np.float32).min, "float16": np.finfo(np.float16).min, "bfloat16": -3.3895e38}


def moat(array, before=3, after=5):
    """The same values in the middle of a buffer of NaN: a read outside shows, and a write too."""
    buffer = np.full([n + before + after for n in array.shape], np.nan, array.dtype)
    inner = tuple(slice(before, before + n) for n in array.shape)
    buffer[inner] = array
    return buffer, buffer[inner]


def moat_intact(buffer, view_shape, before=3):
    """Whether everything around the middle is still NaN."""
    outside = np.ones(buffer.shape, bool)
    outside[tuple(slice(before, before + n) for n in view_shape)] = False
    return np.isnan(buffer[outside].astype(np.float32)).all()


def random_problem(seed, dtype, direction="forward"):
    """A config and its inputs: odd and prime sizes, all options, strided and scaled data, masks of every shape."""
    rng = np.random.default_rng([seed, DTYPES.index(dtype)])

    def pick(*values):
        return values[rng.integers(len(values))]

    group, kv_heads, batch = pick(1, 1, 2, 3, 4, 8), pick(1, 2, 3), pick(1, 2)
    seq_q = pick(1, 1, 2, 3, 5, 7, 17, 31, 64, 65, 97, 127, 150, 257)
    seq_k = pick(0, 1, 2, 7, 16, 33, 63, 64, 65, 128, 131, 200, 257, 600, 1100, 1100, 2053)
    dim = pick(1, 3, 8, 16, 24, 32, 40, 64, 65, 80, 96, 128)
    heads, options = group * kv_heads, {"causal": bool(rng.random() < 0.4)}
    if rng.random() < 0.3:
        options["window"] = (pick(-1, 0, 5, 60), pick(-1, 0, 3, 40))
    if rng.random() < 0.4:
        options["mask"] = pick("bool", "additive")
        options["mask_shape"] = tuple(n if rng.random() < 0.6 else 1 for n in (batch, heads, seq_q, seq_k))
    more = {"softcap": pick(5.0, 30.0), "alibi": True, "sinks": True, "scale": pick(-0.5, 0.0, 1.0, 0.03)}
    options |= {name: value for name, value in more.items() if rng.random() < 0.3}
    if seed % 4 == 3:  # apart from the stream of the other options
        options["dropout_p"] = (0.1, 0.5, 1.0)[seed // 4 % 3]
    config = AttentionConfig(
        batch=batch, num_heads=heads, num_kv_heads=kv_heads, seq_q=seq_q, seq_k=seq_k, head_dim=dim,
        head_dim_v=dim if rng.random() < 0.6 else pick(1, 4, 7, 16, 33, 64, 100), dtype=dtype,
        layout=pick("BSHD", "BHSD", "BSE"), return_lse=direction == "forward", direction=direction, **options,
    )  # fmt: skip
    arrays = [_strided(rng, _values(rng, config, name)) for name in ("q", "k", "v")]
    slopes = rng.random(heads).astype(np.float32) if config.alibi else None
    sinks = rng.standard_normal(heads).astype(np.float32) if config.sinks else None
    dout = _strided(rng, _values(rng, config, "out")) if direction == "backward" else None
    q, k, v = arrays
    return config, Inputs(q=q, k=k, v=v, mask=_mask(rng, config), alibi_slopes=slopes, sinks=sinks, dout=dout)


def _values(rng, config, name):
    factor = (1, 1, 3)[rng.integers(3)]
    return (rng.standard_normal(stored_shape(config, name)) * factor).astype(numpy_dtype(config.dtype))


def _strided(rng, array):
    """Sometimes the middle of a larger buffer of NaN, sometimes reversed along the sequence in memory."""
    if rng.random() < 0.2:
        array = np.ascontiguousarray(array[:, ::-1])[:, ::-1]
    return moat(array)[1] if rng.random() < 0.7 else array


def _mask(rng, config):
    """A mask that hides some pairs, or pushes them as far as the dtype goes, or both; keys may not be adjacent."""
    if config.mask_shape is None:
        return None
    mask = rng.random(config.mask_shape) < 0.7
    if config.mask == "additive":
        added = rng.standard_normal(config.mask_shape) * (1, 1, 10)[rng.integers(3)]
        kind = rng.random()
        if kind < 0.5:
            added[~mask] = -np.inf
        elif kind < 0.7:
            added[~mask] = LOWEST[config.dtype]
        elif kind < 0.8:
            added[...] = LOWEST[config.dtype] * (1, 0.8)[rng.integers(2)]
        mask = added.astype(numpy_dtype(config.dtype))
    return np.ascontiguousarray(mask.swapaxes(2, 3)).swapaxes(2, 3) if rng.random() < 0.3 else mask


def judged(config, inputs, backend):
    """Run a problem on a backend into buffers of NaN; returns the Check, and whether nothing outside was written."""
    dtype, operands = numpy_dtype(config.dtype), inputs.operands(config)

    def room(name):
        buffer, stored = moat(np.full(stored_shape(config, name), np.nan, dtype))
        heads = config.num_heads if name in {"q", "out"} else config.num_kv_heads
        return buffer, stored, heads_view(stored, config.layout, heads, name)

    rooms = [room("out")]
    lse = np.full((config.batch, config.num_heads, config.seq_q), np.nan, np.float32)
    backend.forward(config.replace(direction="forward", return_lse=True), operands, rooms[0][2], lse)
    if config.direction == "forward":
        check = check_output(config, inputs, rooms[0][1], lse)
    else:
        dout = heads_view(inputs.dout, config.layout, config.num_heads, "dout")
        rooms += [room(name) for name in ("q", "k", "v")]
        backend.backward(config, operands, dout, rooms[0][2], lse, *(view for _, _, view in rooms[1:]))
        check = check_gradients(config, inputs, *(stored for _, stored, _ in rooms[1:]))
    return check, all(moat_intact(buffer, stored.shape) for buffer, stored, _ in rooms)


def main():
    """Judge many problems; exit status 1 if one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="cpu-flash")
    parser.add_argument("--dtype", choices=DTYPES)
    chosen = parser.parse_args()
    backend, worst, wrong = BACKENDS.get(chosen.backend), {}, 0
    for seed in range(chosen.seed, chosen.seed + chosen.problems):
        for dtype in [chosen.dtype] if chosen.dtype else DTYPES:
            for direction in ("forward", "backward"):
                config, inputs = random_problem(seed, dtype, direction)
                check, intact = judged(config, inputs, backend)
                key = (dtype, direction)
                worst[key] = max(worst.get(key, 0.0), check.ratio)
                if not (check.ok and intact):
                    wrong += 1
                    print(f"{seed} {config.label}: {check.what} {check.ratio:.3g} x allowed, outside intact: {intact}")
    print({" ".join(key): round(ratio, 3) for key, ratio in worst.items()}, f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
