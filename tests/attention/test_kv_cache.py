"""The KV caches: what is kept is what was given, growth moves nothing, and attention reads all of it."""

import ml_dtypes
import numpy as np
import pytest

import rocattn
from rocattn import ConfigError, KVCache, PagedKVCache

H, HKV, D, DV = 6, 2, 12, 20


def tokens(rng, batch, seq, dtype=np.float64):
    """Return k and v of some tokens."""
    return rng.standard_normal((batch, seq, HKV, D)).astype(dtype), rng.standard_normal((batch, seq, HKV, DV)).astype(
        dtype
    )


def queries(rng, batch, seq, dtype=np.float64):
    """Return q of some tokens."""
    return rng.standard_normal((batch, seq, H, D)).astype(dtype)


def test_a_cache_holds_what_was_appended_and_never_moves_it():
    """Views made before growth are still of the same memory after it, and hold the same tokens."""
    rng = np.random.default_rng(1)
    cache = KVCache(2, HKV, D, capacity=19, head_dim_v=DV, dtype=np.float64)
    k, v = tokens(rng, 2, 19)
    cache.append(k[:, :7], v[:, :7])
    early = cache.keys
    for at in range(7, 19):
        cache.append(k[:, at : at + 1], v[:, at : at + 1])
    assert np.shares_memory(early, cache.keys)
    np.testing.assert_array_equal(cache.keys, k)
    np.testing.assert_array_equal(cache.values, v)
    q = queries(rng, 2, 3)
    np.testing.assert_array_equal(
        cache.attend(q, causal=True, backend="cpu"), rocattn.attention(q, k, v, causal=True, backend="cpu")
    )


def test_a_truncated_cache_goes_on_from_there():
    """What was forgotten is overwritten, what was kept is not; a token too many changes nothing."""
    rng = np.random.default_rng(2)
    k, v = tokens(rng, 1, 9)
    cache = KVCache(1, HKV, D, capacity=9, head_dim_v=DV, dtype=np.float64)
    cache.append(k, v)
    cache.truncate(4)
    cache.append(k[:, 6:], v[:, 6:])
    with pytest.raises(ConfigError, match="8 tokens: 7 are kept"):
        cache.truncate(8)
    with pytest.raises(ConfigError, match="10 tokens do not fit into a cache of 9"):
        cache.append(k[:, :3], v[:, :3])
    np.testing.assert_array_equal(cache.keys, np.concatenate([k[:, :4], k[:, 6:]], axis=1))


@pytest.mark.parametrize(("kind", "room"), [(KVCache, {"capacity": 5}), (PagedKVCache, {"num_blocks": 4})])
def test_tokens_of_another_form_are_refused(kind, room):
    """Batch, heads, dimension, dtype and count have to fit."""
    k, v = tokens(np.random.default_rng(4), 2, 3)
    for bad_k, bad_v, told in (
        (k[:1], v, "k has shape"), (k, v[..., :D], "v has shape"), (k[:, :, :1], v, "k has shape"),
        (k.astype(np.float32), v, "float32: the cache keeps float64"), (k, v[:, :2], "k has 3 tokens and v 2"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=told):
            kind(2, HKV, D, head_dim_v=DV, dtype=np.float64, **room).append(bad_k, bad_v)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("block_size", [1, 3, 8])
def test_paged_attention_is_attention_over_each_sequence(block_size, dtype):
    """Sequences of different lengths, blocks scattered by growth in turns, several causal rows at once."""
    rng = np.random.default_rng(block_size)
    lengths = [17, 5, 11]
    kept = [tokens(rng, 1, n, dtype) for n in lengths]
    cache = PagedKVCache(3, HKV, D, num_blocks=40, block_size=block_size, head_dim_v=DV, dtype=dtype)
    for at in range(0, 17, 2):
        for one, (k, v) in enumerate(kept):
            cache.append(k[:, at : at + 2], v[:, at : at + 2], sequence=one)
    assert cache.lengths == lengths
    q, close = queries(rng, 3, 4, dtype), 40 * np.finfo(dtype).eps
    for causal in (False, True):
        found = cache.attend(q, causal=causal, softcap=20.0, backend="cpu")
        for one, (k, v) in enumerate(kept):
            right = rocattn.attention(q[one : one + 1], k, v, causal=causal, softcap=20.0, backend="cpu")
            np.testing.assert_allclose(found[one], right[0], rtol=0, atol=close)


def test_more_rows_than_keys_leave_the_first_rows_empty():
    """Rows before the first key see nothing: their output is 0 in any number of stretches."""
    rng = np.random.default_rng(6)
    cache = PagedKVCache(2, HKV, D, num_blocks=8, block_size=2, head_dim_v=DV)
    for _ in range(2):
        cache.append(*tokens(rng, 2, 2, np.float32))
    out = cache.attend(queries(rng, 2, 7, np.float32), causal=True, backend="cpu")
    assert not out[:, :3].any()
    assert out[:, 3:].all()
    cache.truncate(0)
    assert not cache.attend(queries(rng, 2, 7, np.float32), backend="cpu").any()


@pytest.mark.parametrize(("kind", "room"), [(KVCache, "capacity"), (PagedKVCache, "num_blocks")])
def test_sizes_that_count_nothing_are_refused(kind, room):
    """A size below zero or that is no whole number is named before numpy sees it."""
    sizes = {"batch": 1, "num_kv_heads": HKV, "head_dim": D, "head_dim_v": DV, room: 4}
    for name in sizes:
        for bad in (-1, 2.0, "3", True):
            with pytest.raises(ConfigError, match=f"{name} is {bad!r}: it must be a whole number, 0 or more"):
                kind(**sizes | {name: bad})
    for bad in ("x", None, [], True, [1, "2"], 1j):
        with pytest.raises(ConfigError, match=f"k_scale must be a positive number, or .{HKV}. of them"):
            kind(**sizes | {"k_scale": bad, "dtype": "float8_e4m3fn"})
    for size in (1 << 47, 1 << 62, 1 << 70):  # beyond this machine, numpy's sizes, 64 bits: it refuses in three ways
        with pytest.raises(ConfigError, match=r"there is no memory for [0-9.e+]+ GiB of keys or values: keep less"):
            kind(batch=1, num_kv_heads=8, head_dim=128, **{room: size})


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        # Neither sequences nor blocks of no width cost memory, but a list of them never ends.
        ((1 << 70, HKV, 1, 16), "batch is 1180591620717411303424: a cache takes at most"),
        ((1, 0, 1 << 40, 16), "num_blocks is 1099511627776: a cache takes at most"),
        ((1, HKV, 2, 0), "block_size is 0: it must be a whole number, 1 or more"),
    ],
)
def test_sizes_of_pages_that_end_nowhere_are_refused(sizes, words):
    """Before a list of them is made."""
    batch, heads, blocks, block_size = sizes
    with pytest.raises(ConfigError, match=words):
        PagedKVCache(batch, heads, D, num_blocks=blocks, block_size=block_size)


@pytest.mark.parametrize(("kind", "room"), [(KVCache, {"capacity": 5}), (PagedKVCache, {"num_blocks": 4})])
def test_caches_keep_only_what_attention_takes(kind, room):
    """A dtype that no call could read later is refused at once; "bfloat16" is known by its name."""
    for bad in (np.int8, "nonsense", ">f4"):
        with pytest.raises(ConfigError, match="use one of float16, bfloat16, float32, float64"):
            kind(1, HKV, D, dtype=bad, **room)
    cache = kind(1, HKV, D, dtype="bfloat16", **room)
    k, _ = tokens(np.random.default_rng(8), 1, 3, ml_dtypes.bfloat16)
    cache.append(k, k)
    assert cache.attend(queries(np.random.default_rng(8), 1, 1, ml_dtypes.bfloat16)).dtype == ml_dtypes.bfloat16
    with pytest.raises(ConfigError, match="v is a masked array"):
        cache.append(k, np.ma.masked_array(k))
    for bad in (k.tolist(), None):
        with pytest.raises(ConfigError, match="k must be a numpy array, not"):
            cache.append(bad, k)
        with pytest.raises(ConfigError, match="q must be a numpy array, not"):
            cache.attend(bad)


@pytest.mark.parametrize(("kind", "room"), [(KVCache, {"capacity": 5}), (PagedKVCache, {"num_blocks": 4})])
def test_a_count_that_is_no_whole_number_changes_nothing(kind, room):
    """Kept as a length, a float breaks every call after it."""
    cache = kind(1, HKV, D, **room)
    k, _ = tokens(np.random.default_rng(9), 1, 3, np.float32)
    cache.append(k, k)
    for bad in (1.0, "1", None, -1):
        with pytest.raises(ConfigError, match=f"length is {bad!r}: it must be a whole number, 0 or more"):
            cache.truncate(bad)
    assert cache.attend(queries(np.random.default_rng(9), 1, 1, np.float32)).any()
    if kind is PagedKVCache:
        for bad in (0.0, "0", True, -1):
            with pytest.raises(ConfigError, match=f"sequence is {bad!r}"):
                cache.append(k, k, sequence=bad)


def test_queries_of_another_layout_are_refused():
    """Kept K read in another layout has heads for tokens: with four tokens that fits, and gives wrong numbers."""
    cache = KVCache(1, 1, D, capacity=4)
    k = np.ones((1, 4, 1, D), np.float32)
    cache.append(k, k)
    q = np.ones((1, 8, 1, D), np.float32)
    with pytest.raises(ConfigError, match="layout is 'BHSD': the cache keeps"):
        cache.attend(q, layout="BHSD")
    assert cache.attend(q.swapaxes(1, 2), layout="BSHD").shape == (1, 1, 8, D)


def test_queries_are_checked_where_nothing_is_kept():
    """A dtype, a head count or a backend that is wrong is so before the first token, too."""
    cache = PagedKVCache(1, HKV, D, num_blocks=2)
    q = queries(np.random.default_rng(10), 1, 1, np.float32)
    for bad, told in ((q.astype(np.float16), "float16"), (q[:, :, :3], "query heads"), (q[..., :3], "head_dim")):
        with pytest.raises(ConfigError, match=told):
            cache.attend(bad)
    with pytest.raises(rocattn.NoBackendError, match="nope"):
        cache.attend(q, backend="nope")
    assert not cache.attend(q).any()


def test_blocks_return_to_the_pool():
    """A pool that one long sequence filled serves another one after it."""
    rng = np.random.default_rng(7)
    cache = PagedKVCache(2, HKV, D, num_blocks=5, block_size=4, head_dim_v=DV, dtype=np.float64)
    cache.append(*tokens(rng, 1, 18), sequence=0)
    assert cache.free_blocks == 0
    with pytest.raises(ConfigError, match="1 more blocks are needed and 0 are free"):
        cache.append(*tokens(rng, 1, 3), sequence=1)
    assert cache.lengths == [18, 0]
    cache.truncate(9, sequence=0)
    assert cache.free_blocks == 2
    k, v = tokens(rng, 1, 8)
    cache.append(k, v, sequence=1)
    assert not set(cache.tables[0]) & set(cache.tables[1])
    with pytest.raises(ConfigError, match="no sequence 2"):
        cache.truncate(0, sequence=2)
    cache.append(*tokens(rng, 1, 1), sequence=0)
    with pytest.raises(ConfigError, match="cannot truncate to 9 tokens: 8 are kept"):
        cache.truncate(9)
    assert cache.lengths == [10, 8]


def held(cache, index):
    """K and V of one sequence of a paged cache, token by token."""
    rows = [(cache.tables[index][at // cache.block_size], at % cache.block_size) for at in range(cache.lengths[index])]
    return [[array[row].tolist() for row in rows] for array in (cache.keys, cache.values)]


def test_a_fork_shares_blocks_until_one_side_appends():
    """Full blocks stay shared; the last one is copied for whoever writes to it while another holds it."""
    rng = np.random.default_rng(8)
    cache = PagedKVCache(1, HKV, D, num_blocks=6, block_size=4, head_dim_v=DV, dtype=np.float64)
    cache.append(*tokens(rng, 1, 10))
    assert [cache.fork(0), cache.fork(1)] == [1, 2]
    assert cache.free_blocks == 3
    before = held(cache, 0)
    cache.append(*tokens(rng, 1, 1), sequence=1)
    assert cache.free_blocks == 2
    assert [held(cache, index) for index in (0, 2)] == [before, before]
    assert [kept[:10] for kept in held(cache, 1)] == before
    cache.append(*tokens(rng, 3, 1))  # two more in the block of 0 and 2: one of them gets a copy
    assert cache.free_blocks == 1
    assert len({table[2] for table in cache.tables}) == 3
    assert len({tuple(table[:2]) for table in cache.tables}) == 1
    cache.fork(2)
    with pytest.raises(ConfigError, match="5 more blocks are needed and 1 are free"):
        cache.append(*tokens(rng, 4, 3))
    for index in range(4):
        cache.truncate(0, sequence=index)
    assert sorted(cache._free) == list(range(6))


@pytest.mark.parametrize("block_size", [1, 4])
def test_random_forks_and_orders_are_those_of_lists(block_size):
    """Against plain lists of tokens: nothing is lost, nobody sees another's tokens, blocks are counted right."""
    rng = np.random.default_rng(block_size)
    cache = PagedKVCache(2, HKV, D, num_blocks=40, block_size=block_size, head_dim_v=DV, dtype=np.float32)
    model = [[], []]
    for _ in range(300):
        what, index = rng.integers(4), int(rng.integers(len(model)))
        if what == 0 and len(model) < 6:
            model.append(list(model[index]))
            assert cache.fork(index) == len(model) - 1
        elif what == 1:
            order = rng.integers(len(model), size=rng.integers(1, 6))
            model = [list(model[source]) for source in order]
            cache.reorder(order if rng.random() < 0.5 else order.tolist())
        elif what == 2:
            length = int(rng.integers(len(model[index]) + 1))
            del model[index][length:]
            cache.truncate(length, sequence=index)
        elif len(model[index]) < 30 // len(model):
            k, v = tokens(rng, 1, int(rng.integers(0, 4)), np.float32)
            cache.append(k, v, sequence=index)
            model[index] += [(key.tolist(), value.tolist()) for key, value in zip(k[0], v[0], strict=True)]
        for at, kept in enumerate(model):
            assert list(zip(*held(cache, at), strict=True)) == kept
            assert cache.block_table[at, : len(cache.tables[at])].tolist() == cache.tables[at]
        used = {block for table in cache.tables for block in table}
        assert cache.free_blocks == 40 - len(used)
    q = queries(rng, len(model), 1, np.float32)
    out = cache.attend(q)
    for at in range(len(model)):
        keys, values = (
            np.array(x, np.float32).reshape(1, -1, HKV, w) for x, w in zip(held(cache, at), (D, DV), strict=True)
        )
        np.testing.assert_allclose(out[at], rocattn.attention(q[at : at + 1], keys, values)[0], atol=1e-5)


def test_orders_that_name_no_sequence_are_refused():
    """In one line, and nothing is moved."""
    cache = PagedKVCache(2, HKV, D, num_blocks=2)
    for call, words in (
        (lambda: cache.reorder([0, 2]), "no sequence 2"),
        (lambda: cache.reorder(1), "must be a list"),
        (lambda: cache.reorder([0.0]), "must be a whole number"),
        (lambda: cache.fork(-1), "must be a whole number"),
        (lambda: cache.fork(None), "must be a whole number"),
    ):
        with pytest.raises(ConfigError, match=words):
            call()
    assert len(cache.tables) == 2
    cache.reorder([])
    assert cache.tables == cache.lengths == []
