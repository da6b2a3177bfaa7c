"""Build kernels into a folder: code objects, assembly, and a manifest checked against the code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import rocattn
from rocattn.config import FP8_DTYPES, AttentionConfig, VarlenShape
from rocattn.errors import ConfigError, ToolchainError
from rocattn.gpu.arch import processor
from rocattn.gpu.build import arg_type, code_object_name, code_problem
from rocattn.gpu.plan import plan
from rocattn.toolchain.code_object import kernels_of
from rocattn.toolchain.compilers import choose_compiler
from rocattn.toolchain.hip import compile_hip
from rocattn_profiling.base.files import StagedFiles

if TYPE_CHECKING:
    from rocattn.gpu.launch import Arg, LaunchPlan

SCHEMA = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Compilation:
    """One kernel to compile.

    Attributes:
        kernel, source, symbol, defines: See `Launch`.
        arch: Target without features.
        args: Arguments of the launch.
        block: Threads per block if a plan says so, otherwise 0.
    """

    kernel: str
    source: str
    symbol: str
    defines: dict[str, str | int]
    arch: str
    args: tuple[Arg, ...]
    block: tuple[int, int, int] = (0, 0, 0)

    @property
    def code_object(self) -> str:
        """The file's name, as in plans."""
        return code_object_name(self.source, self.arch, self.defines)

    @property
    def label(self) -> str:
        """A readable name."""
        defines = " ".join(f"{name}={value}" for name, value in self.defines.items())
        return f"{self.kernel} {self.arch} {defines}".rstrip()


class ArgEntry(msgspec.Struct, frozen=True):
    """One argument in the manifest: type is "pointer" or the scalar's; offset and size in bytes."""

    name: str
    type: str
    offset: int
    size: int


class KernelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel in the manifest: its inputs and its metadata.

    Attributes:
        kernel, source, symbol, defines, arch: What was compiled.
        code_object, assembly: Files next to the manifest.
        bytes: Size of the code object.
        wave_size: Lanes per wave.
        max_block: The largest block, in threads.
        vgprs, agprs, sgprs: Registers per lane (SGPRs: per wave); on gfx90a and later, ``vgprs`` includes the AGPRs.
        vgpr_spills, sgpr_spills: Spilled registers.
        lds_bytes, scratch_bytes, kernarg_bytes: LDS per block, private memory per lane, size of the argument block.
        args: The parameters by name, from the metadata; checked to equal what plans pass.
    """

    kernel: str
    source: str
    symbol: str
    defines: dict[str, str | int]
    arch: str
    code_object: str
    assembly: str
    bytes: int
    wave_size: int
    max_block: int
    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    lds_bytes: int
    scratch_bytes: int
    kernarg_bytes: int
    args: list[ArgEntry]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``manifest.json``."""

    schema: int
    rocattn: str
    compiler: str
    archs: list[str]
    kernels: list[KernelEntry]


def all_variants(archs: Sequence[str]) -> list[Compilation]:
    """Return the compilations of every kernel family's build grid on these architectures.

    Raises:
        ArchError: When an architecture has no kernels.
        ConfigError: When no plan launches a kernel of the grid.
    """
    from rocattn.gpu import backward, flash, standard

    compilations: dict[tuple[str, str, frozenset[tuple[str, str | int]]], Compilation] = {}
    for arch in dict.fromkeys(processor(arch) for arch in archs):
        signatures = _signatures(arch)
        for family in (flash, standard, backward):
            for variant in family.variants(arch):
                if (variant.source, variant.symbol) not in signatures:
                    name = f"{variant.symbol} ({variant.source})"
                    raise ConfigError(f"no plan launches {name}: its arguments are unknown")
                args = signatures[variant.source, variant.symbol]
                made_from = (variant.kernel, variant.source, variant.symbol, dict(variant.defines))
                key = (arch, variant.source, frozenset(variant.defines.items()))
                compilations[key] = Compilation(*made_from, arch, args)
    return list(compilations.values())


def variants_of(wanted: LaunchPlan) -> list[Compilation]:
    """Return the compilations that a plan needs."""
    launches = {launch.code_object: launch for launch in wanted.launches}
    return [
        Compilation(each.kernel, each.source, each.symbol, each.defines, wanted.arch, each.args, each.block)
        for each in launches.values()
    ]


@cache
def _signatures(arch: str) -> dict[tuple[str, str], tuple[Arg, ...]]:
    """Return the arguments of each kernel, from a set of plans that launch all kernels."""
    signatures: dict[tuple[str, str], tuple[Arg, ...]] = {}
    for dtype, options, flash in product(("float16", "float32"), _COVERING, (True, False)):
        config = AttentionConfig(batch=1, num_heads=4, num_kv_heads=2, head_dim=64, dtype=dtype, **options)
        for launch in plan(config, arch, use_flash_attention=flash).launches:
            signatures.setdefault((launch.source, launch.symbol), launch.args)
    return signatures


# Problems that together launch every kernel: prompts, masks, one query against few and many keys, backward.
_COVERING: tuple[dict[str, Any], ...] = (
    {"seq_q": 200, "seq_k": 200, "causal": True, "return_lse": True},
    {"seq_q": 200, "seq_k": 200},
    {"seq_q": 200, "seq_k": 200, "mask": "bool", "mask_shape": (1, 1, 200, 200), "alibi": True, "sinks": True},
    {"seq_q": 1, "seq_k": 200},
    {"seq_q": 1, "seq_k": 1 << 16},
    {"seq_q": 200, "seq_k": 200, "causal": True, "varlen": VarlenShape(total_q=200, total_k=200)},
    {"seq_q": 200, "seq_k": 200, "varlen": VarlenShape(total_q=200, total_k=200)},
    *(  # pages that are a multiple of any tile, and pages that are not
        {"seq_q": seq_q, "seq_k": 1 << 12, "causal": True, "varlen": VarlenShape(total_q=2000, page_size=size)}
        for seq_q, size in product((2000, 1), (768, 24))
    ),
    {"seq_q": 200, "seq_k": 200, "kv_dtype": FP8_DTYPES[0]},
    {"seq_q": 1, "seq_k": 1 << 16, "kv_dtype": FP8_DTYPES[0]},
    {"seq_q": 1, "seq_k": 1 << 12, "varlen": VarlenShape(total_q=1, page_size=768), "kv_dtype": FP8_DTYPES[0]},
    {"seq_q": 200, "seq_k": 200, "kv_dtype": FP8_DTYPES[0], "q_dtype": FP8_DTYPES[0]},
    {"seq_q": 1, "seq_k": 1 << 16, "kv_dtype": FP8_DTYPES[0], "q_dtype": FP8_DTYPES[0]},
    {"seq_q": 200, "seq_k": 200, "direction": "backward"},
    {"seq_q": 200, "seq_k": 200, "direction": "backward", "causal": True},
    {"seq_q": 200, "seq_k": 200, "direction": "backward", "mask": "bool", "mask_shape": (1, 1, 200, 200)},
)


def build(
    variants: Sequence[Compilation], out: Path, *, jobs: int, on_step: Callable[[str], None] = lambda _: None
) -> tuple[Manifest, list[str]]:
    """Compile variants (or take them from the cache) into a folder.

    Files appear once all are compiled. On a failure or Ctrl-C, no manifest is written and no file is replaced, because
    the earlier manifest describes the existing ones; new files are left for inspection.

    Args:
        variants: Kernels to build.
        out: The folder, created if missing.
        jobs: Parallel compilations.
        on_step: Called with a line after each kernel.

    Returns:
        The manifest, and one line for each variant that does not compile or whose code contradicts its arguments.

    Raises:
        ToolchainError: When there is no compiler.
        RocattnError: When the folder cannot be written.
    """
    compiler = choose_compiler().version
    entries: list[KernelEntry] = []
    problems: list[str] = []
    with StagedFiles() as staging:
        with ThreadPoolExecutor(jobs) as pool:
            work = {pool.submit(_build_one, variant, out, staging): variant for variant in variants}
            try:
                for done in as_completed(work):
                    variant = work[done]
                    try:
                        entries.append(done.result())
                    except ToolchainError as error:
                        problems.append(f"{variant.label}: {error}")
                    on_step(variant.label)
            except BaseException as ended:
                pool.shutdown(cancel_futures=True)
                if isinstance(ended, KeyboardInterrupt):
                    staging.commit(replace=False)
                raise
        entries.sort(key=lambda entry: (entry.arch, entry.kernel, entry.code_object))
        manifest = Manifest(
            schema=SCHEMA, rocattn=rocattn.__version__, compiler=compiler,
            archs=sorted({variant.arch for variant in variants}), kernels=entries,
        )  # fmt: skip
        if not problems:
            encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
            staging.add(out / MANIFEST, [encoded, b"\n"])
        staging.commit(replace=not problems)
    return manifest, sorted(problems)


def _build_one(variant: Compilation, out: Path, staging: StagedFiles) -> KernelEntry:
    """Compile one variant, stage its files and check it.

    Raises:
        ToolchainError: When it does not compile, or its metadata contradicts its arguments.
    """
    code = compile_hip(variant.source, variant.arch, defines=variant.defines)
    path = out / variant.code_object
    assembly = path.with_suffix(".s")
    staging.add(path, [code.data])
    staging.add(assembly, [code.assembly.encode()])
    # Checked after writing, because the code helps to explain a mismatch.
    if problem := code_problem(code.data, variant.symbol, variant.args, variant.block):
        raise ToolchainError(f"{variant.code_object}: {problem}")
    (kernel,) = (kernel for kernel in kernels_of(code.data) if kernel.symbol == variant.symbol)
    args = []
    for have, arg in zip(kernel.args, variant.args, strict=True):
        kind = "pointer" if have.kind == "global_buffer" else arg_type(arg)
        args.append(ArgEntry(have.name or arg.name, kind, have.offset, have.size))
    return KernelEntry(
        kernel=variant.kernel, source=variant.source, symbol=variant.symbol, defines=variant.defines,
        arch=variant.arch, code_object=path.name, assembly=assembly.name, bytes=len(code.data),
        wave_size=kernel.wave_size, max_block=kernel.block, vgprs=kernel.vgprs, agprs=kernel.agprs, sgprs=kernel.sgprs,
        vgpr_spills=kernel.vgpr_spills, sgpr_spills=kernel.sgpr_spills, lds_bytes=kernel.lds_bytes,
        scratch_bytes=kernel.scratch_bytes, kernarg_bytes=kernel.kernarg_bytes, args=args,
    )  # fmt: skip
