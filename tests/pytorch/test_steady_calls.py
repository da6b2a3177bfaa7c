"""Calls of PyTorch's function on CPU tensors that are like one before: little Python, nothing missed."""

import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402 - here and below: only where torch is there

import rocattn.torch  # noqa: E402
from rocattn import steady  # noqa: E402
from rocattn.torch import scaled_dot_product_attention  # noqa: E402

from .problems import normal  # noqa: E402


def counted(action, *folders):
    """Python and C functions in folders, or called from there, by the third of equal calls."""
    for _ in range(2):
        action()
    found = [0]

    def note(frame, event, _):
        found[0] += event in {"call", "c_call"} and frame.f_code.co_filename.startswith(folders)

    before = sys.getprofile()
    sys.setprofile(note)
    action()
    sys.setprofile(before)
    return found[0]


def test_a_steady_call_on_the_cpu_is_little_python(cpu_flash):
    """Also one with gradients, which goes round the library's registration: that alone took 0.1 ms."""
    del cpu_flash
    ours, theirs = rocattn.__file__.rpartition("/")[0], torch.__path__[0]
    x = normal(1, 2, 8, 16)
    plain = counted(lambda: scaled_dot_product_attention(x, x, x), ours, theirs)
    assert 0 < plain <= 50
    mask = torch.ones(8, 8, dtype=torch.bool)  # of whose calls nothing is kept: they are not looked up either
    assert counted(lambda: scaled_dot_product_attention(x, x, x, mask), ours, theirs) <= 235
    y = x.clone().requires_grad_()
    learning = counted(lambda: scaled_dot_product_attention(y, y, y), ours, theirs)
    assert plain < learning <= 190
    with torch.no_grad():
        assert 0 < counted(lambda: scaled_dot_product_attention(y, y, y), ours, theirs) <= plain + 5


ATTEMPTS = {
    "plain": {}, "causal": {"is_causal": True}, "causal by number": {"is_causal": 1}, "scale": {"scale": 1.0},
    "scale by number": {"scale": 1}, "grouped": {"enable_gqa": True}, "grouped by number": {"enable_gqa": 1},
    "mask": {"attn_mask": torch.ones(8, 8, dtype=torch.bool).tril()}, "no mask": {"attn_mask": 0},
    "dropout": {"dropout_p": 1.0}, "no dropout": {"dropout_p": 0},
}  # fmt: skip


@pytest.mark.parametrize("learns", [False, True])
def test_what_differs_is_looked_at_anew(learns, cpu_flash):
    """Right after plain calls of the same shapes, options and tensors of all kinds do what they did at first."""
    del cpu_flash

    def said(query, **options):
        try:
            out = scaled_dot_product_attention(query, query, query, **options)
            grads = torch.autograd.grad(out.float().square().sum(), query) if out.requires_grad else ()
        except (rocattn.RocattnError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"
        return [(x.dtype, x.stride(), x.is_meta or x.tolist()) for x in (out, *grads)]

    x = normal(1, 2, 8, 16).requires_grad_(learns)
    turned = normal(1, 8, 2, 16).transpose(1, 2).requires_grad_(learns)
    tensors = {
        "x": x, "turned": turned, "half": x.detach().half().requires_grad_(learns), "meta": x.to("meta"),
        "double": x.detach().double().requires_grad_(learns), "sparse": x.detach().to_sparse(),
        "negative": torch.complex(x.detach(), x.detach()).conj().imag, "parameter": torch.nn.Parameter(x.detach()),
    }  # fmt: skip
    found = {}
    for name, tensor in tensors.items():
        for attempt, options in ATTEMPTS.items():
            for _ in range(2):
                for others in ({}, {"is_causal": True}, {"scale": 1.0}, {"enable_gqa": True}):
                    scaled_dot_product_attention(x, x, x, **others)
            results = [said(tensor, **options) for _ in range(3)]
            steady._KEPT.clear()
            found[name, attempt] = results[0] == results[1] == results[2] == said(tensor, **options)
    assert found == dict.fromkeys(found, True)


def test_settings_of_pytorch_are_seen_by_steady_calls(cpu_flash):
    """Threads, autocast, no_grad, inference, a mode that looks on, transforms, and a second derivative."""
    del cpu_flash
    x, y = normal(2, 2, 8, 16), normal(2, 2, 8, 16).requires_grad_()
    right = scaled_dot_product_attention(x, x, x)
    for _ in range(2):
        learned = scaled_dot_product_attention(y, y, y)
        assert learned.grad_fn is not None
        with torch.no_grad():
            assert scaled_dot_product_attention(y, y, y).grad_fn is None
        with torch.inference_mode():
            assert scaled_dot_product_attention(y, y, y).is_inference()
        with torch.autocast("cpu", torch.bfloat16):
            assert scaled_dot_product_attention(x, x, x).dtype == torch.bfloat16
        assert scaled_dot_product_attention(x, x, x).dtype == torch.float32
        (gradient,) = torch.autograd.grad(learned.sum(), y, create_graph=True)
        with pytest.raises(NotImplementedError, match="no second derivative"):
            torch.autograd.grad(gradient.sum(), y)

    seen = []

    class Look(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Look():
        scaled_dot_product_attention(x, x, x)
    assert "rocattn.attention.default" in seen
    before = torch.get_num_threads()
    for count in (1, 3):
        torch.set_num_threads(count)
        kept = len(steady._KEPT)
        torch.testing.assert_close(scaled_dot_product_attention(x, x, x), right, rtol=0, atol=0)
        assert len(steady._KEPT) > kept  # what is packed says how many threads
    torch.set_num_threads(before)
