"""rocattn.torch beside PyTorch's math in float64: shapes, masks, gradients, torch.compile, autocast, refusals."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

from torch.nn import functional  # noqa: E402 - here and below: only where torch is there
from torch.nn.attention.bias import causal_lower_right, causal_upper_left  # noqa: E402

import rocattn.torch  # noqa: E402
from rocattn import BACKENDS  # noqa: E402
from rocattn.errors import ConfigError  # noqa: E402
from rocattn.threads import thread_count  # noqa: E402
from rocattn.torch import scaled_dot_product_attention  # noqa: E402

from .problems import SHAPES, as_pytorch, normal, visible  # noqa: E402

OPERATORS = torch.ops.rocattn
TOLERANCES = {torch.float64: 1e-6, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCES, ids=lambda dtype: str(dtype).removeprefix("torch."))


def check(function, expected, tensors, tolerance):
    """Compare output and gradients of two functions of the same tensors."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    out, wanted = function(*leaves), expected(*leaves)
    assert (out.shape, out.dtype) == (wanted.shape, tensors[0].dtype)
    upstream = normal(*out.shape, dtype=out.dtype)
    gradients = torch.autograd.grad(out, leaves, upstream)
    exact = torch.autograd.grad(wanted, leaves, upstream.double())
    for have, want in zip((out, *gradients), (wanted, *exact), strict=True):
        torch.testing.assert_close(have.double(), want.double(), atol=tolerance, rtol=tolerance)


@DTYPES
@pytest.mark.parametrize("name", SHAPES)
def test_output_and_gradients_are_pytorchs(name, dtype):
    """Every shape that PyTorch takes, with masks that hide whole rows, in every dtype."""
    *shapes, mask, options = SHAPES[name]
    mask = mask.to(dtype) if mask is not None and mask.is_floating_point() else mask
    check(
        lambda *tensors: scaled_dot_product_attention(*tensors, mask, **options),
        lambda *tensors: as_pytorch(*tensors, mask, **options),
        [normal(*shape, dtype=dtype) for shape in shapes],
        TOLERANCES[dtype],
    )


@pytest.mark.parametrize("kind", ["transposed", "packed", "expanded", "strided"])
def test_any_strides_are_taken(kind):
    """Views of a projection, expanded and strided tensors; the gradient of a sum, which is expanded, too."""
    packed = normal(2, 6, 3, 4, 16)
    views = {
        "transposed": packed[:, :, 0].transpose(1, 2),
        "packed": packed.permute(2, 0, 3, 1, 4)[1],
        "expanded": normal(1, 1, 6, 16).expand(2, 4, 6, 16),
        "strided": normal(2, 4, 6, 32)[..., ::2],
    }
    leaves = [views[kind].detach().requires_grad_() for _ in range(3)]
    gradients = torch.autograd.grad(scaled_dot_product_attention(*leaves).sum(), leaves)
    exact = torch.autograd.grad(as_pytorch(*leaves).sum(), leaves)
    for have, want in zip(gradients, exact, strict=True):
        torch.testing.assert_close(have, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_memory_is_used_in_place(dtype, monkeypatch, cpu_flash):
    """The backend reads the tensors' own memory and writes that of the output, which is ordered as the query is."""
    seen = []
    forward = type(cpu_flash).forward

    def spy(self, config, operands, out, lse):
        seen.extend(array.__array_interface__["data"][0] for array in (*operands[:3], out, lse))
        seen.append(thread_count())
        forward(self, config, operands, out, lse)

    monkeypatch.setattr(type(cpu_flash), "forward", spy)
    monkeypatch.delenv("ROCATTN_NUM_THREADS", raising=False)
    query, key, value = (normal(2, 5, 4, 16, dtype=dtype).transpose(1, 2) for _ in range(3))
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            out, lse = OPERATORS.attention(query, key, value)
            assert seen == [*(tensor.data_ptr() for tensor in (query, key, value, out, lse)), threads]
            assert out.transpose(1, 2).is_contiguous()
            seen.clear()
    finally:
        torch.set_num_threads(before)


OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "window and scale": {"window": [3, -1], "scale": 0.3},
    "softcap": {"softcap": 2.0},
    "mask": {"mask": visible(5, 7)},
    "slopes and sinks": {"alibi_slopes": normal(4).abs(), "sinks": normal(4), "causal": True},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("order", ["BHSD", "BSHD"])
def test_operators_pass_opcheck(name, order):
    """Schema, autograd, fake tensors and AOTAutograd with dynamic shapes, in both orders of memory."""
    shapes = (2, 4, 5, 16), (2, 2, 7, 16), (2, 2, 7, 8)
    if order == "BSHD":
        tensors = [normal(b, s, h, d).transpose(1, 2) for b, h, s, d in shapes]
    else:
        tensors = [normal(*shape) for shape in shapes]
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    tests = ["test_schema", "test_autograd_registration", "test_faketensor"]
    traced = ["test_aot_dispatch_dynamic"] if name in {"plain", "mask"} else []  # seconds each
    torch.library.opcheck(OPERATORS.attention.default, leaves, OPTIONS[name], test_utils=tests + traced)
    out, lse = OPERATORS.attention(*tensors, **OPTIONS[name])
    arguments = out, *tensors, out, lse
    torch.library.opcheck(OPERATORS.attention_backward.default, arguments, OPTIONS[name], test_utils=tests + traced)


@pytest.mark.parametrize("name", OPTIONS)
def test_operators_compute_what_the_functions_do(name):
    """All options of `rocattn.attention`, with its gradients: on the same memory, so to the bit."""
    tensors = [normal(2, 4, 5, 16), normal(2, 2, 7, 16), normal(2, 2, 7, 8)]
    options = {key: value.numpy() if isinstance(value, torch.Tensor) else value for key, value in OPTIONS[name].items()}
    arrays = [tensor.numpy() for tensor in tensors]
    expected, logs = rocattn.attention(*arrays, layout="BHSD", return_lse=True, **options)
    wanted = rocattn.attention_backward(expected, *arrays, expected, logs, layout="BHSD", **options)
    leaves = [tensor.requires_grad_() for tensor in tensors]
    out, lse = OPERATORS.attention(*leaves, **OPTIONS[name])
    gradients = torch.autograd.grad(out, leaves, out.detach(), retain_graph=True)
    for have, want in zip((out, lse, *gradients), (expected, logs, *wanted), strict=True):
        np.testing.assert_array_equal(have.detach().numpy(), want)


def test_a_loss_on_the_lse_is_differentiated():
    """Alone and beside one on the output, as PyTorch's own logsumexp is; also compiled."""
    leaves = [normal(2, 4, size, 16).double().requires_grad_() for size in (5, 7, 7)]
    query, key, value = leaves
    scores = query @ key.transpose(-1, -2) / 4
    right = torch.softmax(scores, -1) @ value, torch.logsumexp(scores, -1)

    def loss(out, lse):
        return (out * out).sum() + (lse * lse).sum()

    mine = OPERATORS.attention(*leaves)
    for of in (loss, lambda _out, lse: (lse * lse).sum()):
        wanted = torch.autograd.grad(of(*right), leaves, retain_graph=True, allow_unused=True)
        have = torch.autograd.grad(of(*mine), leaves, retain_graph=True)
        for one, other in zip(have, wanted, strict=True):  # the LSE is float32
            torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other, rtol=1e-5, atol=1e-5)
    torch.compiler.reset()
    compiled = torch.compile(lambda *tensors: loss(*OPERATORS.attention(*tensors)), fullgraph=True, backend="aot_eager")
    wanted = torch.autograd.grad(loss(*right), leaves)
    for one, other in zip(torch.autograd.grad(compiled(*leaves), leaves), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_equal_calls_give_equal_bits():
    """Forward and backward, whatever the threads did in between."""
    leaves = [normal(2, 4, 200, 32).requires_grad_() for _ in range(3)]
    runs = []
    for _ in range(3):
        out = scaled_dot_product_attention(*leaves, is_causal=True)
        runs.append([out, *torch.autograd.grad(out, leaves, out.detach())])
    assert all(torch.equal(first, other) for run in runs[1:] for first, other in zip(runs[0], run, strict=True))


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is :DeprecationWarning")  # PyTorch 2.11's own
def test_compiled_without_graph_breaks_in_any_size():
    """Dynamic shapes: one graph for fewer, as many and more keys than queries."""
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph

    def layer(query, key, value, mask):
        return scaled_dot_product_attention(query * 2, key, value, mask) + scaled_dot_product_attention(
            query, key, value, is_causal=True
        )

    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=count)
    traced = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows, keys in ((5, 7), (6, 9), (9, 4), (12, 5), (8, 8), (7, 11)):
        tensors = [normal(2, size, 3, 16).transpose(1, 2) for size in (rows, keys, keys)]
        torch.testing.assert_close(compiled(*tensors, visible(rows, keys)), layer(*tensors, visible(rows, keys)))
    mask = visible(rows, keys)
    check(lambda *leaves: traced(*leaves, mask), lambda *leaves: layer(*leaves, mask).double(), tensors, 1e-5)
    assert len(graphs) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_casts_as_for_pytorchs_function(dtype):
    """float32 and mixed inputs become autocast's dtype, float64 stays; gradients have the inputs' dtype."""
    query, key, value = (normal(2, 3, 5, 16) for _ in range(3))
    calls = [
        (query, key, value),
        (query, key.bfloat16(), value.half(), normal(5, 5)),
        (query.double(), key.double(), value.double()),
        (query, key, value, causal_upper_left(5, 5)),
    ]
    with torch.autocast("cpu", dtype=dtype):
        for call in calls:
            have, want = scaled_dot_product_attention(*call), functional.scaled_dot_product_attention(*call)
            assert have.dtype == want.dtype
            torch.testing.assert_close(have, want, atol=2e-2, rtol=2e-2)
        leaf = query.clone().requires_grad_()
        scaled_dot_product_attention(leaf, key, value).sum().backward()
    assert leaf.grad.dtype == torch.float32


@pytest.mark.filterwarnings("ignore:Lower right causal bias will produce NaNs:UserWarning")  # PyTorch's: not here
@pytest.mark.parametrize(("rows", "keys"), [(5, 9), (7, 7), (9, 5)])
@pytest.mark.parametrize("bias", [causal_upper_left, causal_lower_right])
def test_causal_biases_are_taken_without_a_mask(bias, rows, keys):
    """PyTorch's masks by name, of which one is aligned as ours; rows that see nothing are 0."""
    tensors = [normal(2, 3, size, 16) for size in (rows, keys, keys)]
    offset = keys - rows if bias is causal_lower_right else 0
    mask = torch.ones(rows, keys, dtype=torch.bool).tril(offset)
    check(
        lambda *leaves: scaled_dot_product_attention(*leaves, bias(rows, keys)),
        lambda *leaves: as_pytorch(*leaves, mask),
        tensors,
        1e-5,
    )


def test_second_derivatives_are_refused():
    """The gradients of the gradients would otherwise be missing."""
    query = normal(1, 2, 4, 8).requires_grad_()
    out = scaled_dot_product_attention(query, query, query)
    (gradient,) = torch.autograd.grad(out.sum(), query, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        gradient.sum().backward()


@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.float8_e4m3fnuz], ids=str)
@pytest.mark.parametrize("order", ["BHSD", "BSHD"])
def test_tensors_of_8_bits_are_taken(stored, order):
    """PyTorch's two types are ml_dtypes' in the same memory; scales are tensors; the query alone has no gradient."""
    query, key, value = normal(2, 4, 5, 16).half(), normal(2, 2, 7, 16).to(stored), normal(2, 2, 7, 16).to(stored)
    if order == "BSHD":
        query, key, value = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (query, key, value))
    scales = {"k_scale": torch.tensor(0.5), "v_scale": torch.tensor([0.5, 2.0])}
    out, lse = OPERATORS.attention(query, key, value, **scales, causal=True)
    meant = key.double() * 0.5, value.double() * scales["v_scale"][None, :, None, None]
    right, right_lse = OPERATORS.attention(query.double(), *meant, causal=True)
    torch.testing.assert_close(out.double(), right, rtol=0, atol=4e-3)
    torch.testing.assert_close(lse, right_lse)
    torch.library.opcheck(  # its other tests multiply what they are given, which PyTorch cannot in 8 bits
        OPERATORS.attention.default, (query, key, value), scales, test_utils=["test_faketensor"]
    )
    small = query.to(stored)
    scales["q_scale"] = torch.tensor([0.5, 1.0])
    right, _ = OPERATORS.attention(small.double() * scales["q_scale"].repeat_interleave(2)[:, None, None], *meant)
    for dtype, options in ((torch.bfloat16, {}), (torch.float16, {"out_dtype": torch.float16})):
        out, _ = OPERATORS.attention(small, key, value, **scales, **options)
        assert out.dtype == dtype
        assert out.stride() == query.stride()
        torch.testing.assert_close(out.double(), right, rtol=0, atol=4 * torch.finfo(dtype).eps)
        torch.library.opcheck(
            OPERATORS.attention.default, (small, key, value), scales | options, test_utils=["test_faketensor"]
        )
    out, _ = OPERATORS.attention(query.requires_grad_(), key, value)
    with pytest.raises(ConfigError, match="no gradients of float8_e4m3fn"):
        out.sum().backward()


def refusals():
    """Calls that must end with one line, and words of it."""
    q = normal(2, 3, 5, 16)
    attend = scaled_dot_product_attention
    learnt = normal(5, 5).requires_grad_()
    return {
        "dropout_p is 1.5": lambda: attend(q, q, q, dropout_p=1.5),
        "is_causal is 1": lambda: attend(q, q, q, is_causal=1),
        "attn_mask is a str": lambda: attend(q, q, q, "causal"),
        "scale is of type str": lambda: attend(q, q, q, scale="1"),
        "Explicit attn_mask should not be set when is_causal=True": lambda: attend(q, q, q, learnt, is_causal=True),
        "CausalBias should not be": lambda: attend(q, q, q, causal_upper_left(5, 5), is_causal=True),
        r"CausalBias of .* \[4, 5\], .* \[5, 5\]": lambda: attend(q, q, q, causal_upper_left(4, 5)),
        "mask requires a gradient": lambda: attend(q, q, q, learnt),
        "sinks requires a gradient": lambda: OPERATORS.attention(q, q, q, sinks=normal(3).requires_grad_()),
        "key is a nested tensor": lambda: attend(q, torch.nested.nested_tensor([q[0], q[1]]), q),
        "value is a ndarray": lambda: attend(q, q, q.numpy()),
        "has dtype float64, but float32": lambda: attend(q, q.double(), q),
        "int32: use one of": lambda: attend(q.int(), q.int(), q.int()),
        "each needs 2 dimensions": lambda: attend(q[0, 0, 0], q, q),
        "batches do not broadcast": lambda: attend(q, q.expand(2, 2, 3, 5, 16), q.expand(3, 2, 3, 5, 16)),
        "pass enable_gqa=True": lambda: attend(normal(2, 6, 5, 16), q, q),
        "cannot share 3 KV heads": lambda: attend(normal(2, 4, 5, 16), q, q, enable_gqa=True),
        "attn_mask has 5 dimensions": lambda: attend(q, q, q, visible(1, 1, 1, 5, 5)),
        "does not broadcast to": lambda: attend(q, q, q, visible(4, 5)),
        "several devices: cpu, meta": lambda: attend(q, q.to("meta"), q),
    }


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("words", refusals())
def test_bad_calls_end_with_one_line(words):
    """What is not computed is refused, never ignored."""
    with pytest.raises(ConfigError, match=words) as caught:
        refusals()[words]()
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what torch.func itself uses
def test_forward_mode_derivatives_are_refused():
    """torch.library would take them for 0."""
    query = normal(1, 2, 4, 8)
    with pytest.raises(NotImplementedError, match="query has a tangent"):
        torch.func.jvp(lambda q: scaled_dot_product_attention(q, query, query), (query,), (query,))


def test_the_default_backend_computes_it():
    """The registry chooses as it does for arrays."""
    tensors = [normal(1, 2, 5, 16) for _ in range(3)]
    BACKENDS.set_default("cpu")
    try:
        out = scaled_dot_product_attention(*tensors)
    finally:
        BACKENDS.set_default(None)
    expected = rocattn.attention(*(tensor.numpy() for tensor in tensors), layout="BHSD", backend="cpu")
    np.testing.assert_array_equal(out.numpy(), expected)


class Block(torch.nn.Module):
    """A block of a GPT, whose attention is given."""

    def __init__(self, attend):
        super().__init__()
        self.attend = attend
        self.project = torch.nn.Linear(32, 96)
        self.join = torch.nn.Linear(32, 32)
        self.widen, self.narrow = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

    def forward(self, x):
        """Return [B, S, 32] of the same."""
        batch, tokens, _ = x.shape
        query, key, value = self.project(x).view(batch, tokens, 3, 4, 8).permute(2, 0, 3, 1, 4)
        out = self.attend(query, key, value, is_causal=True)
        x = x + self.join(out.transpose(1, 2).reshape(batch, tokens, 32))
        return x + self.narrow(functional.gelu(self.widen(x)))


def losses(model, steps=6):
    """The losses of a few steps of Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, target = normal(4, 10, 32), normal(4, 10, 32).flip(1)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is :DeprecationWarning")  # PyTorch 2.11's own
@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_a_model_learns_as_with_pytorchs_function(backend):
    """The loss falls, in every step to PyTorch's value."""
    torch.manual_seed(0)
    theirs = torch.nn.Sequential(*(Block(functional.scaled_dot_product_attention) for _ in range(2)))
    ours = copy.deepcopy(theirs)
    for block in ours:
        block.attend = scaled_dot_product_attention
    expected = losses(theirs)
    assert expected[-1] < 0.9 * expected[0]
    torch.compiler.reset()
    ours = ours if backend is None else torch.compile(ours, fullgraph=True, backend=backend)
    np.testing.assert_allclose(losses(ours), expected, rtol=1e-5)
