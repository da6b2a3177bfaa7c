"""Packed and paged sequences in PyTorch: float64, gradients, torch.compile, and the calls of flash-attention."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

from rocattn.errors import ConfigError  # noqa: E402 - here and below: only where torch is there
from rocattn.torch import attention_varlen, flash_attn_varlen_func, flash_attn_with_kvcache  # noqa: E402

from .problems import normal  # noqa: E402

OPERATORS = torch.ops.rocattn
LENGTHS = [(5, 7), (0, 3), (9, 9), (1, 20), (4, 0)]


def starts(counts):
    """Cumulative lengths."""
    return torch.tensor([0, *counts]).cumsum(0).int()


def alone(q, k, v, *, causal=True, window=(-1, -1), softcap=0.0, slopes=None):
    """One sequence [S, H, D] in float64: out, and the LSE [H, Sq], as the contract has them."""
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(len(q) // len(x), 0) for x in (k, v))
    scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    from_diagonal = torch.arange(k.shape[1]) - torch.arange(q.shape[1])[:, None] - k.shape[1] + q.shape[1]
    if slopes is not None:
        scores = scores - slopes[:, None, None] * from_diagonal.abs()
    left, right = window[0], 0 if causal else window[1]
    hidden = (from_diagonal > right) & (right >= 0) | (from_diagonal < -left) & (left >= 0)
    scores = scores.masked_fill(hidden, -torch.inf)
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0)[..., None])
    return (weights @ v).transpose(0, 1), lse


def together(q, k, v, lengths, **options):
    """`alone` of each sequence of packed rows."""
    found, at_q, at_k = [], 0, 0
    for rows, keys in lengths:
        found.append(alone(q[at_q : at_q + rows], k[at_k : at_k + keys], v[at_k : at_k + keys], **options))
        at_q, at_k = at_q + rows, at_k + keys
    return torch.cat([out for out, _ in found]), torch.cat([lse for _, lse in found], 1)


def packed(lengths=LENGTHS, dtype=torch.float32):
    """Query, key and value of all sequences, grouped heads, and where they are."""
    rows, keys = (sum(counts) for counts in zip(*lengths, strict=True))
    tensors = normal(rows, 4, 16, dtype=dtype), normal(keys, 2, 16, dtype=dtype), normal(keys, 2, 8, dtype=dtype)
    return tensors, [starts(counts) for counts in zip(*lengths, strict=True)]


def paged(k, v, lengths, size=4):
    """Packed k and v in shuffled pages, and the block table."""
    counts = [-(-keys // size) for _, keys in lengths]
    order = torch.randperm(sum(counts) + 2, generator=torch.Generator().manual_seed(0)).int()
    pools = [x.new_full((len(order), size, *x.shape[1:]), torch.nan) for x in (k, v)]
    table, taken, at = torch.full((len(lengths), max(counts)), -1, dtype=torch.int32), 0, 0
    for index, ((_, keys), count) in enumerate(zip(lengths, counts, strict=True)):
        table[index, :count] = order[taken : taken + count]
        for key in range(keys):
            for pool, x in zip(pools, (k, v), strict=True):
                pool[table[index, key // size], key % size] = x[at + key]
        taken, at = taken + count, at + keys
    return *pools, table


OPTIONS = {
    "plain": ({"causal": False}, {"causal": False}),
    "causal": ({"causal": True}, {}),
    "window": ({"causal": True, "window": (3, -1)}, {"window": (3, -1)}),
    "softcap and slopes": ({"causal": True, "softcap": 2.0, "alibi_slopes": normal(4).abs()}, {"softcap": 2.0}),
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_each_sequence_and_its_gradients(name, dtype):
    """Packed, through the output and the LSE."""
    ours, theirs = OPTIONS[name]
    tensors, where = packed(dtype=dtype)
    leaves = [tensor.requires_grad_() for tensor in tensors]
    have = attention_varlen(*leaves, *where, **ours, return_lse=True)
    want = together(*leaves, LENGTHS, **theirs, slopes=ours.get("alibi_slopes"))
    tolerance = 1e-5 if dtype == torch.float32 else 4e-2
    upstream = [torch.cos(torch.arange(x.numel())).reshape(x.shape).to(x.dtype) for x in have]
    seen = want[1].detach() > -torch.inf
    gradients = torch.autograd.grad(have, leaves, upstream)
    loss = (want[0] * upstream[0]).sum() + (want[1] * upstream[1])[seen].sum()
    exact = torch.autograd.grad(loss, leaves)
    for one, other in zip((*have, *gradients), (*want, *exact), strict=True):
        torch.testing.assert_close(
            one.double(), other.double().nan_to_num(neginf=-torch.inf), atol=tolerance, rtol=tolerance
        )


def test_pages_and_their_gradients():
    """The same keys in pages give the same output; their gradient is refused, not dropped."""
    (q, k, v), where = packed()
    want, want_lse = together(q, k, v, LENGTHS)
    k_pages, v_pages, table = paged(k, v, LENGTHS)
    seqlens = torch.tensor([keys for _, keys in LENGTHS])  # int64, as PyTorch counts
    leaf = q.requires_grad_()
    given = leaf, k_pages, v_pages, where[0]
    out, lse = attention_varlen(*given, seqlens_k=seqlens, block_table=table, causal=True, return_lse=True)
    torch.testing.assert_close(out.double(), want, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse.double(), want_lse, atol=1e-5, rtol=1e-5)
    with pytest.raises(ConfigError, match="keys and values in pages have no gradients"):
        out.sum().backward()


@pytest.mark.parametrize("pages", [False, True])
def test_operators_pass_opcheck(pages):
    """Schema, autograd and fake tensors."""
    (q, k, v), (starts_q, starts_k) = packed()
    tests = ["test_schema", "test_autograd_registration", "test_faketensor"]
    if pages:
        k, v, table = paged(k, v, LENGTHS)
        given = q, k, v, starts_q, None, torch.tensor([keys for _, keys in LENGTHS], dtype=torch.int32), table
    else:
        given = *(x.requires_grad_() for x in (q, k, v)), starts_q, starts_k
    torch.library.opcheck(OPERATORS.attention_varlen.default, given, {"causal": True}, test_utils=tests)
    if not pages:
        out, lse = OPERATORS.attention_varlen(*given, causal=True)
        arguments = [x.detach() for x in (out, q, k, v, out, lse, starts_q, starts_k)]
        torch.library.opcheck(
            OPERATORS.attention_varlen_backward.default, arguments, {"causal": True}, test_utils=tests
        )


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is :DeprecationWarning")  # PyTorch 2.11's own
def test_one_graph_serves_all_lengths():
    """Compiled with dynamic shapes: forward and gradients, packed; the lengths themselves are data."""
    graphs = []

    def count(graph, _inputs):
        graphs.append(graph)
        return graph

    def attend(q, k, v, *where):
        return attention_varlen(q, k, v, *where, causal=True)

    torch.compiler.reset()
    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend=count)
    traced = torch.compile(attend, fullgraph=True, dynamic=True, backend="aot_eager")
    for lengths in (LENGTHS, [(3, 4), (8, 8)], [(2, 30), (1, 1), (6, 6), (7, 7)]):
        tensors, where = packed(lengths)
        want, _ = together(*tensors, lengths)
        torch.testing.assert_close(compiled(*tensors, *where).double(), want, atol=1e-5, rtol=1e-5)
    assert len(graphs) == 1
    leaves = [tensor.requires_grad_() for tensor in tensors]
    gradients = torch.autograd.grad(traced(*leaves, *where).sum(), leaves)
    exact = torch.autograd.grad(together(*leaves, lengths)[0].sum(), leaves)
    for have, want in zip(gradients, exact, strict=True):
        torch.testing.assert_close(have, want, atol=1e-5, rtol=1e-5)


def test_flash_attentions_packed_call():
    """Its names and defaults, packed and in pages, with the LSE."""
    (q, k, v), (starts_q, starts_k) = packed()
    slopes = normal(4).abs()
    options = {"causal": True, "window_size": (3, -1), "softcap": 2.0, "alibi_slopes": slopes}
    want, lse = together(q, k, v, LENGTHS, window=(3, -1), softcap=2.0, slopes=slopes)
    have = flash_attn_varlen_func(q, k, v, starts_q, starts_k, 9, 20, **options, return_attn_probs=True)
    k_pages, v_pages, table = paged(k, v, LENGTHS)
    in_pages = flash_attn_varlen_func(q, k_pages, v_pages, starts_q, starts_k, 9, 20, **options, block_table=table)
    for one, other in ((have[0], want), (have[1], lse), (in_pages, want)):
        torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-5)
    plain = flash_attn_varlen_func(q, k, v, starts_q, starts_k, 9, 20, softmax_scale=0.25)
    torch.testing.assert_close(plain.double(), together(q, k, v, LENGTHS, causal=False)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["entries", "chosen entries", "pages"])
@pytest.mark.parametrize("new", [0, 1, 3])
def test_flash_attentions_call_with_a_cache(kind, new):
    """New tokens are written behind those there are; entries beside them stay; float64 of each sequence."""
    lengths, size = [3, 0, 9], 4
    q, k, v = normal(3, 2, 4, 16), normal(3, new, 2, 16), normal(3, new, 2, 8)
    olds = [[normal(n + index, 2, width)[:n] for index, n in enumerate(lengths)] for width in (16, 8)]
    chosen = {"entries": [0, 1, 2], "chosen entries": [4, 0, 2]}.get(kind)
    if chosen:
        caches = [torch.full((5, 12, 2, width), torch.nan) for width in (16, 8)]
        table = torch.tensor(chosen)[:, None]
        places = {"cache_batch_idx": torch.tensor(chosen, dtype=torch.int32)} if kind != "entries" else {}
        if kind == "entries":
            caches = [cache[:3] for cache in caches]
    else:
        caches = [torch.full((11, size, 2, width), torch.nan) for width in (16, 8)]
        table = torch.tensor([[7, 3, 9], [0, 1, 2], [8, 4, 6]], dtype=torch.int32)
        places = {"block_table": table}
    length = caches[0].shape[1]
    for cache, old in zip(caches, olds, strict=True):
        for index, tokens in enumerate(old):
            for at, token in enumerate(tokens):
                cache[table[index, at // length].item(), at % length] = token
    seqlens = torch.tensor(lengths, dtype=torch.int32)
    fresh = {"k": k, "v": v} if new else {}
    out, lse = flash_attn_with_kvcache(
        q, *caches, **fresh, cache_seqlens=seqlens, causal=True, **places, return_softmax_lse=True
    )
    assert seqlens.tolist() == lengths
    for index in range(3):
        keys, values = (torch.cat([old[index], x[index]]) for old, x in zip(olds, (k, v), strict=True))
        want, want_lse = alone(q[index], keys, values)
        torch.testing.assert_close(out[index].double(), want, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(lse[index].double(), want_lse, atol=1e-5, rtol=1e-5)
        kept = [caches[0][table[index, at // length].item(), at % length] for at in range(len(keys))]
        assert torch.equal(torch.stack(kept) if kept else keys, keys)


def refusals():
    """Calls that must end with one line, and words of it."""
    (q, k, v), where = packed()
    cache = normal(3, 8, 2, 16)
    step = normal(3, 1, 4, 16)
    one = normal(3, 1, 2, 16)
    full = torch.tensor([8, 1, 2], dtype=torch.int32)
    return {
        "cu_seqlens_q must be a numpy array": lambda: attention_varlen(q, k, v, None, where[1]),
        "max_seqlen_q is of type float": lambda: attention_varlen(q, k, v, *where, max_seqlen_q=9.5),
        "dropout_p is 0.1": lambda: flash_attn_varlen_func(q, k, v, *where, 9, 20, dropout_p=0.1),
        "max_seqlen_q is 3, but": lambda: flash_attn_varlen_func(q, k, v, *where, 3, 20),
        "cu_seqlens_q falls": lambda: attention_varlen(q, k, v, where[0].flip(0) - 19, where[1]),
        "cu_seqlens_q has dtype float32": lambda: attention_varlen(q, k, v, where[0].float(), where[1]),
        "needs cu_seqlens_k": lambda: attention_varlen(q, k, v, where[0]),
        "sinks requires a gradient": lambda: attention_varlen(q, k, v, *where, sinks=normal(4).requires_grad_()),
        "rotary_cos, rotary_sin": lambda: flash_attn_with_kvcache(step, cache, cache, rotary_cos=step),
        "give both or neither": lambda: flash_attn_with_kvcache(step, cache, cache, k=one),
        "block_table says where": lambda: flash_attn_with_kvcache(
            step, cache, cache, block_table=full[:, None], cache_batch_idx=full
        ),
        "8 tokens and 1 new ones do not fit into a cache of 8": lambda: flash_attn_with_kvcache(
            step, cache, cache, k=one, v=one, cache_seqlens=full
        ),
        "1 and 4 dimensions": lambda: flash_attn_with_kvcache(full, cache, cache),
        "seqlens_k has 9 at": lambda: flash_attn_with_kvcache(step, cache, cache, cache_seqlens=9),
    }


@pytest.mark.parametrize("words", refusals())
def test_bad_calls_end_with_one_line(words):
    """What is not computed is refused, never ignored."""
    with pytest.raises(ConfigError, match=words) as caught:
        refusals()[words]()
    assert "\n" not in str(caught.value)


def test_fake_tensors_refuse_what_real_ones_do():
    """Of shapes and dtypes; what the index arrays hold is known to the real ones alone."""
    (q, k, v), where = packed()
    for given in ((q, k, v[:-1], *where), (q.half(), k, v, *where), (q, k[..., :8], v, *where), (q[0], k, v, *where)):
        lines = []
        for how in (lambda tensor: tensor, lambda tensor: tensor.to("meta")):
            with pytest.raises(ConfigError) as caught:
                OPERATORS.attention_varlen(*map(how, given))
            lines.append(str(caught.value))
        assert lines[0] == lines[1]
