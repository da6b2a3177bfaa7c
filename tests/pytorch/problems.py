"""Tensors, the shapes that PyTorch's function takes, and its own math in float64."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

from torch.nn import functional  # noqa: E402 - here and below: only where torch is there
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402


def normal(*shape, dtype=torch.float32):
    """Normal numbers, which depend on the shape alone."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64).to(dtype)


def visible(*shape):
    """A boolean mask whose row 2 sees no key."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.7
    mask[..., 2, :] = False
    return mask


def as_pytorch(query, key, value, mask=None, **options):
    """PyTorch's own math, in float64."""
    query, key, value = query.double(), key.double(), value.double()
    mask = mask.double() if mask is not None and mask.is_floating_point() else mask
    with sdpa_kernel(SDPBackend.MATH):
        return functional.scaled_dot_product_attention(query, key, value, mask, **options)


SHAPES = {  # query, key, value, mask, options
    "plain": ((2, 3, 5, 16), (2, 3, 7, 16), (2, 3, 7, 8), None, {}),
    "causal, square": ((2, 3, 7, 16), (2, 3, 7, 16), (2, 3, 7, 16), None, {"is_causal": True}),
    "causal, more keys": ((2, 3, 5, 16), (2, 3, 9, 16), (2, 3, 9, 16), None, {"is_causal": True}),
    "causal, fewer keys": ((2, 3, 9, 16), (2, 3, 4, 16), (2, 3, 4, 16), None, {"is_causal": True}),
    "scale": ((1, 2, 5, 16), (1, 2, 5, 16), (1, 2, 5, 16), None, {"scale": -0.7}),
    "grouped": ((2, 6, 5, 16), (2, 2, 7, 16), (2, 2, 7, 16), None, {"enable_gqa": True}),
    "boolean mask": ((2, 3, 5, 16), (2, 3, 7, 16), (2, 3, 7, 16), visible(5, 7), {}),
    "boolean mask of each head": ((2, 3, 5, 16), (2, 3, 7, 16), (2, 3, 7, 16), visible(2, 3, 5, 7), {}),
    "floating mask": ((2, 3, 5, 16), (2, 3, 7, 16), (2, 3, 7, 16), normal(3, 1, 7), {}),
    "mask of keys alone": ((2, 3, 5, 16), (2, 3, 7, 16), (2, 3, 7, 16), normal(7), {}),
    "two dimensions": ((5, 16), (7, 16), (7, 8), normal(5, 7), {}),
    "three dimensions": ((3, 5, 16), (3, 7, 16), (3, 7, 16), visible(3, 5, 7), {}),
    "five dimensions": ((2, 2, 3, 5, 16), (2, 2, 3, 7, 16), (2, 2, 3, 7, 16), visible(2, 1, 1, 5, 7), {}),
    "broadcast batch": ((2, 3, 5, 16), (1, 3, 7, 16), (3, 7, 16), None, {}),
    "broadcast heads": ((2, 1, 5, 16), (2, 3, 7, 16), (2, 1, 7, 16), None, {}),
    "one head of K and V": ((2, 3, 5, 16), (2, 1, 7, 16), (2, 1, 7, 16), None, {}),
    "no queries": ((2, 3, 0, 16), (2, 3, 7, 16), (2, 3, 7, 16), None, {"is_causal": True}),
    "no keys": ((2, 3, 5, 16), (2, 3, 0, 16), (2, 3, 0, 16), None, {"is_causal": True}),
    "no batch": ((0, 3, 5, 16), (0, 3, 7, 16), (0, 3, 7, 16), None, {}),
    "no width": ((2, 3, 5, 0), (2, 3, 7, 0), (2, 3, 7, 8), None, {}),
}
