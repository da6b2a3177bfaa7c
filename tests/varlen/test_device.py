"""Sequences of different lengths in a device's memory: DLPack tensors, and a cache whose pages live there; stand-in."""

from ..gpu.conftest import hostgpu  # noqa: F401 - a fixture
from ..gpu.test_tensors import PRELUDE

TENSORS = """
starts = np.array([0, 19, 20, 38], np.int32)
q = normal(38, 4, 32)
pages_k, pages_v = normal(9, 16, 2, 32), normal(9, 16, 2, 32)
lengths = np.array([19, 70, 18], np.int32)
table = np.array([[3, 1, -1, -1, -1], [0, 8, 2, 5, 6], [4, 7, -1, -1, -1]], np.int32)
options = {"causal": True, "return_lse": True}
packed = normal(61, 2, 32), normal(61, 2, 32)
starts_k = np.array([0, 20, 40, 61], np.int32)
told = {}
for name, k, v, where in (
    ("paged", pages_k, pages_v, {"seqlens_k": lengths, "block_table": table}),
    ("packed", *packed, {"cu_seqlens_k": starts_k}),
    ("used", *packed, {"cu_seqlens_k": starts_k, "seqlens_k": np.array([3, 20, 0], np.int32)}),
):
    right, right_lse = rocattn.attention_varlen(q, k, v, starts, **where, backend="cpu", **options)
    on_device = {key: Producer(value) for key, value in where.items()}
    for bounds in ({}, {"max_seqlen_q": 19, "max_seqlen_k": 70}):
        out, lse = rocattn.attention_varlen(
            Producer(q), Producer(k), Producer(v), Producer(starts), **on_device, **bounds, **options
        )
        mine, logs = (to_host(x.address, x.shape, x.dtype) for x in (out, lse))
        seen = np.isfinite(right_lse)
        told[f"{name} {len(bounds)}"] = close(mine, right) and bool((np.isfinite(logs) == seen).all()) and close(
            logs[seen], right_lse[seen]
        )
try:
    rocattn.attention_varlen(Producer(q), Producer(pages_k), Producer(pages_v), Producer(starts.astype(np.float32)),
                             seqlens_k=Producer(lengths), block_table=Producer(table))
except RocattnError as error:
    told["refused"] = str(error)
print(json.dumps(told))
"""


def test_device_tensors_are_computed_where_they_are(hostgpu):  # noqa: F811
    """Pages, packed rows and used lengths, with and without bounds; nothing is read back to size a launch."""
    told = hostgpu(PRELUDE + TENSORS)
    assert told.pop("refused") == "cu_seqlens_q has dtype float32: int32 is needed"
    assert told == dict.fromkeys(told, True)
    assert len(told) == 6


CACHE = """
from rocattn import PagedKVCache
from rocattn.errors import ConfigError
told = {}
SCALES = {"k_scale": np.array([0.01, 0.02], np.float32), "v_scale": 0.015}
for stored, block_size in (("float16", 16), ("float32", 7), ("float8_e4m3fn", 16), ("float8_e4m3fnuz", 7)):
    dtype, scales = (np.float16, SCALES) if stored.startswith("float8") else (np.dtype(stored), {})
    host, device = (PagedKVCache(3, 2, 32, num_blocks=40, block_size=block_size, head_dim_v=16, dtype=stored, device=d,
                                 **scales) for d in (None, 0))
    cache = None  # the last one of the round before
    before = runtime.pool.current_bytes
    for at, count in enumerate((23, 1, 1, 30)):
        for sequence in range(3):
            more = count + sequence if at == 0 else count
            k, v = normal(1, more, 2, 32).astype(dtype), normal(1, more, 2, 16).astype(dtype)
            for cache in (host, device):
                cache.append(k, v, sequence=sequence)
        q = normal(3, min(count, 9), 4, 32).astype(dtype)
        right, right_lse = host.attend(q, causal=True, sinks=np.ones(4, np.float32), return_lse=True, backend="cpu")
        out, lse = device.attend(q, causal=True, sinks=np.ones(4, np.float32), return_lse=True)
        told[f"{stored} {at}"] = close(out, right) and close(lse, right_lse)
    told[f"{stored} kept"] = runtime.pool.current_bytes - before  # pages alone are on the device all the time
    for cache in (host, device):
        cache.truncate(11, sequence=1)
        cache.append(k[:, :5], v[:, :5], sequence=1)
        cache.reorder([1, 1, 0])
        cache.append(np.repeat(k[:, :1], 3, axis=0), np.repeat(v[:, :1], 3, axis=0))
        cache.truncate(12, sequence=1)
    q = normal(3, 1, 4, 32).astype(dtype)
    told[f"{stored} again"] = close(device.attend(q), host.attend(q, backend="cpu"))
try:
    device.attend(q, backend="cpu")
except ConfigError as error:
    told["refused"] = str(error)
import copy, pickle
for name, copied in (("copied", copy.deepcopy), ("pickled", pickle.dumps)):
    try:
        copied(device)
    except ConfigError as error:
        told[name] = str(error)
print(json.dumps(told))
"""


def test_a_cache_keeps_its_pages_on_a_device(hostgpu):  # noqa: F811
    """Growth, truncation and attention are those of a cache in host memory; calls leave nothing else behind."""
    told = hostgpu(PRELUDE + CACHE)
    assert told.pop("refused") == "the pages are on a device: the gpu backend reads those, not 'cpu'"
    for name in ("copied", "pickled"):
        assert told.pop(name).startswith("a cache on a device cannot be copied or pickled")
    kept = [told.pop(f"{dtype} kept") for dtype in ("float16", "float32", "float8_e4m3fn", "float8_e4m3fnuz")]
    assert kept == [0, 0, 0, 0]
    assert told == dict.fromkeys(told, True)
    assert len(told) == 20
