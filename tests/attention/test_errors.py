"""Arguments that describe no attention problem are one clear line that names the argument and what it should be."""

import pickle
import re

import numpy as np
import pytest

import rocattn
from rocattn.errors import ConfigError, NoBackendError, RocattnError, ToolchainError
from rocattn.functional import describe
from rocattn.gpu.errors import DeviceMemoryError, GpuError, LaunchError

from .problems import BFLOAT16

Q = np.ones((2, 5, 4, 6), np.float32)
K = np.ones((2, 7, 2, 6), np.float32)
GOOD = {"q": Q, "k": K, "v": K}


class DeviceTensor:
    """What a torch tensor on a GPU looks like from here."""

    def __dlpack__(self):
        """Never called: the check is before it."""
        raise AssertionError


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"q": Q[0]}, r"q has shape \(5, 4, 6\), but layout BSHD is \[B, S, H, D\]: 4 dimensions"),
        ({"k": K[:1], "v": K[:1]}, "q and k disagree: batch is 2 and 1"),
        ({"k": K[..., :5]}, "q and k disagree: head_dim is 6 and 5"),
        ({"q": Q[:1]}, "q and k disagree: batch is 1 and 2"),
        ({"q": Q[..., :5]}, "q and k disagree: head_dim is 5 and 6"),
        ({"v": K[:, :6]}, "k and v disagree: 7 and 6 keys"),
        ({"v": K[:, :, :1]}, "k and v disagree: 2 and 1 KV heads"),
        ({"q": Q[:, :, :3]}, "3 query heads cannot share 2 KV heads"),
        ({"k": K.astype(np.float16)}, "k has dtype float16, but float32 is needed"),
        ({"v": K.astype(np.float64)}, "v has dtype float64, but float32 is needed"),
        ({"q": Q.astype(int)}, "q has dtype int64: use one of float16, bfloat16, float32, float64"),
        ({"q": Q.astype(np.complex64)}, "q has dtype complex64"),
        ({"q": Q.astype(Q.dtype.newbyteorder())}, "byte order"),
        ({"q": Q.tolist()}, "q must be a numpy array, not list"),
        ({"q": None}, "q must be a numpy array, not NoneType"),
        ({"v": np.ma.masked_array(K)}, "v is a masked array: give its data, and say with mask= what is hidden"),
        ({"q": DeviceTensor()}, r"q is a .*DeviceTensor: device tensors need the gpu backend"),
        ({"mask": np.ones((5, 7), int)}, "mask has dtype int64: use bool"),
        ({"mask": np.ones((5, 7), np.complex64)}, "mask has dtype complex64"),
        ({"mask": [[True]]}, "mask must be a numpy array, not list"),
        ({"mask": np.ma.masked_array(np.ones((5, 7), bool))}, "mask is a masked array"),
        ({"mask": np.ones((5, 7), np.dtype(np.float32).newbyteorder())}, "mask has dtype .f4, not in this"),
        ({"mask": np.ones((1, 1, 1, 5, 7), bool)}, r"mask has shape \(1, 1, 1, 5, 7\): give it 2"),
        ({"mask": np.ones((4, 5, 7), bool)}, r"a mask of shape \(4, 1, 5, 7\) does not broadcast"),
        ({"mask": np.ones((5, 6), bool)}, r"a mask of shape \(1, 1, 5, 6\) does not broadcast to .*\[2, 4, 5, 7\]"),
        ({"window": 5}, r"window is 5: it must be \(left, right\)"),
        ({"window": (1, 2, 3)}, "window is"),
        ({"window": (1.5, 2)}, "window is"),
        ({"window": (-2, 0)}, r"window \(-2, 0\) must be \(left, right\), each 0 or more, or -1"),
        ({"softcap": 0.0}, "softcap is 0.0: it must be greater than 0"),
        ({"softcap": float("nan")}, "softcap is nan: it must be finite"),
        ({"softcap": "big"}, "softcap is 'big': it must be a number"),
        ({"scale": float("inf")}, "scale is inf: it must be finite"),
        ({"scale": True}, "scale is True: it must be a number"),
        ({"scale": "0.5"}, "scale is '0.5': it must be a number"),
        ({"scale": 10**400}, "scale is 1000.*: it must be a number"),
        ({"out_dtype": ["float16"]}, r"out_dtype is \['float16'\]: it must be the name of a dtype"),
        ({"num_heads": np.array([4])}, r"num_heads is array\(\[4\]\): it must be a whole number"),
        ({"num_kv_heads": 2.0}, "num_kv_heads is 2.0: it must be a whole number"),
        ({"causal": 1}, "causal is 1: it must be True or False"),
        ({"alibi_slopes": np.ones(2, np.float32)}, r"alibi_slopes has shape \(2,\): it must be \[4\] or \[2, 4\]"),
        ({"alibi_slopes": [0.5] * 4}, "alibi_slopes must be a floating numpy array, not list"),
        ({"sinks": np.ones(4, int)}, "sinks must be a floating numpy array, not int64 array"),
        ({"sinks": np.ma.masked_array(np.ones(4, np.float32))}, "sinks is a masked array"),
        ({"sinks": np.ones((2, 4), np.float32)}, r"sinks has shape \(2, 4\): it must be \[4\]"),
        ({"sinks": np.array([0, 1, np.inf, -np.inf], np.float32)}, r"sinks has inf at \[2\]: it must be at most 1e"),
        ({"sinks": np.array([np.nan] * 4, np.float16)}, r"sinks has nan at \[0\]: .* \(-inf is no sink\)"),
        ({"sinks": np.array([0, 1e39, 0, 0])}, r"sinks has 1e\+39 at \[1\]"),
        ({"alibi_slopes": np.array([0, np.nan, 0, 0], BFLOAT16)}, r"alibi_slopes has nan at \[1\]: it must be from"),
        ({"alibi_slopes": np.array([0, 0, 0, -np.inf])}, r"alibi_slopes has -inf at \[3\]: .* from -1e\+30 to 1e\+30"),
        ({"alibi_slopes": np.tril(np.full((2, 4), np.inf), -1)}, r"alibi_slopes has inf at \[1, 0\]"),
        ({"layout": "SBHD"}, "layout 'SBHD' is unknown: use one of BSHD, BHSD, BSE"),
        ({"layout": ["BSHD"]}, "layout .* is unknown"),
        ({"k": K[:, :, :0], "v": K[:, :, :0]}, r"k and v have no heads \(as .*\): at least one KV head is needed"),
        ({"softcap": 1e38}, r"softcap is 1e\+38: it must be from 1e-30 to 1e\+30"),
        ({"softcap": 1e-39}, "softcap is 1e-39: it must be from"),
        ({"scale": -1e39}, r"scale is -1e\+39: it must be from"),
        ({"num_heads": 3}, r"q has 4 heads \(shape \(2, 5, 4, 6\), BSHD\), not the 3 given"),
        ({"num_kv_heads": 4}, "k has 2 heads"),
    ],
)
def test_bad_argument_is_one_clear_line(changes, words):
    """The message names the argument, what it is, and what it should be."""
    with pytest.raises(ConfigError, match=words) as caught:
        rocattn.attention(**GOOD | changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dout": Q[:, :4]}, r"dout has shape \(2, 4, 4, 6\): the output is \(2, 4, 5, 6\)"),
        ({"out": Q.astype(np.float16)}, "out has dtype float16, but float32 is needed"),
        ({"lse": np.ones((2, 4, 5))}, "lse has dtype float64, but float32 is needed"),
        ({"lse": np.ones((2, 5, 4), np.float32)}, r"lse has shape \(2, 5, 4\): it must be \[B, H, Sq\] = \[2, 4, 5\]"),
        ({"lse": None}, "lse must be a numpy array, not NoneType"),
        ({"sinks": np.full(4, np.inf, np.float32)}, r"sinks has inf at \[0\]"),
        ({"alibi_slopes": np.full(4, np.nan, np.float32)}, r"alibi_slopes has nan at \[0\]"),
    ],
)
def test_bad_argument_of_backward_is_one_clear_line(changes, words):
    """What the forward pass returned is checked too."""
    given = {"dout": Q, "out": Q, "lse": np.ones((2, 4, 5), np.float32), **GOOD}
    with pytest.raises(ConfigError, match=words):
        rocattn.attention_backward(**given | changes)


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        ({"causal": True}, {"causal": 1}, "causal is 1: it must be True or False"),
        ({"window": (3, 0)}, {"window": (3.0, 0)}, "window is"),
        ({"return_lse": False}, {"return_lse": 0}, "return_lse is 0"),
        ({"num_heads": 4}, {"num_heads": 3}, "q has 4 heads"),
        ({}, {"k": K.astype(np.float16), "v": K.astype(np.float16)}, "k has dtype float16"),
        ({}, {"k": K[0], "v": K}, "4 dimensions are needed"),
        ({}, {"k": np.ma.masked_array(K)}, "k is a masked array"),
    ],
)
def test_a_bad_call_is_refused_after_a_good_one_that_equals_it(good, bad, words):
    """What is kept of a call from the one before does not take 1 for True, or 3.0 for 3."""
    rocattn.attention(**GOOD | good)
    with pytest.raises(ConfigError, match=words):
        rocattn.attention(**GOOD | bad)


def test_what_is_on_a_device_is_not_read():
    """A shadow of a device tensor has a shape and no content: a check of sinks there would read what lies anywhere."""
    bad = np.full(4, np.nan, np.float32)
    config, _ = describe(**GOOD, sinks=bad, alibi_slopes=bad, readable=False)
    assert config.sinks
    assert config.alibi


@pytest.mark.parametrize("name", ["gqu", "", ["cpu"], {"cpu"}], ids=repr)
def test_unknown_backend_lists_the_known_ones(name):
    """A wrong name is answered with the right ones, whatever it is."""
    named = re.escape(f"no backend is named {name!r}; registered: cpu-flash, cpu")
    with pytest.raises(NoBackendError, match=named):
        rocattn.attention(**GOOD, backend=name)


def test_refusal_carries_the_reason():
    """A backend named outright that cannot run the config says why; nothing else is tried."""
    wide = {name: array.astype(np.float64) for name, array in GOOD.items()}
    with pytest.raises(NoBackendError, match=r"backend 'cpu-flash' cannot run .*float64.*use cpu"):
        rocattn.attention(**wide, backend="cpu-flash")


def test_errors_are_also_builtin_kinds():
    """Callers may catch ValueError and RuntimeError, or RocattnError for all."""
    assert issubclass(ConfigError, ValueError)
    assert issubclass(NoBackendError, RuntimeError)
    assert issubclass(ConfigError, RocattnError)
    assert issubclass(NoBackendError, RocattnError)


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("q is 5"),
        NoBackendError("none can", {"cpu-flash": "float64"}),
        ToolchainError("it failed", command=["clang", "x.hip"], output="why"),
        GpuError("broken", status="hipErrorUnknown"),
        DeviceMemoryError("memory", 3 << 20, 1 << 20, 2 << 20),
        LaunchError("it failed", "flash", "out of bounds"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_the_way_out_of_a_worker(error):
    """An error that cannot be unpickled makes a `multiprocessing.Pool` wait for ever."""
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - ours
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
    own = {kind for kind in _kinds(RocattnError) if "__init__" in vars(kind) and kind.__module__.startswith("rocattn.")}
    assert own == {NoBackendError, ToolchainError, GpuError, DeviceMemoryError, LaunchError}


def _kinds(base):
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)
