"""Sequences of different lengths: each is what it is alone, in packed rows and in pages, on every backend."""

import numpy as np
import pytest

import rocattn
from rocattn import AttentionConfig, ConfigError
from rocattn.backends import BACKENDS
from rocattn.backends.cpu import CpuBackend
from rocattn.config import VarlenShape

from ..attention.oracle import attend
from ..attention.problems import BACKENDS as NAMES
from ..attention.random_problems import DTYPES
from .problems import gradient_faults, problem, random_problem

LENGTHS = [(5, 70), (0, 9), (33, 33), (1, 200), (7, 0), (60, 17)]


@pytest.mark.parametrize("page_size", [0, 16, 24])
@pytest.mark.parametrize("backend", NAMES)
def test_each_sequence_is_what_the_contract_says(backend, page_size):
    """Against the oracle, which shares no code with the library: bottom right by each sequence's own lengths."""
    options = {"causal": True, "window": (40, -1), "sinks": True, "alibi": True}
    one = problem(LENGTHS, "float32", page_size=page_size, dim=20, dim_v=12, **options)
    out, lse = one.attend(backend)
    for index, x in enumerate(one.inputs):
        q, k, v = (array.swapaxes(1, 2) for array in (x.q, x.k, x.v))
        right, right_lse = attend(q, k, v, causal=True, window=(40, -1), alibi_slopes=x.alibi_slopes, sinks=x.sinks)
        rows = one.rows(index)
        np.testing.assert_allclose(out[rows], right[0].swapaxes(0, 1), rtol=0, atol=2e-5)
        np.testing.assert_allclose(lse[:, rows], right_lse[0], rtol=0, atol=2e-5)


@pytest.mark.usefixtures("cpu_flash")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_problems_keep_the_rule(first, dtype):
    """Any lengths, options, heads and page size; pages shuffled and shared; NaN in all rows that are nobody's."""
    for seed in range(first, first + 10):
        one = random_problem(seed, dtype)
        assert not (wrong := one.faults("cpu-flash", *one.attend("cpu-flash"))), f"seed {seed}: {wrong}"


@pytest.mark.usefixtures("cpu_flash")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page_size", [0, 16, 24, 64])
def test_bits_are_those_of_a_call_for_each_sequence(dtype, page_size, monkeypatch):
    """Prompts, chunks whose keys are split, and decode steps in one call, on any number of threads."""
    lengths = [(150, 150), (1, 1300), (40, 2200), (2, 90), (1, 17), (300, 300)]
    one = problem(lengths, dtype, page_size=page_size, dim=64, causal=True)
    for count in (1, 2, 7):
        monkeypatch.setenv("ROCATTN_NUM_THREADS", str(count))
        out, lse = one.attend("cpu-flash")
        for index, x in enumerate(one.inputs):
            right, right_lse = rocattn.attention(x.q, x.k, x.v, causal=True, return_lse=True, backend="cpu-flash")
            rows = one.rows(index)
            assert out[rows].tobytes() == right[0].tobytes(), f"{count} threads, sequence {index}"
            np.testing.assert_array_equal(lse[:, rows], right_lse[0])


@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize("unused", [0, 5])
def test_gradients_of_each_sequence(backend, unused):
    """Against float64; rows of k and v that belong to no sequence get 0."""
    one = problem(
        [(20, 33), (0, 5), (17, 17), (1, 40)], "float32", unused=unused, direction="backward", causal=True, sinks=True
    )
    assert not gradient_faults(one, backend)


def test_gradients_of_equal_lengths_are_one_call(monkeypatch):
    """Not one a sequence, wherever they stand among others; a batch of at most some rows."""
    lengths = [(3, 5), (0, 4), (7, 2), *[(3, 5)] * 6, (7, 0), (7, 2)]
    one = problem(lengths, "float32", unused=2, direction="backward", causal=True, sinks=True, alibi=True)
    batches, real = [], CpuBackend.backward
    monkeypatch.setattr("rocattn.backend._ROWS_AT_ONCE", 21)
    monkeypatch.setattr(
        CpuBackend, "backward", lambda self, config, *of: (batches.append(config.batch), real(self, config, *of))
    )
    assert not gradient_faults(one, "cpu")
    assert sorted(batches) == [1, 2, 3, 4]


@pytest.mark.usefixtures("cpu_flash")
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_have_the_bits_of_a_call_for_each_sequence(dtype, monkeypatch):
    """Of the output and of the LSE; long sequences, by all threads, beside short ones, one a thread."""
    lengths = [(150, 150), (1, 1300), (0, 40), (40, 0), (400, 900), *[(3, 5)] * 40, (1, 17)]
    one = problem(lengths, dtype, unused=3, direction="backward", causal=True, sinks=True)
    dout = np.ones_like(one.q)
    for count in (1, 2, 5):
        monkeypatch.setenv("ROCATTN_NUM_THREADS", str(count))
        out, lse = one.attend("cpu-flash")
        dlse = np.cos(np.arange(lse.size, dtype=np.float32)).reshape(lse.shape)
        found = rocattn.attention_varlen_backward(
            dout, one.q, one.k, one.v, out, lse, dlse=dlse, **one.where, **one.options, backend="cpu-flash"
        )
        starts = one.where["cu_seqlens_k"]
        for index, x in enumerate(one.inputs):
            rows, keys = one.rows(index), slice(starts[index], starts[index] + x.k.shape[1])
            logs, dlogs = (np.ascontiguousarray(array[None, :, rows]) for array in (lse, dlse))
            upstream = dout[None, rows], x.q, x.k, x.v, out[None, rows], logs, dlogs
            right = rocattn.attention_backward(*upstream, **one.options, backend="cpu-flash")
            for have, want in zip((found[0][rows], found[1][keys], found[2][keys]), right, strict=True):
                assert have.tobytes() == want[0].tobytes(), f"{count} threads, sequence {index}"


@pytest.mark.parametrize("backend", NAMES)
def test_the_lse_has_a_gradient_in_each_sequence(backend):
    """That of a call for each sequence."""
    one = problem([(5, 9), (0, 3), (4, 4)], "float32", direction="backward", causal=True)
    out, lse = one.attend(backend)
    given = np.zeros_like(out), one.q, one.k, one.v, out, lse
    dq, _, _ = rocattn.attention_varlen_backward(*given, dlse=np.ones_like(lse), **one.where, **one.options)
    for index, x in enumerate(one.inputs):
        rows = one.rows(index)
        logs = np.ascontiguousarray(lse[None, :, rows])
        upstream = np.zeros_like(out[None, rows]), x.q, x.k, x.v, out[None, rows], logs, np.ones_like(logs)
        right, _, _ = rocattn.attention_backward(*upstream, **one.options, backend="cpu")
        np.testing.assert_allclose(dq[rows], right[0], atol=1e-5)
    with pytest.raises(ConfigError, match=r"dlse has shape \(4, 8\): it must be \[H, total_q\]"):
        rocattn.attention_varlen_backward(*given, dlse=lse[:, 1:], **one.where, **one.options)


def test_other_backends_are_called_for_each_sequence():
    """What others have registered serves `attention_varlen` as it is, in float64 too."""
    one = problem(LENGTHS, "float64", page_size=16, causal=True)
    assert not one.faults("cpu", *one.attend("cpu"))
    with pytest.raises(rocattn.NoBackendError, match="float64"):
        one.attend("cpu-flash")


def test_slopes_may_differ_from_sequence_to_sequence():
    """[B, H] slopes: row b is sequence b's."""
    one = problem([(9, 30), (12, 12)], "float32", page_size=16)
    slopes = np.random.default_rng(3).uniform(0.05, 0.5, (2, 4)).astype(np.float32)
    for backend in NAMES:
        if not BACKENDS.get(backend).available():
            continue
        out = rocattn.attention_varlen(one.q, one.k, one.v, **one.where, alibi_slopes=slopes, backend=backend)
        for index, x in enumerate(one.inputs):
            right = rocattn.attention(x.q, x.k, x.v, alibi_slopes=slopes[index], backend=backend)
            np.testing.assert_allclose(out[one.rows(index)], right[0], rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("page_size", "changes", "words"),
    [
        (16, {"cu_seqlens_q": np.array([0, 5, 4, 105], np.int32)}, "falls from 5 to 4"),
        (16, {"cu_seqlens_q": np.array([0, 2**31 - 1, -2, 39], np.int32)}, "falls from 2147483647 to -2"),
        (16, {"cu_seqlens_q": np.array([0, 2**31 - 1, 2, 39])}, "falls from 2147483647 to 2"),
        (16, {"cu_seqlens_q": np.array([0, 2**62, 2, 39], np.uint64)}, "they must fit in int32"),
        (16, {"cu_seqlens_q": np.array([0, 5, 6, 38], np.int32)}, "ends with 38, but q has 39 rows"),
        (16, {"cu_seqlens_q": np.array([1, 5, 6, 39], np.int32)}, "must begin with 0"),
        (16, {"cu_seqlens_q": np.zeros(0, np.int32)}, "cu_seqlens_q is empty"),
        (16, {"cu_seqlens_q": np.array([0.0, 39.0])}, "dtype float64: int32 is needed"),
        (16, {"seqlens_k": np.array([70, 9], np.int32)}, r"shape \(2,\): it must be \[3\]"),
        (16, {"seqlens_k": np.array([70, -1, 33], np.int32)}, "has -1 at"),
        (16, {"seqlens_k": np.array([70, 9, 1000], np.int32)}, "has 1000 at .* pages in the table"),
        (16, {"block_table": np.full((3, 8), 99, np.int32)}, "has 99 at .* pages 0 to"),
        (16, {"cu_seqlens_k": np.array([0, 1, 2, 3], np.int32)}, "give both, and no cu_seqlens_k"),
        (16, {"seqlens_k": None}, "give both"),
        (16, {"block_table": None}, r"k has shape .*: \[total_k, Hkv, D\] is needed"),
        (16, {"max_seqlen_q": 4}, "max_seqlen_q is 4, but a sequence has 33"),
        (16, {"max_seqlen_k": "x"}, "max_seqlen_k is 'x'"),
        (16, {"causal": 3}, "causal is 3"),
        (16, {"sinks": np.zeros(3, np.float32)}, r"sinks has shape \(3,\)"),
        (16, {"alibi_slopes": np.zeros((2, 4), np.float32)}, r"alibi_slopes has shape \(2, 4\)"),
        # Packed: without starts nothing says where a sequence's keys are.
        (0, {"cu_seqlens_k": None}, "needs cu_seqlens_k"),
        (0, {"cu_seqlens_k": np.array([0, 112], np.int32)}, r"cu_seqlens_k has shape \(2,\): it must be \[4\]"),
        (0, {"seqlens_k": np.array([80, 9, 33], np.int32)}, r"has 80 at \[0\]: it must be from 0 to 70, the rows"),
    ],
)
def test_arrays_that_are_no_problem_are_refused(page_size, changes, words):
    """One line names the argument and where it is wrong."""
    one = problem([(5, 70), (1, 9), (33, 33)], "float32", page_size=page_size)
    with pytest.raises(ConfigError, match=words):
        rocattn.attention_varlen(one.q, one.k, one.v, **one.where | changes)


def test_no_sequences_at_all():
    """Nothing in, nothing out."""
    empty, starts = np.zeros((0, 2, 8), np.float32), np.zeros(1, np.int32)
    out, lse = rocattn.attention_varlen(empty, empty, empty, starts, starts, return_lse=True)
    assert out.shape == (0, 2, 8)
    assert lse.shape == (2, 0)


def test_work_is_counted_by_the_sequences_lengths():
    """FLOPs and bytes are sums over sequences; keys of other problems stay what they were; a config survives JSON."""
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "causal": True}
    lengths = ((5, 9), (0, 3), (4, 4))
    config = AttentionConfig(
        batch=3, seq_q=5, seq_k=9, **sizes, varlen=VarlenShape(total_q=9, total_k=16, lengths=lengths)
    )
    alone = [AttentionConfig(batch=1, seq_q=q, seq_k=k, **sizes) for q, k in lengths if q]
    for name in ("flops", "flops_conventional", "visible_pairs", "q_bytes", "kv_bytes", "out_bytes"):
        assert getattr(config, name) == sum(getattr(one, name) for one in alone), name
    assert AttentionConfig.from_dict(config.to_dict()) == config
    assert "varlen" not in alone[0].to_dict()
    assert config.label == "b3-h4x2-q5-k9-d8-varlen16.9-causal-float32"
    with pytest.raises(ConfigError, match="take no mask"):
        config.replace(layout="BHSD")
    with pytest.raises(ConfigError, match="2 lengths are given for 3 sequences"):
        config.replace(varlen=VarlenShape(total_q=9, total_k=13, lengths=lengths[:2]))
    with pytest.raises(ConfigError, match="not both"):
        VarlenShape(total_q=9, total_k=3, page_size=16)


@pytest.mark.usefixtures("cpu_flash")
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_workspace_is_what_the_kernels_allocate(direction, monkeypatch):
    """As planned from the lengths alone."""
    monkeypatch.setenv("ROCATTN_NUM_THREADS", "2")
    lengths = ((150, 150), (1, 1300), (40, 2200))
    one = problem(lengths, "float16", causal=True)
    backend = BACKENDS.get("cpu-flash")
    config = AttentionConfig(
        batch=3, num_heads=4, num_kv_heads=2, seq_q=150, seq_k=2200, head_dim=64, causal=True, dtype="float16",
        varlen=VarlenShape(total_q=191, total_k=3650, lengths=lengths), direction=direction,
    )  # fmt: skip
    out, lse = one.attend("cpu-flash")
    backend.most_allocated_bytes(reset=True)
    if direction == "forward":
        one.attend("cpu-flash")
    else:
        rocattn.attention_varlen_backward(
            out, one.q, one.k, one.v, out, lse, **one.where, **one.options, backend="cpu-flash"
        )
    assert backend.most_allocated_bytes() == backend.workspace_bytes(config)
