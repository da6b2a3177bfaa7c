"""Turn a problem into kernel launches: `plan` is pure and needs neither GPU nor compiler.

It describes the caller's arrays, gets launches from the kernel families (flash attention if supported, else the
standard path; the backward pass), and names each launch's machine code by the content it is made from.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from rocattn.backend import YES, Support
from rocattn.config import DTYPE_BYTES, FP8_DTYPES, AttentionConfig
from rocattn.errors import ConfigError
from rocattn.gpu.arch import default_compute_units, device_target
from rocattn.gpu.arguments import MAX_GRID_YZ, size_problem
from rocattn.gpu.build import code_object_name
from rocattn.gpu.launch import Buffer, BufferArg, KernelLaunch, LaunchPlan, ScalarArg, WorkspaceArg

if TYPE_CHECKING:
    from collections.abc import Mapping

_GRID_LIMIT = 1 << 32  # hipModuleLaunchKernel: threads along a dimension must stay below it
_COUNT_LIMIT = 1 << 31  # loops over 32-bit counts step past their end
ELEMENT_BYTES = DTYPE_BYTES | dict.fromkeys(FP8_DTYPES, 1) | {"bool": 1, "int32": 4}
"""Dtypes allowed in a plan's buffers."""
Role = Literal["input", "output"]
Path = Literal["flash", "standard"]


def plan(
    config: AttentionConfig,
    arch: str,
    *,
    strides: Mapping[str, tuple[int, ...]] | None = None,
    mask_dtype: str | None = None,
    use_flash_attention: bool = True,
    compute_units: int | None = None,
) -> LaunchPlan:
    """Plan the launches of one problem on one architecture.

    Args:
        config: The problem; its direction selects forward or backward.
        arch: Target, with or without features: "gfx1100", "gfx942:sramecc+:xnack-".
        strides: Strides in elements of the [B, H, S, D] views by buffer name, if they differ from contiguous arrays
            in the config's layout; the last must be 1.
        mask_dtype: Dtype of an additive mask: q's (None) or "float32".
        use_flash_attention: False forces the standard path; backward has only one path.
        compute_units: The device's, as its runtime counts them; None for those of the architecture's largest product.

    Raises:
        ArchError: When the architecture has no kernels.
        ConfigError: When the kernels cannot compute the problem.
    """
    target = device_target(arch)
    answer = supports(config)
    if not answer:
        raise ConfigError(f"no GPU kernels for {config.label}: {answer.reason}")
    buffers = describe_buffers(config, strides or {}, mask_dtype)
    units = compute_units or default_compute_units(target)
    path, reason, launches = _launches(config, target, buffers, units, use_flash_attention=use_flash_attention)
    # An empty grid is an error in HIP; its output would also be empty.
    launches = tuple(_named(launch, target) for launch in launches if 0 not in launch.grid)
    for launch in launches:
        _check_size(launch, config)
    return LaunchPlan(target, config.to_dict(), path, reason, buffers, launches, _workspaces(launches), units)


def _launches(
    config: AttentionConfig, arch: str, buffers: dict[str, Buffer], units: int, *, use_flash_attention: bool
) -> tuple[Path, str, tuple[KernelLaunch, ...]]:
    """Return the chosen path, the reason against the flash path, and the kernel families' launches."""
    if config.direction == "backward":
        from rocattn.gpu.backward import backward_launches

        return "flash", "", backward_launches(config, arch, buffers)
    reason = "switched off"
    only_flash = config.varlen is not None or config.kv_dtype is not None or config.dropout_p > 0
    if use_flash_attention or only_flash:
        from rocattn.gpu.flash import can_use_flash_attention, flash_launches

        answer = can_use_flash_attention(config, arch, buffers)
        if answer:
            return "flash", "", flash_launches(config, arch, buffers, units)
        reason = answer.reason
        if only_flash:
            raise ConfigError(f"no GPU kernels for {config.label}: {reason}")
    from rocattn.gpu.standard import standard_launches

    return "standard", reason, standard_launches(config, arch, buffers)


def supports(config: AttentionConfig) -> Support:
    """Return whether there are GPU kernels for a problem, on either path."""
    if config.dtype == "float64":
        return Support(ok=False, reason="float64 has no GPU kernels: use float32, or the cpu backend")
    if reason := size_problem(config):
        return Support(ok=False, reason=reason)
    if config.direction == "backward":
        from rocattn.gpu.backward import can_use_backward

        return can_use_backward(config)
    if config.kv_dtype is not None or config.dropout_p:
        from rocattn.gpu.flash import can_use_flash_attention

        return can_use_flash_attention(config)
    return YES  # the standard path supports what the flash kernels do not


def describe_buffers(
    config: AttentionConfig, strides: Mapping[str, tuple[int, ...]], mask_dtype: str | None = None
) -> dict[str, Buffer]:
    """Return all arrays that a caller of this problem passes.

    Args:
        config: The problem.
        strides: As in `plan`.
        mask_dtype: As in `plan`.

    Raises:
        ConfigError: When strides name no buffer, or a last stride is not 1.
    """
    buffers: dict[str, Buffer] = {}
    c, dtype = config, config.dtype
    batch, seq_q, batch_k, seq_k = _stored_rows(c)
    q, out = (batch, c.num_heads, seq_q, c.head_dim), (batch, c.num_heads, seq_q, c.head_dim_v)
    k, v = (batch_k, c.num_kv_heads, seq_k, c.head_dim), (batch_k, c.num_kv_heads, seq_k, c.head_dim_v)
    backward = c.direction == "backward"
    heads: list[tuple[str, tuple[int, int, int, int], Role]] = [("q", q, "input"), ("k", k, "input"), ("v", v, "input")]
    heads += [("out", out, "input" if backward else "output")]
    if backward:
        heads += [("dout", out, "input"), ("dq", q, "output"), ("dk", k, "output"), ("dv", v, "output")]
    for name, shape, role in heads:
        stored = {"q": c.q_dtype, "k": c.kv_dtype, "v": c.kv_dtype}.get(name) or dtype
        buffers[name] = Buffer(shape, layout_strides(shape, c.layout), stored, role)
    rows = (batch, c.num_heads, seq_q)
    if backward or c.return_lse:
        buffers["lse"] = Buffer(rows, contiguous(rows), "float32", "input" if backward else "output")
    if c.mask_shape is not None:
        kind = "bool" if c.mask == "bool" else mask_dtype or dtype
        if kind not in {"bool", dtype, "float32"}:
            raise ConfigError(f"the mask's dtype is {kind}: use bool, {dtype} or float32")
        buffers["mask"] = Buffer(c.mask_shape, broadcast_strides(c.mask_shape), kind, "input")
    if c.alibi:
        buffers["alibi_slopes"] = Buffer((c.batch, c.num_heads), (c.num_heads, 1), "float32", "input")
    if c.sinks:
        buffers["sinks"] = Buffer((c.num_heads,), (1,), "float32", "input")
    for name, given in (("q_scale", c.q_scale), ("k_scale", c.k_scale), ("v_scale", c.v_scale)):
        if given:
            buffers[name] = Buffer((c.batch, c.num_kv_heads), (c.num_kv_heads, 1), "float32", "input")
    buffers |= _whole_number_buffers(c)
    for name, steps in strides.items():
        if name not in buffers:
            raise ConfigError(f"strides are given for {name!r}: this problem has {', '.join(buffers)}")
        buffers[name] = replace(buffers[name], strides=_checked(name, buffers[name], tuple(steps)))
    return buffers


def _stored_rows(config: AttentionConfig) -> tuple[int, int, int, int]:
    """Return extents 0 and 2 of q as [B, H, S, D], then of k: one batch of all rows, or the pages."""
    varlen = config.varlen
    if varlen is None:
        return config.batch, config.seq_q, config.batch, config.seq_k
    keys = (varlen.num_pages, varlen.page_size) if varlen.paged else (1, varlen.total_k)
    return 1, varlen.total_q, *keys


def _whole_number_buffers(config: AttentionConfig) -> dict[str, Buffer]:
    """Return dropout's key, and the arrays that locate sequences of different lengths, if any."""
    shapes: dict[str, tuple[int, ...]] = {"dropout_key": (2,)} if config.dropout_p else {}
    if (varlen := config.varlen) is not None:
        shapes["cu_seqlens_q"] = (config.batch + 1,)
        if not varlen.paged:
            shapes["cu_seqlens_k"] = (config.batch + 1,)
        if varlen.paged or varlen.counts_keys:
            shapes["seqlens_k"] = (config.batch,)
        if varlen.paged:
            shapes["block_table"] = (config.batch, varlen.max_pages)
    return {name: Buffer(shape, contiguous(shape), "int32", "input") for name, shape in shapes.items()}


def layout_strides(shape: tuple[int, int, int, int], layout: str) -> tuple[int, int, int, int]:
    """Return the strides in elements of a [B, H, S, D] view of a contiguous array in a layout."""
    _, heads, seq, dim = shape
    if layout == "BHSD":
        return heads * seq * dim, seq * dim, dim, 1
    return seq * heads * dim, dim, heads * dim, 1


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous array in elements."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def broadcast_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous array, 0 along broadcast axes of size 1."""
    return tuple(0 if n == 1 else step for n, step in zip(shape, contiguous(shape), strict=True))


def buffer_bytes(buffer: Buffer) -> int:
    """Return the bytes from a buffer's first element to the end of its last, strides included."""
    if 0 in buffer.shape:
        return 0
    last = sum((n - 1) * step for n, step in zip(buffer.shape, buffer.strides, strict=True))
    return (last + 1) * ELEMENT_BYTES[buffer.dtype]


def used_buffers(prepared: LaunchPlan) -> set[str]:
    """Return the names of the buffers used by any launch."""
    return {arg.name for launch in prepared.launches for arg in launch.args if isinstance(arg, BufferArg)}


def _checked(name: str, buffer: Buffer, strides: tuple[int, ...]) -> tuple[int, ...]:
    if len(strides) != len(buffer.shape):
        raise ConfigError(f"{name} has {len(buffer.shape)} axes, not {len(strides)} strides")
    broadcast = name in {"mask", "q_scale", "k_scale", "v_scale"}
    needed = not broadcast and buffer.shape[-1] > 1
    if needed and strides[-1] != 1:
        raise ConfigError(f"{name}'s last axis has stride {strides[-1]}: the kernels need it contiguous: copy it")
    if broadcast:  # an axis of size 1 is broadcast: its stride is meaningless
        return tuple(0 if n == 1 else step for n, step in zip(buffer.shape, strides, strict=True))
    if name == "block_table":
        return (strides[0], 1)
    if name in {"lse", "alibi_slopes", "sinks", "cu_seqlens_q", "cu_seqlens_k", "seqlens_k"}:
        wanted = contiguous(buffer.shape)
        if any(n > 1 and have != want for n, have, want in zip(buffer.shape, strides, wanted, strict=True)):
            raise ConfigError(f"{name} must be a contiguous array of shape {list(buffer.shape)}: copy it")
        return wanted
    return (*strides[:-1], 1)


def _named(launch: KernelLaunch, arch: str) -> KernelLaunch:
    return replace(launch, code_object=code_object_name(launch.source, arch, launch.defines))


def _check_size(launch: KernelLaunch, config: AttentionConfig) -> None:
    threads = (n * m for n, m in zip(launch.grid, launch.block, strict=True))
    if max(threads) >= _GRID_LIMIT or max(launch.grid[1:]) > MAX_GRID_YZ:
        raise ConfigError(f"{config.label} is too large: {launch.kernel} would need a grid of {launch.grid} blocks")
    for arg in launch.args:
        if isinstance(arg, ScalarArg) and arg.type == "u32" and float(arg.value) >= _COUNT_LIMIT:
            raise ConfigError(
                f"{config.label} is too large: {launch.kernel} counts up to 2^31 {arg.name}, not {arg.value}"
            )


def _workspaces(launches: tuple[KernelLaunch, ...]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for launch in launches:
        for arg in launch.args:
            if isinstance(arg, WorkspaceArg):
                sizes[arg.name] = max(arg.bytes, sizes.get(arg.name, 0))
    return sizes
