"""The kernels of rocattn.torch's operators on GPU tensors: PyTorch's CPU build, whose tensors say they are on a GPU."""

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

# The tensors are in the stand-in's memory. What the dispatcher, autograd and the allocator of a ROCm build do with the
# operators is not seen here: the functions are called that are registered there.
PRELUDE = r"""
import ctypes, json, types
import numpy as np
import torch
import rocattn
import rocattn.torch.operators
from rocattn import BACKENDS

runtime = BACKENDS.get("gpu").runtime()
stream = runtime.hip.stream_create()
torch.version.hip = "7.2"
torch.cuda.current_stream = lambda device: types.SimpleNamespace(cuda_stream=stream)
copies = []

class OnGpu(torch.Tensor):
    device = property(lambda self: torch.device("cuda", 0))
    is_cuda = True
    def new_empty_strided(self, shape, strides, dtype=None):
        return allocate(shape, dtype or self.dtype).as_strided(shape, strides).as_subclass(OnGpu)
    def contiguous(self):
        if self.is_contiguous():
            return self
        copies.append(tuple(self.shape))
        return to_gpu(to_host(self).contiguous())
OnGpu.__module__ = "torch"

def allocate(shape, dtype):
    count = max(1, int(np.prod(shape)) * dtype.itemsize)
    memory = (ctypes.c_ubyte * count).from_address(runtime.hip.malloc(count))
    return torch.frombuffer(memory, dtype=torch.uint8)[: int(np.prod(shape)) * dtype.itemsize].view(dtype).view(
        tuple(shape)).as_subclass(OnGpu)

def to_gpu(tensor):
    made = allocate(tensor.shape, tensor.dtype)
    runtime.hip.copy_to_device(made.data_ptr(), tensor.data_ptr(), tensor.nbytes, 0)
    return made

def to_host(tensor):
    runtime.hip.stream_synchronize(stream)
    return tensor.as_subclass(torch.Tensor).clone()

def near(a, b):
    return bool((to_host(a).double() - b.double()).abs().max() < 1e-2)

torch.manual_seed(0)
"""


def test_the_gpu_backend_computes_in_place(hostgpu):
    """Both orders of memory, every option with data, and gradients; only a strided last axis is copied."""
    code = """
found = {}
for order in ("BHSD", "BSHD"):
    def make(h, s, d):
        x = torch.randn(2, h, s, d) if order == "BHSD" else torch.randn(2, s, h, d)
        return x.half()
    def view(x):
        return x if order == "BHSD" else x.transpose(1, 2)
    host = make(4, 19, 32), make(2, 23, 32), make(2, 23, 32)
    options = dict(mask=torch.rand(2, 1, 19, 23) > 0.3, alibi_slopes=torch.rand(2, 4), sinks=torch.randn(4))
    tensors = [view(to_gpu(x)) for x in host]
    given = [to_gpu(x) for x in options.values()]
    copies.clear()
    out, lse = rocattn.torch.operators._attention(*tensors, *given, causal=True)
    dout = to_gpu(torch.ones(2, 4, 19, 1, dtype=torch.float16)).expand(2, 4, 19, 32)  # of a sum
    gradients = rocattn.torch.operators._attention_backward(dout, *tensors, out, lse, *given, causal=True)
    expected, logs = torch.ops.rocattn.attention(*map(view, host), **options, causal=True)
    ones = torch.ones(2, 4, 19, 32, dtype=torch.float16)
    exact = torch.ops.rocattn.attention_backward(ones, *map(view, host), expected, logs, **options, causal=True)
    found[order] = {
        "kind": type(out) is OnGpu,
        "order": out.transpose(1, 2).is_contiguous() if order == "BSHD" else out.is_contiguous(),
        "right": [near(a, b) for a, b in zip((out, lse, *gradients), (expected, logs, *exact))],
        "copies": copies[:],
    }
print(json.dumps(found))
"""
    expected = {"kind": True, "order": True, "right": [True] * 5}
    turned = {"BHSD": [2, 4, 19, 32], "BSHD": [2, 19, 4, 32]}
    found = hostgpu(PRELUDE + code)
    assert found == {order: expected | {"copies": [shape]} for order, shape in turned.items()}


def test_keys_and_values_of_8_bits_are_read_in_place(hostgpu):
    """PyTorch's two types; scales for all, for KV heads, and for each sequence, whatever their strides."""
    code = """
found = {}
q = torch.randn(2, 3, 4, 32).half()
for stored in (torch.float8_e4m3fn, torch.float8_e4m3fnuz):
    k, v = (torch.randn(2, 700, 2, 32).to(stored) for _ in range(2))
    for name, k_scale, v_scale in (("one", torch.tensor(0.5), torch.tensor([2.0])),
                                   ("heads", torch.tensor([0.5, 2.0]), torch.rand(4)[::2] + 0.5),
                                   ("all", torch.rand(2, 2) + 0.5, (torch.rand(2, 2) + 0.5).T)):
        turned = [x.transpose(1, 2) for x in (q, k, v)]
        right, _ = torch.ops.rocattn.attention(*turned, k_scale=k_scale, v_scale=v_scale)
        strided = to_gpu(torch.stack([v_scale, v_scale], -1))[..., 0]  # every second element
        out = rocattn.attention(to_gpu(q), to_gpu(k), to_gpu(v), k_scale=to_gpu(k_scale), v_scale=strided)
        found[f"{stored} {name}"] = near(out, right.transpose(1, 2))
    scales = {"q_scale": torch.tensor([0.5, 2.0]), "k_scale": torch.tensor(0.5)}
    small = q.to(stored)
    right, _ = torch.ops.rocattn.attention(*(x.transpose(1, 2) for x in (small, k, v)), **scales)
    out = rocattn.attention(to_gpu(small), to_gpu(k), to_gpu(v), **{n: to_gpu(x) for n, x in scales.items()})
    found[f"{stored} q"] = out.dtype == torch.bfloat16 and near(out, right.transpose(1, 2))
try:
    rocattn.attention(to_gpu(q), to_gpu(k), to_gpu(v), k_scale=0.5)
except rocattn.ConfigError as error:
    found["refused"] = str(error)
print(json.dumps(found))
"""
    found = hostgpu(PRELUDE + code)
    assert found.pop("refused") == "k_scale is a float, but q is a device tensor: use one kind for all"
    assert found == dict.fromkeys(found, True)
    assert len(found) == 8


STEADY = """
import sys
from rocattn.torch import operators, scaled_dot_product_attention
ours = rocattn.__file__.rpartition("/")[0]
OnGpu.device = torch.device("cuda", 0)  # no Python of the double's
def make(*shape):
    return to_gpu(torch.randn(shape).half()).transpose(1, 2)
def steady(query, key, value, mask=None, **options):
    again = (query, key, value, mask, options.get("is_causal", False), None, options.get("scale"),
             options.get("enable_gqa", False), options.get("dropout_p", 0.0))
    return operators.sdpa_again(*again)
def first(*tensors, **options):
    # The dispatcher does not know that these are on a GPU: its kernel comes first, and PyTorch's function by that.
    is_causal = options.get("is_causal", False)
    operators._attention(*tensors, causal=is_causal, top_left=is_causal)
    return scaled_dot_product_attention(*tensors, **options)
"""


def test_a_steady_call_of_pytorchs_function_is_little_python(hostgpu):
    """As PyTorch's function, and as the kernel of the operator, which is all that a compiled graph calls."""
    code = """
def counted(action):
    for _ in range(2):
        action()
    found = [0]
    def note(frame, event, _):
        found[0] += event in {"call", "c_call"} and frame.f_code.co_filename.startswith((ours, torch.__path__[0]))
    sys.setprofile(note)
    action()
    sys.setprofile(None)
    return found[0]
found, reused, real = [], {}, OnGpu.new_empty_strided
def new_empty_strided(self, shape, strides, dtype=None):  # what the double asks the driver for is not counted
    if shape not in reused:
        reused[shape] = real(self, shape, strides, dtype)
    return reused[shape]
for rows, keys in ((19, 23), (1, 600)):
    query, key, value = make(1, rows, 4, 32), make(1, keys, 2, 32), make(1, keys, 2, 32)
    out = first(query, key, value, enable_gqa=True)
    exact = scaled_dot_product_attention(*map(to_host, (query, key, value)), enable_gqa=True)
    assert near(out, exact)
    OnGpu.__torch_function__ = torch._C._disabled_torch_function_impl  # as of tensors on a GPU
    OnGpu.new_empty_strided = new_empty_strided
    found.append(counted(lambda: scaled_dot_product_attention(query, key, value, enable_gqa=True)))
    found.append(counted(lambda: operators._attention(query, key, value)))
    assert near(scaled_dot_product_attention(query, key, value, enable_gqa=True), exact)
    del OnGpu.__torch_function__
    OnGpu.new_empty_strided = real
print(json.dumps(found))
"""
    found = hostgpu(PRELUDE + STEADY + code)
    assert [count for count in found if not 0 < count <= 40] == []
    assert len(found) == 4


def test_whatever_stands_between_call_and_kernel_is_asked(hostgpu):
    """Modes, transforms, autocast, traces, profiles, tangents, gradients and lazy signs: PyTorch sees these calls."""
    code = """
import contextlib
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
tensors = make(2, 19, 4, 32), make(2, 23, 4, 32), make(2, 23, 4, 32)
first(*tensors)
class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))
class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))
def vmapped():
    seen = []
    torch.vmap(lambda x: (seen.append(steady(*tensors)), x)[1])(torch.zeros(2))
    return seen[0]
def traced():
    seen = []
    torch.jit.trace(lambda x: (seen.append(steady(*tensors)), x)[1], torch.zeros(2), check_trace=False)
    return seen[0]
def within(context):
    with context:
        return steady(*tensors)
@contextlib.contextmanager
def autocast():  # torch.autocast of a build for CPUs does nothing
    torch.set_autocast_enabled("cuda", True)
    yield
    torch.set_autocast_enabled("cuda", False)
found = {
    "plain": steady(*tensors), "functions": within(Functions()), "dispatch": within(Dispatch()),
    "autocast": within(autocast()), "tangents": within(forward_ad.dual_level()),
    "profile": within(torch.profiler.profile()), "vmap": vmapped(), "trace": traced(),
    "device": within(torch.device("cpu")), "causal": steady(*tensors, is_causal=True),
    "grouped": steady(*tensors, enable_gqa=True), "scale": steady(*tensors, scale=0.5),
    "dropout": steady(*tensors, dropout_p=0.5), "flag": steady(*tensors, is_causal=0),
    "mask": steady(*tensors, to_gpu(torch.ones(19, 23, dtype=torch.bool))), "plain again": steady(*tensors),
}
OnGpu.is_neg = lambda self: self is tensors[1]
found["sign"] = steady(*tensors)
del OnGpu.is_neg
learnt = tensors[0].as_subclass(torch.Tensor).clone().requires_grad_().as_subclass(OnGpu)
found["gradient"] = steady(learnt.transpose(1, 2).contiguous().transpose(1, 2), *tensors[1:])
with torch.no_grad():
    found["no gradient"] = steady(*tensors)
print(json.dumps({name: result is not None for name, result in found.items()}))
"""
    found = hostgpu(PRELUDE + STEADY + code)
    assert {name for name, kept in found.items() if kept} == {"plain", "plain again", "no gradient"}
    assert len(found) == 19


def test_the_operators_have_kernels_for_gpu_tensors():
    """PyTorch calls AMD's devices "cuda", too."""
    import torch

    import rocattn.torch  # noqa: F401 - registers them

    for name in ("attention", "attention_backward"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"rocattn::{name}", "CUDA")
