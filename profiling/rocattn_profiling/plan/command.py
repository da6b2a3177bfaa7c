"""``rocattn plan``: which kernels one problem launches on an architecture, and with what; no GPU is needed."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from rocattn.sources import require_own_checkout
from rocattn_profiling.base.console import add_common, emit_json, print_table
from rocattn_profiling.base.status import OK, CommandError
from rocattn_profiling.workloads.options import BAND, SIZES, STORAGE, add_sizes, add_storage, config_of, given, positive

if TYPE_CHECKING:
    from rocattn.gpu.launch import Arg, LaunchPlan


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = (
        "Print the launches of one attention problem: kernels, grids in blocks, blocks in threads, LDS and arguments "
        "in kernel order. The JSON is all that is needed to run the code objects of `rocattn kernels build`."
    )
    parser.add_argument("--arch", required=True, metavar="GFX", help="GPU architecture: gfx90a, gfx942, gfx1100, ...")
    parser.add_argument(
        "--compute-units", type=positive, metavar="N",
        help="compute units as the GPU's runtime counts them: CUs on gfx9, otherwise WGPs (default: the target's most)",
    )  # fmt: skip
    shape = parser.add_argument_group("the problem")
    add_sizes(shape)
    shape.add_argument("--scale", type=float, metavar="X", help="factor on q.k (default 1 / sqrt(D))")
    shape.add_argument("--mask", choices=("bool", "additive"), help="kind of mask (default none)")
    shape.add_argument(
        "--mask-shape", type=int, nargs=4, metavar=("B", "H", "Q", "K"),
        help="the mask's shape, each 1 or full (default 1 1 Sq Sk)",
    )  # fmt: skip
    shape.add_argument(
        "--mask-dtype", choices=("float16", "bfloat16", "float32"), help="dtype of an additive mask (default: --dtype)"
    )
    shape.add_argument("--alibi", action="store_true", help="with ALiBi slopes [B, H]")
    shape.add_argument("--sinks", action="store_true", help="with a sink logit for each head")
    shape.add_argument("--return-lse", action="store_true", help="return the LSE, too")
    add_storage(shape)
    parser.add_argument("--standard", action="store_true", help="use the standard path even where flash can run")
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the plan."""
    require_own_checkout()
    from rocattn.gpu.plan import plan

    fields = given(arguments, (*SIZES, *BAND, *STORAGE, "scale"))
    fields |= {name: True for name in ("alibi", "sinks", "return_lse") if getattr(arguments, name)}
    config = config_of(fields, arguments.direction)
    if arguments.mask is None and (arguments.mask_shape or arguments.mask_dtype):
        raise CommandError("--mask-shape and --mask-dtype describe a mask: say which with --mask bool or additive")
    if arguments.mask is not None:
        shape = tuple(arguments.mask_shape or (1, 1, config.seq_q, config.seq_k))
        config = config.replace(mask=arguments.mask, mask_shape=shape)
    if arguments.mask == "bool" and arguments.mask_dtype:
        raise CommandError("--mask-dtype is for an additive mask: leave it out with --mask bool")
    planned = plan(
        config, arguments.arch, mask_dtype=arguments.mask_dtype, use_flash_attention=not arguments.standard,
        compute_units=arguments.compute_units,
    )  # fmt: skip
    if arguments.json:
        emit_json(planned.as_dict())
    else:
        _print(planned, config.label)
    return OK


def _print(planned: LaunchPlan, label: str) -> None:
    """Print a table of launches, then each one's arguments."""
    path = f"{planned.path} path" + (f": {planned.reason}" if planned.reason else "")
    rows = [
        [launch.kernel, _size(launch.grid), _size(launch.block), str(launch.dynamic_lds_bytes),
         _defines(launch.defines), launch.code_object]
        for launch in planned.launches
    ]  # fmt: skip
    columns = ["launch", "grid", "block", "dynamic LDS", "defines", "code object"]
    print_table(f"{label} on {planned.arch}, {path}", columns, rows, answer=True)
    for launch in planned.launches:
        if launch.slots:
            rounds = -(-math.prod(launch.grid) // launch.slots)
            print(
                f"{launch.kernel}: {launch.grid[0]} splits of the keys; {math.prod(launch.grid)} blocks in {rounds} "
                f"{'round' if rounds == 1 else 'rounds'} of {launch.slots} slots ({planned.compute_units} compute "
                f"units): {100 * launch.fill:.0f} % filled"
            )
        print(f"{launch.kernel}({', '.join(_arg(arg) for arg in launch.args)})")
    for name, count in planned.workspaces.items():
        print(f"workspace {name}: {count} bytes")


def _size(extents: tuple[int, int, int]) -> str:
    return " x ".join(str(extent) for extent in extents)


def _defines(defines: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in defines.items())


def _arg(arg: Arg) -> str:
    if arg.kind == "buffer":
        return f"{arg.name} + {arg.offset_bytes} bytes" if arg.offset_bytes else arg.name
    if arg.kind == "workspace":
        return f"{arg.name} (workspace)"
    value = f"{arg.value:g}" if isinstance(arg.value, float) else str(arg.value)
    return f"{arg.name}={value}"
