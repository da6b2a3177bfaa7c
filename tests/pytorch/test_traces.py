"""rocattn.torch in programs that PyTorch records: compile, export, jit.trace, fx; and what fake tensors refuse."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

from rocattn.errors import ConfigError  # noqa: E402 - here and below: only where torch is there
from rocattn.torch import scaled_dot_product_attention  # noqa: E402

from .problems import SHAPES, as_pytorch, normal, visible  # noqa: E402

OPERATORS = torch.ops.rocattn


def longer(tensor, axis):
    """A tensor whose lengths are those of another call; what is broadcast, or missing, stays so."""
    size = 0 if tensor.dim() < -axis else tensor.shape[axis]
    return tensor if size < 2 else tensor.index_select(axis, torch.arange(size + 3) % size)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is :DeprecationWarning")  # PyTorch 2.11's own
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_compiles_once_for_all_lengths(name):
    """Any rank, batches and heads that broadcast, masks: one graph without a break, and it serves other lengths."""
    *shapes, mask, options = SHAPES[name]
    graphs = []

    def count(graph, _inputs):
        graphs.append(graph)
        return graph

    torch.compiler.reset()
    compiled = torch.compile(scaled_dot_product_attention, fullgraph=True, dynamic=True, backend=count)
    tensors = [normal(*shape) for shape in shapes]
    for _ in range(2):
        right = as_pytorch(*tensors, mask, **options).float()
        torch.testing.assert_close(compiled(*tensors, mask, **options), right, atol=1e-5, rtol=1e-5)
        tensors = [longer(tensor, -2) for tensor in tensors]
        mask = mask if mask is None else longer(longer(mask, -1), -2)
    assert len(graphs) == 1


class Attend(torch.nn.Module):
    """Attention as a module."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, query, key, value, mask=None):
        """Return attention of the options."""
        return scaled_dot_product_attention(query, key, value, mask, **self.options)


PROGRAMS = {  # shapes, which of their axes are L and S, mask, options
    "causal": (((2, 3, 5, 16), (2, 3, 7, 16)), 2, None, {"is_causal": True}),
    "grouped": (((2, 6, 5, 16), (2, 2, 7, 16)), 2, None, {"is_causal": True, "enable_gqa": True}),
    "three dimensions": (((3, 5, 16), (3, 7, 16)), 1, None, {"is_causal": True}),
    "two dimensions": (((5, 16), (7, 16)), 0, None, {}),
    "broadcast batch": (((2, 3, 5, 16), (1, 3, 7, 16)), 2, None, {}),
    "mask": (((2, 3, 5, 16), (2, 3, 7, 16)), 2, visible(5, 7), {}),
}


def given(name, rows, keys):
    """The tensors of a program at two lengths."""
    (query, key), axis, mask, _ = PROGRAMS[name]
    query, key = ((*shape[:axis], size, *shape[axis + 1 :]) for shape, size in ((query, rows), (key, keys)))
    masks = [] if mask is None else [visible(rows, keys)]
    return (normal(*query), normal(*key), normal(*key) / 2, *masks)


def check_program(program, name):
    """Call a recorded program with fewer, more and as many keys as queries."""
    for rows, keys in ((9, 7), (5, 30), (30, 3), (8, 8)):
        tensors = given(name, rows, keys)
        right = as_pytorch(*tensors, **PROGRAMS[name][-1]).float()
        torch.testing.assert_close(program(*tensors), right, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what torch.export itself uses
@pytest.mark.parametrize("name", PROGRAMS)
def test_exported_with_independent_lengths(name):
    """Neither length is bound to the other, nor to be larger."""
    axis = PROGRAMS[name][1]
    rows, keys = torch.export.Dim("L"), torch.export.Dim("S")
    dims = [{axis: rows}, {axis: keys}, {axis: keys}, *([{0: rows, 1: keys}] * (name == "mask"))]
    shapes = {"dynamic_shapes": (*dims, *([None] * (4 - len(dims))))[: len(given(name, 5, 7))]}
    program = torch.export.export(Attend(**PROGRAMS[name][-1]), given(name, 5, 7), **shapes)
    check_program(program.module(), name)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")  # jit's own
@pytest.mark.parametrize("name", PROGRAMS)
def test_traced_programs_are_right_at_other_lengths(name):
    """By jit.trace and by fx; no length, nor which is larger, is frozen into the graph."""
    module = Attend(**PROGRAMS[name][-1])
    check_program(torch.jit.trace(module, given(name, 5, 7), check_trace=False), name)
    check_program(torch.fx.symbolic_trace(module, {} if name == "mask" else {"mask": None}), name)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_one_head_that_broadcasts_is_traced():
    """Sizes are tensors while jit.trace records, which no set knows again."""
    tensors = [normal(2, heads, 5, 16) for heads in (1, 3, 1)]
    traced = torch.jit.trace(Attend(), tensors, check_trace=False)
    torch.testing.assert_close(traced(*tensors), as_pytorch(*tensors).float(), atol=1e-5, rtol=1e-5)


def wrong_calls():
    """Arguments of the operator that do not fit together, each beside the words that refuse them."""
    q, k = normal(2, 4, 5, 16), normal(2, 2, 7, 16)
    four = normal(4)
    return {
        "k and v disagree: 7 and 3 keys": ((q, k, k[:, :, :3]), {}),
        "head_dim is 16 and 8": ((q, k[..., :8], k), {}),
        "batch is 2 and 1": ((q, k[:1], k[:1]), {}),
        "cannot share 3 KV heads": ((q, normal(2, 3, 7, 16), normal(2, 3, 7, 16)), {}),
        "has dtype float16, but float32": ((q, k.half(), k), {}),
        "complex64: use one of": ((q.cfloat(), k.cfloat(), k.cfloat()), {}),
        "k has dtype float8_e5m2: use one of": ((q, k.to(torch.float8_e5m2), k.to(torch.float8_e5m2)), {}),
        "does not broadcast to": ((q, k, k), {"mask": visible(4, 7)}),
        "mask has dtype int64": ((q, k, k), {"mask": visible(5, 7).long()}),
        r"alibi_slopes has shape \(2,\)": ((q, k, k), {"alibi_slopes": four[:2]}),
        "sinks must be a floating": ((q, k, k), {"sinks": four.int()}),
        r"window \(-2, 0\) must be": ((q, k, k), {"window": [-2, 0]}),
        "softcap is 0.0": ((q, k, k), {"softcap": 0.0}),
        "scale is inf": ((q, k, k), {"scale": float("inf")}),
        "k_scale and v_scale are factors of 8-bit": ((q, k, k), {"k_scale": four[:1]}),
        "can be chosen only with 8-bit q": ((q, k, k), {"out_dtype": torch.float16}),
        "q has shape": ((q[0], k, k), {}),
        "top_left aligns causal": ((q, k, k), {"top_left": True}),
        "causal, which must be True": ((q, k, k), {"top_left": True, "causal": True, "alibi_slopes": four.abs()}),
    }


@pytest.mark.parametrize("words", wrong_calls())
def test_fake_tensors_refuse_what_real_ones_do(words):
    """With the same line, while torch.compile records and not when the program runs; also for tensors on meta."""
    tensors, options = wrong_calls()[words]
    with pytest.raises(ConfigError, match=words) as real:
        OPERATORS.attention(*tensors, **options)
    assert "\n" not in str(real.value)
    fake = torch._subclasses.FakeTensorMode()

    def made(value, how):
        return how(value) if isinstance(value, torch.Tensor) else value

    for how in (fake.from_tensor, lambda tensor: tensor.to("meta")):
        named = {name: made(value, how) for name, value in options.items()}
        with pytest.raises(ConfigError) as caught:
            OPERATORS.attention(*(made(tensor, how) for tensor in tensors), **named)
        assert str(caught.value) == str(real.value)


def test_fake_gradients_refuse_what_real_ones_do():
    """Shapes and dtypes of what the forward returned."""
    q, k = normal(2, 4, 5, 16), normal(2, 2, 7, 16)
    out, lse = OPERATORS.attention(q, k, k)
    for dout, saved in ((out[:, :2], (out, lse)), (out.half(), (out, lse)), (out, (out, lse.double()))):
        lines = []
        for how in (lambda tensor: tensor, lambda tensor: tensor.to("meta")):
            with pytest.raises(ConfigError) as caught:
                OPERATORS.attention_backward(*map(how, (dout, q, k, k, *saved)))
            lines.append(str(caught.value))
        assert lines[0] == lines[1]


@pytest.mark.parametrize(("rows", "keys"), [(5, 7), (7, 7), (9, 7)])
@pytest.mark.parametrize("order", ["BHSD", "BSHD"])
def test_the_operators_alignment_passes_opcheck(rows, keys, order):
    """Top-left, in both orders of memory, with a mask too: schema, fake tensors, gradients of keys no row sees."""
    tensors = [normal(2, 4, size, 16) for size in (rows, keys, keys)]
    if order == "BSHD":
        tensors = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in tensors]
    options = {"causal": True, "top_left": True, "mask": visible(rows, keys)}
    tests = ["test_schema", "test_autograd_registration", "test_faketensor"]
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    torch.library.opcheck(OPERATORS.attention.default, leaves, options, test_utils=tests)
    out, lse = OPERATORS.attention(*leaves, **options)
    wanted = as_pytorch(*leaves, options["mask"] & torch.ones(rows, keys, dtype=torch.bool).tril())
    torch.testing.assert_close(out.double(), wanted, atol=1e-5, rtol=1e-5)
    exact = torch.autograd.grad(wanted.sum(), leaves)
    for have, want in zip(torch.autograd.grad(out.sum(), leaves), exact, strict=True):
        torch.testing.assert_close(have, want, atol=1e-5, rtol=1e-5)
    arguments = [tensor.detach() for tensor in (out, *tensors, out, lse)]
    torch.library.opcheck(OPERATORS.attention_backward.default, arguments, options, test_utils=tests)
