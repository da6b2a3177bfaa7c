"""PyTorch operators for attention: tensors as arrays over the same memory, fake tensors, gradients."""

from __future__ import annotations

import inspect
import re
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import ml_dtypes
import numpy as np
import torch
from torch import _C
from torch.autograd import forward_ad

from rocattn.errors import ConfigError
from rocattn.functional import ATTENTION, attention, attention_backward, describe, describe_backward
from rocattn.gpu.tensors import numpy_dtype
from rocattn.layouts import Output
from rocattn.steady import Function, Steady, computed, keep_as, only_first
from rocattn.threads import threads_from_caller
from rocattn.varlen import attention_varlen, attention_varlen_backward, describe_varlen, describe_varlen_backward

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from rocattn.backend import Array

_CONSTANTS = ("mask", "alibi_slopes", "sinks")
_SCALES = ("q_scale", "k_scale", "v_scale")
_FORWARD = ("q", "k", "v", *_CONSTANTS, *_SCALES, "rng_state")
_BACKWARD = ("dout", "q", "k", "v", "out", "lse", *_CONSTANTS, "dlse", "rng_state")
_WHERE = ("cu_seqlens_q", "cu_seqlens_k", "seqlens_k", "block_table")
_PACKED = ("q", "k", "v", *_WHERE, "alibi_slopes", "sinks", *_SCALES)
_PACKED_BACKWARD = ("dout", "q", "k", "v", "out", "lse", *_WHERE[:-1], "alibi_slopes", "sinks", "dlse")
_FP8 = {torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn, torch.float8_e4m3fnuz: ml_dtypes.float8_e4m3fnuz}
_WIDE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_IN_LAYOUT = {"q", "k", "v", "out", "dout"}
KINDS = ("cpu", "cuda")  # device types; PyTorch also calls AMD's "cuda"
# For schemas; tensors are positional, as `torch.library.register_autograd` requires.
_OPTIONS = "bool causal=False, SymInt[]? window=None, float? softcap=None, float? scale=None"


_DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(attention).parameters.items()}
_MISMATCH = re.compile(r"Expected a value of type '(.+)' for argument '(\w+)' but instead found type '(.+)'")


def run_operator(operator: Any, *tensors: Any, **options: Any) -> Any:
    """Call an operator; arguments that its schema rejects raise the library's error.

    Raises:
        ConfigError: With the argument's name.
    """
    if torch.compiler.is_compiling():
        return operator(*tensors, **options)
    plain = operator is OPERATORS.attention.default and isinstance(tensors[0], torch.Tensor) and _may_be_kept(tensors)
    if plain and is_undisturbed(tensors):
        if (known := _again(tensors, options)) is not None:
            return known
        if _learns(tensors):
            return _Learning.apply(*_all_tensors(tensors), options, None)
    try:
        return operator(*tensors, **options)
    except (RuntimeError, TypeError, OverflowError) as error:
        for name, value in options.items():
            if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
                raise ConfigError(f"{name} is {value}: it must fit in 64 bits") from None
        if (found := _MISMATCH.search(str(error))) is None:
            raise
        wanted, name, kind = found.groups()
        raise ConfigError(f"{name} is of type {kind}: {wanted} is needed") from None


def _disturbances() -> tuple[Callable[[], Any], ...] | None:
    """Return PyTorch's queries for modes, transforms, traces and profiles; None if this PyTorch differs."""
    try:
        return attrgetter(
            "_len_torch_dispatch_stack", "_len_torch_function_stack", "_get_tracing_state",
            "_functorch.peek_interpreter_stack", "_autograd._profiler_enabled",
        )(_C)  # fmt: skip
    except AttributeError:
        return None


_DISTURBANCES = _disturbances()


def is_undisturbed(tensors: Sequence[Any]) -> bool:
    """Return whether PyTorch would only call the operator's kernel."""
    if _DISTURBANCES is None or forward_ad._current_level >= 0:  # noqa: SLF001 - tangents are possible
        return False
    for disturbs in _DISTURBANCES:
        if disturbs():
            return False
    try:
        for tensor in tensors:  # a generator costs a call per element
            if tensor is not None and tensor.is_neg():
                return False
    except AttributeError:  # not a tensor: the operator rejects it
        return False
    return True


def _layout(query: Tensor) -> str:
    """Return the memory order of a call's outputs: that of the query [B, H, S, D]."""
    return "BSHD" if query.stride(1) < query.stride(2) else "BHSD"


def _turned(tensor: Tensor, layout: str) -> Tensor:
    """View [B, H, S, D] in a layout, or back."""
    return tensor.transpose(1, 2) if layout == "BSHD" else tensor


def _empty(query: Tensor, heads: int, tokens: int, width: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return an empty [B, heads, tokens, width] tensor with the outputs' memory layout."""
    batch, layout = query.shape[0], _layout(query)
    shape = (batch, tokens, heads, width) if layout == "BSHD" else (batch, heads, tokens, width)
    return _turned(query.new_empty(shape, dtype=dtype), layout)


def _check_devices(*tensors: Tensor | None) -> None:
    """Reject tensors on two devices, possibly "meta": results for fake tensors have no content."""
    devices = {str(tensor.device) for tensor in tensors if tensor is not None}
    if len(devices) > 1:
        raise ConfigError(f"the tensors are on several devices: {', '.join(sorted(devices))}")


def _fake_attention(
    query: Tensor, key: Tensor, value: Tensor, *others: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor]:
    _check_devices(query, key, value, *others[: len(_FORWARD) - 4])
    shadows = _shadows(_FORWARD, (query, key, value, *others))
    if options.pop("top_left", False):
        _check_alignment(shadows or {}, options)
    if shadows is not None:
        _seed(shadows, options)
        describe(**shadows, **_hints(options), layout="BHSD", readable=False)
    batch, heads, tokens, _ = query.shape
    lse = query.new_empty((batch, heads, tokens), dtype=torch.float32)
    return _empty(query, heads, tokens, value.shape[3], _out_dtype(query, options)), lse


def _out_dtype(query: Tensor, options: dict[str, Any]) -> torch.dtype:
    return (options.get("out_dtype") or torch.bfloat16) if query.dtype in _FP8 else query.dtype


def _fake_packed(
    query: Tensor, key: Tensor, value: Tensor, *others: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor]:
    _check_devices(query, key, value, *others)
    shadows = _shadows(_PACKED, (query, key, value, *others))
    if shadows is not None:
        describe_varlen(**shadows, **_hints(options), readable=False)
    tokens, heads, _ = query.shape
    out = query.new_empty((tokens, heads, value.shape[-1]), dtype=_out_dtype(query, options))
    return out, query.new_empty((heads, tokens), dtype=torch.float32)


def _fake_packed_backward(
    dout: Tensor, query: Tensor, key: Tensor, value: Tensor, *others: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    _check_devices(dout, query, key, value, *others)
    shadows = _shadows(_PACKED_BACKWARD, (dout, query, key, value, *others))
    if shadows is not None:
        describe_varlen_backward(**shadows, **_hints(options), readable=False)
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _fake_backward(
    dout: Tensor, query: Tensor, key: Tensor, value: Tensor, *others: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    _check_devices(dout, query, key, value, *others[: len(_BACKWARD) - 5])
    shadows = _shadows(_BACKWARD, (dout, query, key, value, *others))
    if options.pop("top_left", False):
        _check_alignment(shadows or {}, options)
    if shadows is not None:
        _seed(shadows, options)
        describe_backward(**shadows, **_hints(options), layout="BHSD", readable=False)
    dq, dk, dv = (_empty(query, *x.shape[1:]) for x in (query, key, value))
    return dq, dk, dv


def _shadows(names: Sequence[str], tensors: Sequence[Tensor | None]) -> dict[str, Any] | None:
    """Return arrays with fake tensors' shapes and dtypes but no memory; None if a size is not known yet.

    A dynamic size uses its current value, so that checking it adds no guard for later sizes, which the real kernel
    checks.
    """
    shadows: dict[str, Any] = {}
    for name, tensor in zip(names, tensors, strict=False):
        if tensor is not None:
            shape = [_hint(size) for size in tensor.shape]
            if None in shape:
                return None
            _check_dtype(name, tensor)
            dtype = numpy_dtype(_dtype_name(tensor.dtype))
            if tensor.device.type != "cuda":  # readable tensors of other dtypes are converted
                dtype = np.dtype(np.int32) if name in _WHERE and dtype.kind in "iu" else dtype
                dtype = np.dtype(np.float32) if name == "mask" and tensor.dtype in _WIDE else dtype
            shadows[name] = np.broadcast_to(np.empty((), dtype), shape)
    return shadows


def _hint(value: Any) -> Any:
    """Return a symbolic number's value in the traced example; other values unchanged."""
    return value.node.hint if isinstance(value, torch.SymInt | torch.SymFloat) else value


def _hints(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of `describe`."""
    known = {name: _hint(value) for name, value in options.items()}
    if known.get("window") is not None:
        known["window"] = [_hint(side) for side in known["window"]]
    if known.get("out_dtype") is not None:
        known["out_dtype"] = _dtype_name(known["out_dtype"])
    return known


def drawn_state(dropout_p: float) -> Tensor | None:
    """Return a mask's seed and offset from PyTorch's CPU generator; None without dropout.

    They stay on the CPU, even with tensors on a GPU, so nothing waits for the GPU.
    """
    return torch.randint((1 << 63) - 1, (2,), dtype=torch.int64, device="cpu") if dropout_p else None


def _seed(given: dict[str, Any], options: dict[str, Any]) -> None:
    """Replace the tensor of seed and offset with their values."""
    state = given.pop("rng_state", None)
    if state is None:
        if probability := options.pop("dropout_p", 0.0):
            raise ConfigError(f"dropout_p is {probability}: rng_state must hold seed and offset, int64 [2]")
        return  # absent options are not checked, which saves a tenth of a small call
    if tuple(state.shape) != (2,) or str(state.dtype).removeprefix("torch.") != "int64":
        raise ConfigError(f"rng_state has shape {list(state.shape)} and dtype {state.dtype}: int64 [2] is needed")
    given["dropout_seed"], given["dropout_offset"] = (int(word) & (1 << 64) - 1 for word in state)


def _check_alignment(given: dict[str, Any], options: dict[str, Any]) -> None:
    """Reject ``top_left`` with options measured from the other diagonal."""
    if not options.get("causal") or options.get("window") or "alibi_slopes" in given:
        raise ConfigError("top_left aligns causal, which must be True, and neither a window nor ALiBi slopes")


def _align(given: dict[str, Any], options: dict[str, Any], layout: str) -> None:
    """Express ``top_left`` as a window, or by limiting the keys: our diagonal is aligned to the last key.

    Args:
        given: The tensors' arrays in a layout; replaced by those of the visible keys.
        options: Options of `rocattn.attention`, changed accordingly.
        layout: "BHSD" or "BSHD".
    """
    _check_alignment(given, options)
    axis = layout.index("S")
    rows, keys = given["q"].shape[axis], given["k"].shape[axis]
    if rows > keys:
        options |= {"causal": False, "window": (-1, rows - keys)}
    elif rows < keys == given["v"].shape[axis]:  # no row sees later keys
        seen = (*(slice(None),) * axis, slice(rows))
        given |= {name: given[name][seen] for name in ("k", "v")}
        if "mask" in given and given["mask"].shape[-1] == keys:
            given["mask"] = given["mask"][..., :rows]


def _arguments(names: Sequence[str], tensors: Sequence[Tensor | None], layout: str) -> dict[str, Any]:
    """Return tensors [B, H, S, D] as arguments of `rocattn.attention` in a layout, by name."""
    given: dict[str, Any] = {name: None for name in ("q", "k", "v", "cu_seqlens_q") if name in names}  # rejected below
    for name, tensor in zip(names, tensors, strict=False):  # trailing None may be missing
        if tensor is not None:
            turned = _turned(tensor, layout) if name in _IN_LAYOUT else tensor
            given[name] = _array(name, turned) if tensor.device.type == "cpu" else _on_gpu(name, turned.detach())
    return given


def _array(name: str, tensor: Tensor) -> Array:
    """Return a CPU tensor's memory as an array."""
    tensor = tensor.detach()
    if tensor.dtype in _FP8:
        stored: Array = tensor.view(torch.uint8).numpy()
        return stored.view(_FP8[tensor.dtype])
    if tensor.dtype == torch.bfloat16:
        array: Array = tensor.view(torch.int16).numpy()  # PyTorch and ml_dtypes have different bfloat16 types
        return array.view(ml_dtypes.bfloat16)
    try:
        array = tensor.numpy()
    except (TypeError, RuntimeError) as error:  # not checked before, since it almost never happens
        _check_dtype(name, tensor)
        raise ConfigError(f"{name} has no plain memory: {str(error).splitlines()[0]}") from None
    return array


def _check_dtype(name: str, tensor: Tensor) -> None:
    """Reject floating dtypes that neither numpy nor rocattn supports."""
    if tensor.is_floating_point() and tensor.dtype not in {*_WIDE, *_FP8}:
        names = ", ".join(_dtype_name(dtype) for dtype in (*_WIDE, *_FP8))
        raise ConfigError(f"{name} has dtype {_dtype_name(tensor.dtype)}: use one of {names}")


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _on_gpu(name: str, tensor: Tensor) -> Tensor:
    """Return a tensor that the gpu backend's kernels can read, copying only if necessary."""
    if name in {"alibi_slopes", "sinks", "lse", "dlse", *_SCALES}:
        return tensor.float().contiguous()
    return tensor if name == "mask" or tensor.stride(-1) == 1 else tensor.contiguous()


def _tensor(result: Any) -> Tensor:
    """Return a result of `rocattn.attention` as a tensor over the same memory."""
    if isinstance(result, torch.Tensor):
        return result
    tensor = torch.from_numpy(result.view("int16") if result.dtype == ml_dtypes.bfloat16 else result)
    tensor = tensor.view(torch.bfloat16) if result.dtype == ml_dtypes.bfloat16 else tensor
    return tensor if result.size else tensor.new_empty(tensor.shape)  # numpy's strides would be 0


def _attention(*tensors: Any, **options: Any) -> tuple[Tensor, Tensor]:
    on_cpu, may_be_kept = tensors[0].device.type == "cpu", _may_be_kept(tensors)
    if may_be_kept and (found := _again(tensors, options, detached=True, only_kept=on_cpu)) is not None:
        return found
    layout, asked = _layout(tensors[0]), dict(options)
    given = _prepared(tensors, options, layout)
    options |= {"layout": layout, "return_lse": True}
    with threads_from_caller(torch.get_num_threads()):
        out, lse = attention(**given, **options)
        if on_cpu and may_be_kept:
            _keep_as_arrays(tensors, asked, given, options)
    return _turned(_tensor(out), layout), _tensor(lse)


def _keep_as_arrays(
    tensors: Sequence[Any], asked: dict[str, Any], given: dict[str, Any], options: dict[str, Any]
) -> None:
    """Make an operator's calls on CPU tensors reuse those of `rocattn.attention` with the same memory.

    Args:
        tensors: The operator's tensors.
        asked: The operator's options.
        given: The arrays over the tensors.
        options: Options of `rocattn.attention`.
    """
    arrays = tuple(given.get(name) for name in ATTENTION.tensors)
    like = ATTENTION, arrays, tuple(options.get(name, _DEFAULTS[name]) for name in ATTENTION.options)
    layout = options["layout"]
    keep_as(
        _OPERATOR, _all_tensors(tensors)[:-1], _values(**asked), like,
        lambda call: call.with_output(_turned_output(call.outputs["out"], layout)), detached=True,
    )  # fmt: skip


def _prepared(tensors: Sequence[Tensor | None], options: dict[str, Any], layout: str) -> dict[str, Any]:
    """Return an operator's tensors as arguments of `rocattn.attention`, and change its options accordingly."""
    given = _arguments(_FORWARD, tensors, layout)
    _seed(given, options)
    _name_dtype(options)
    if options.get("window") is not None:
        options["window"] = tuple(options["window"])
    if options.pop("top_left", False):
        _align(given, options, layout)
    return given


def _again(
    tensors: Sequence[Any], options: dict[str, Any], *, detached: bool = False, only_kept: bool = True
) -> tuple[Tensor, Tensor] | None:
    """Compute an operator's call without dropout on tensors [B, H, S, D]; see `computed`."""
    given = _all_tensors(tensors)
    if given[-1] is not None:  # dropout's state
        return None
    found = computed(_OPERATOR, given[:-1], _values(**options), detached=detached, only_kept=only_kept)
    return cast("tuple[Tensor, Tensor] | None", found)


def _may_be_kept(tensors: Sequence[Any]) -> bool:
    return tensors[0].is_cuda or only_first(tensors)


def _all_tensors(tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Return the tensors of `attention`, with None for missing trailing ones."""
    return (*tensors, *(None,) * (len(_FORWARD) - len(tensors)))


def _values(
    causal: Any = False, window: Any = None, softcap: Any = None, scale: Any = None, top_left: Any = False,
    out_dtype: Any = None, dropout_p: Any = 0.0,
) -> tuple[Any, ...]:  # fmt: skip
    """Return an operator call's options as those of `_OPERATOR`."""
    window = tuple(window) if window.__class__ is list else window
    kind = None if out_dtype is None else _dtype_name(out_dtype)
    return causal, window, softcap, scale, top_left, kind, dropout_p


def _first_on_gpu(
    tensors: dict[str, Any], options: dict[str, Any], backend: Any, _: Any
) -> tuple[Steady | None, tuple[Any, ...]]:
    """Compute `rocattn.attention` on other views of the tensors, and cache it with other views of the outputs."""
    options = {name: value for name, value in options.items() if value is not None}
    layout = _layout(tensors["q"])
    given = _prepared(tuple(tensors.values()), options, layout)
    plain = {name: given.get(name) for name in ATTENTION.tensors}
    assert ATTENTION.first is not None
    steady, (out, lse) = ATTENTION.first(plain, options | {"layout": layout, "return_lse": True}, backend, {})
    if steady is None or any(x is not None and x.data_ptr() != given[name].data_ptr() for name, x in tensors.items()):
        return None, (_turned(out, layout), lse)  # copied tensors will be copied again
    return steady.with_output(_turned_output(steady.outputs["out"], layout)), (_turned(out, layout), lse)


def _turned_output(out: Output, layout: str) -> Output:
    """Return [B, H, S, D] in a memory layout."""
    if layout == "BHSD":
        return out
    (b, s, h, d), (of_b, of_s, of_h, _), dtype = out
    return Output((b, h, s, d), (of_b, of_h, of_s, 1), dtype)


_OPERATOR = Function(
    _FORWARD[:-1], ("causal", "window", "softcap", "scale", "top_left", "out_dtype", "dropout_p"), _first_on_gpu
)


def sdpa_again(*call: Any) -> Tensor | None:
    """Return the output of a call of a kind registered with `sdpa_is_operator`; None for other kinds.

    Args:
        call: query, key, value, attn_mask; is_causal, None for a window, scale, enable_gqa and dropout_p.
    """
    tensors = call[:4]
    kind = "cuda" if tensors[0].is_cuda else "cpu"
    if not _may_be_kept(tensors) or torch.is_autocast_enabled(kind) or not is_undisturbed(tensors):
        return None
    found = computed(_SDPA, tensors, call[4:], only_kept=True)
    return None if found is None else found[0]


def sdpa_is_operator(*call: Any) -> None:
    """Register a call, with the arguments of `sdpa_again`, as an operator call with the same tensors."""
    is_causal, _, scale, *_ = call[4:]
    like = _OPERATOR, (*call[:4], *(None,) * 5), _values(causal=is_causal, top_left=is_causal, scale=scale)
    keep_as(_SDPA, call[:4], call[4:], like, lambda call: call.without_lse())


_SDPA = Function(("q", "k", "v", "mask"), ("causal", "window", "scale", "enable_gqa", "dropout_p"))


def _name_dtype(options: dict[str, Any]) -> None:
    if options.get("out_dtype") is not None:
        options["out_dtype"] = _dtype_name(options["out_dtype"])


def _packed(*tensors: Any, **options: Any) -> tuple[Tensor, Tensor]:
    given = _arguments(_PACKED, tensors, "")
    _name_dtype(options)
    with threads_from_caller(torch.get_num_threads()):
        out, lse = attention_varlen(**given, **options, return_lse=True)
    return _tensor(out), _tensor(lse)


def _packed_backward(*tensors: Any, **options: Any) -> tuple[Tensor, ...]:
    given = _arguments(_PACKED_BACKWARD, tensors, "")
    with threads_from_caller(torch.get_num_threads()):
        gradients = attention_varlen_backward(**given, **options)
    return tuple(map(_tensor, gradients))


def _attention_backward(*tensors: Any, **options: Any) -> tuple[Tensor, ...]:
    layout = _layout(tensors[1])
    given = _arguments(_BACKWARD, tensors, layout)
    _seed(given, options)
    if options.pop("top_left", False):
        _align(given, options, layout)
    with threads_from_caller(torch.get_num_threads()):
        gradients = attention_backward(**given, **options, layout=layout)
    found = [_turned(_tensor(gradient), layout) for gradient in gradients]
    return tuple(_with_unseen(*pair) for pair in zip(found, tensors[1:4], strict=True))


def _with_unseen(gradient: Tensor, of: Tensor) -> Tensor:
    """Return the gradient of all keys, including invisible ones that `_align` left out."""
    seen, keys = gradient.shape[2], of.shape[2]
    if seen == keys:
        return gradient
    whole = _empty(gradient, gradient.shape[1], keys, gradient.shape[3])
    whole[:, :, :seen] = gradient
    whole[:, :, seen:] = 0
    return whole


def _refuse_constants(ctx: Any, names: Sequence[str]) -> None:
    for name, needed in zip(names, ctx.needs_input_grad, strict=False):
        if needed and name not in {"q", "k", "v"}:
            raise ConfigError(
                f"{name} requires a gradient, which is not computed: detach it, or use PyTorch's attention"
            )


def _save(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
    _refuse_constants(ctx, _FORWARD)
    query, key, value, *constants = inputs[: -len(_SCALES) - 1]  # 8-bit keys, which have scales, have no gradients
    out, lse = output
    ctx.set_materialize_grads(False)  # a loss only on out must not cost as much as one on the LSE
    ctx.save_for_backward(query, key, value, out, lse, *constants, inputs[-1])
    ctx.options = {name: value for name, value in keyword_only_inputs.items() if name != "out_dtype"}


def _save_packed(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
    _refuse_constants(ctx, _PACKED)
    query, key, value, *constants = inputs[: -len(_SCALES)]
    ctx.paged = constants.pop(_WHERE.index("block_table")) is not None
    ctx.set_materialize_grads(False)  # as above
    ctx.save_for_backward(query, key, value, *output, *constants)
    ctx.options = {name: keyword_only_inputs.get(name) for name in ("window", "softcap", "scale")}
    ctx.options["causal"] = keyword_only_inputs.get("causal", False)


def _differentiate(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    *saved, state = ctx.saved_tensors  # from query to sinks
    dout = torch.zeros_like(saved[3]) if dout is None else dout
    gradients = OPERATORS.attention_backward.default(dout, *saved, dlse, state, **ctx.options)
    return (*gradients, *(None,) * (len(_FORWARD) - 3))


def _differentiate_packed(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    if ctx.paged:
        raise ConfigError("keys and values in pages have no gradients: pack them, and pass cu_seqlens_k")
    saved = ctx.saved_tensors
    dout = torch.zeros_like(saved[3]) if dout is None else dout
    gradients = OPERATORS.attention_varlen_backward.default(dout, *saved, dlse, **ctx.options)
    return (*gradients, *(None,) * (len(_PACKED) - 3))


class _Learning(torch.autograd.Function):  # type: ignore[misc]
    """The operator with gradients. `torch.library.register_autograd` costs 0.1 ms per call for its defaults."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        *tensors, options, keys = inputs
        found = _below_autograd(keys, tensors, options)
        _save(ctx, tuple(tensors), options, found)
        return found

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor | None, ...]:
        return (*_differentiate(ctx, *upstream), None, None)


def _below_autograd(keys: Any, tensors: Sequence[Any], options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Compute the operator below autograd.

    Args:
        keys: The dispatcher's keys; None for a call that bypassed the dispatcher.
        tensors: The operator's tensors.
        options: The given options.
    """
    if _may_be_kept(tensors) and is_undisturbed(tensors):
        found = _again(tensors, options, detached=True)
        if found is not None:
            return found
    operator = OPERATORS.attention.default
    with _C._AutoDispatchBelowAutograd():  # noqa: SLF001 - here and below: like PyTorch's own registration
        if keys is None:
            return cast("tuple[Tensor, Tensor]", operator(*tensors, **options))
        keys &= _C._after_autograd_keyset  # noqa: SLF001
        return cast("tuple[Tensor, Tensor]", operator.redispatch(keys, *tensors, **options))


def _above_autograd(keys: Any, *tensors: Any, **options: Any) -> tuple[Tensor, Tensor]:
    if _learns(tensors):
        return cast("tuple[Tensor, Tensor]", _Learning.apply(*_all_tensors(tensors), options, keys))
    return _below_autograd(keys, tensors, options)


def _learns(tensors: Sequence[Any]) -> bool:
    # A generator costs a call per element.
    return torch.is_grad_enabled() and any([x is not None and x.requires_grad for x in tensors])  # noqa: C419


def _refuse_second(ctx: Any, *gradients: Tensor) -> None:
    del ctx, gradients
    raise NotImplementedError("rocattn::attention has no second derivative: use PyTorch's attention for that")


_LIBRARY = torch.library.Library("rocattn", "FRAGMENT")  # deleting it removes its registrations


def _register() -> None:
    """Register the operators with PyTorch."""
    three, gradients = "Tensor query, Tensor key, Tensor value", "(Tensor dq, Tensor dk, Tensor dv)"
    upstream = f"Tensor dout, {three}, Tensor out, Tensor lse"
    scales = "Tensor? q_scale=None, Tensor? k_scale=None, Tensor? v_scale=None"
    where = "Tensor cu_seqlens_q, Tensor? cu_seqlens_k=None, Tensor? seqlens_k=None"
    per_head = "Tensor? alibi_slopes=None, Tensor? sinks=None"
    longest = "SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None"
    last = f"bool top_left=False, {_OPTIONS}, float dropout_p=0.0"
    state = "Tensor? rng_state=None"
    wide, results = "ScalarType? out_dtype=None", "(Tensor out, Tensor lse)"
    pages = f"{where}, Tensor? block_table=None"
    for name, takes, gives, kernel, fake in (
        ("attention", f"{three}, Tensor? mask=None, {per_head}, {scales}, {state}, *, {last}, {wide}", results,
         _attention, _fake_attention),
        ("attention_backward", f"{upstream}, Tensor? mask=None, {per_head}, Tensor? dlse=None, {state}, *, {last}",
         gradients, _attention_backward, _fake_backward),
        ("attention_varlen", f"{three}, {pages}, {per_head}, {scales}, *, {longest}, {_OPTIONS}, {wide}", results,
         _packed, _fake_packed),
        ("attention_varlen_backward", f"{upstream}, {where}, {per_head}, Tensor? dlse=None, *, {_OPTIONS}", gradients,
         _packed_backward, _fake_packed_backward),
    ):  # fmt: skip
        torch.library.define(f"rocattn::{name}", f"({takes}) -> {gives}")
        torch.library.impl(f"rocattn::{name}", KINDS, kernel)
        torch.library.register_fake(f"rocattn::{name}", fake)
        if name.endswith("_backward"):
            torch.library.register_autograd(f"rocattn::{name}", _refuse_second)
    _LIBRARY.impl("attention", _above_autograd, "Autograd", with_keyset=True)
    torch.library.register_autograd("rocattn::attention_varlen", _differentiate_packed, setup_context=_save_packed)


_register()
OPERATORS = torch.ops.rocattn
