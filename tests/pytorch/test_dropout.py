"""Dropout in rocattn.torch: PyTorch's generator draws the mask, and a step equals one with that very mask."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

from torch.nn import functional  # noqa: E402 - here and below: only where torch is there

from rocattn.dropout import dropout_key, kept_weights  # noqa: E402
from rocattn.errors import ConfigError  # noqa: E402
from rocattn.torch import scaled_dot_product_attention  # noqa: E402

from .problems import normal  # noqa: E402

OPERATORS = torch.ops.rocattn


def kept(state, shape, dropout_p):
    """What each weight [B, H, Sq, Sk] is multiplied by."""
    batch, heads, rows, keys = shape
    key = dropout_key(*state.tolist())
    numbers = np.arange(batch * heads).reshape(batch, heads)
    return torch.from_numpy(kept_weights(key, dropout_p, numbers, np.arange(rows), keys, np.float64))


def with_mask(factors, causal):
    """PyTorch's math in float64, with what `kept` says; signature as PyTorch's function."""

    def attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **_):
        assert attn_mask is None
        scores = query.double() @ key.double().mT / query.shape[-1] ** 0.5
        if is_causal or causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, -torch.inf)
        weights = scores.softmax(-1)
        weights = weights * factors(weights.shape, dropout_p) if dropout_p else weights
        return (weights @ value.double()).to(query.dtype)

    return attend


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_step_equals_one_with_its_mask(dtype, causal):
    """Output and gradients; the state is what PyTorch's generator gives next."""
    tensors = [normal(2, 3, rows, 16, dtype=dtype).requires_grad_() for rows in (9, 21, 21)]
    torch.manual_seed(3)
    out = scaled_dot_product_attention(*tensors, dropout_p=0.4, is_causal=causal)
    torch.manual_seed(3)
    state = torch.randint((1 << 63) - 1, (2,))
    expected = with_mask(lambda shape, p: kept(state, shape, p), causal)(*tensors, dropout_p=0.4)
    upstream = normal(*out.shape, dtype=dtype)
    pairs = zip(
        (out, *torch.autograd.grad(out, tensors, upstream)),
        (expected, *torch.autograd.grad(expected, tensors, upstream)),
        strict=True,
    )
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 6e-2}[dtype]
    for have, want in pairs:
        torch.testing.assert_close(have.double(), want.double(), atol=tolerance, rtol=tolerance)


def test_the_generator_moves_on():
    """Two calls differ, the same seed gives the same two, and no dropout leaves the generator alone."""
    query = normal(1, 2, 30, 8)

    def twice():
        torch.manual_seed(5)
        return [scaled_dot_product_attention(query, query, query, dropout_p=0.5) for _ in range(2)]

    first, again = twice(), twice()
    assert not torch.equal(first[0], first[1])
    for have, want in zip(again, first, strict=True):
        assert torch.equal(have, want)
    before = torch.get_rng_state()
    scaled_dot_product_attention(query, query, query, dropout_p=0.0)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_expected_output_is_that_without_dropout():
    """Of 400 draws, within four standard errors of each element's own spread."""
    query, key, value = normal(1, 2, 6, 8), normal(1, 2, 40, 8), normal(1, 2, 40, 8)
    torch.manual_seed(11)
    drawn = torch.stack([scaled_dot_product_attention(query, key, value, dropout_p=0.3) for _ in range(400)])
    error = drawn.mean(0) - scaled_dot_product_attention(query, key, value)
    assert (error.abs() < 4.5 * drawn.std(0) / 400**0.5).all()


def test_all_is_dropped_at_a_probability_of_one():
    """As PyTorch does: output and gradients are 0."""
    query = normal(1, 2, 5, 8).requires_grad_()
    out = scaled_dot_product_attention(query, query, query, dropout_p=1.0)
    (gradient,) = torch.autograd.grad(out.sum(), query)
    assert not out.any()
    assert not gradient.any()


def layer(monkeypatch, attend):
    """A training step of PyTorch's encoder layer with its default dropout, its attention by a function."""
    torch.manual_seed(0)
    module = torch.nn.TransformerEncoderLayer(32, 4, 48, batch_first=True).train()
    monkeypatch.setattr(functional, "scaled_dot_product_attention", attend)
    torch.manual_seed(1)
    loss = module(normal(3, 14, 32)).square().mean()
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in module.named_parameters()}


def test_an_encoder_layer_trains_with_its_default(monkeypatch):
    """Loss and the gradients of all parameters are those of a layer whose attention has the same mask."""
    states = []

    def spy(*given, **options):
        before = torch.get_rng_state()
        states.append(torch.randint((1 << 63) - 1, (2,)))
        torch.set_rng_state(before)
        return scaled_dot_product_attention(*given, **options)

    def same_draws(shape, dropout_p):
        assert torch.equal(torch.randint((1 << 63) - 1, (2,)), states[0])
        assert dropout_p == 0.1
        return kept(states[0], shape, dropout_p)

    loss, gradients = layer(monkeypatch, spy)
    exact, wanted = layer(monkeypatch, with_mask(same_draws, causal=False))
    assert len(states) == 1
    torch.testing.assert_close(loss, exact)
    for name, gradient in wanted.items():
        torch.testing.assert_close(gradients[name], gradient, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_step_is_whole_and_reproducible(dynamic):
    """One graph; the gradient has the mask of the output: v's is the column sums of the weights."""
    query = normal(1, 2, 24, 8)
    value = torch.eye(24)[:, :24].expand(1, 2, 24, 24).clone().requires_grad_()
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda q, k, v: scaled_dot_product_attention(q, k, v, dropout_p=0.5),
        fullgraph=True, dynamic=dynamic, backend="aot_eager",
    )  # fmt: skip

    def step():
        torch.manual_seed(2)
        weights = compiled(query, query, value)
        (gradient,) = torch.autograd.grad(weights.sum(), value)
        return weights.detach(), gradient

    weights, gradient = step()
    assert 0.4 < (weights == 0).double().mean() < 0.6
    torch.testing.assert_close(gradient, weights.sum(2)[..., None].expand_as(value), atol=1e-5, rtol=1e-5)
    for have, want in zip(step(), (weights, gradient), strict=True):
        assert torch.equal(have, want)


def test_operators_with_a_state_pass_opcheck():
    """Schema, autograd, fake tensors and AOTAutograd with dynamic shapes."""
    leaves = [normal(2, 4, 5, 16).requires_grad_() for _ in range(3)]
    none, state = (None,) * 6, torch.tensor([7, -1])
    options = {"dropout_p": 0.25, "causal": True, "top_left": True}
    torch.library.opcheck(OPERATORS.attention.default, (*leaves, *none, state), options)
    out, lse = OPERATORS.attention(*leaves, *none, state, **options)
    given = out.detach(), *(leaf.detach() for leaf in leaves), out.detach(), lse.detach(), *(None,) * 4, state
    torch.library.opcheck(OPERATORS.attention_backward.default, given, options)


REFUSED = {
    "dropout_p is 1.5: it must be": {"dropout_p": 1.5},
    "dropout_p is nan: it must be finite": {"dropout_p": float("nan")},
}


@pytest.mark.parametrize("words", REFUSED)
def test_bad_probabilities_are_refused(words):
    """As the library refuses them."""
    query = normal(1, 2, 5, 8)
    with pytest.raises(ConfigError, match=words):
        scaled_dot_product_attention(query, query, query, **REFUSED[words])


@pytest.mark.parametrize("state", [None, torch.zeros(3, dtype=torch.int64), torch.zeros(2)], ids=str)
def test_an_operator_needs_seed_and_offset(state):
    """Real and fake tensors alike."""
    query = normal(1, 2, 5, 8)
    for tensor in (query, query.to("meta")):
        with pytest.raises(ConfigError, match=r"rng_state .*int64 \[2\]"):
            OPERATORS.attention(tensor, tensor, tensor, *(None,) * 6, copy.copy(state), dropout_p=0.5)
