"""Machine code against plans: the metadata of real code objects has the arguments that plans pass, and no others."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from rocattn.config import AttentionConfig
from rocattn.gpu.arch import TESTED
from rocattn.gpu.build import arg_layout, argument_problem, code_problem, compile_for_device
from rocattn.gpu.flash import BUILT_HEAD_DIMS
from rocattn.gpu.launch import BufferArg, ScalarArg
from rocattn.gpu.plan import plan, supports
from rocattn.settings import LINE_TABLES
from rocattn.toolchain import compile_hip
from rocattn.toolchain.code_object import KernelArg, KernelInfo, kernels_of
from rocattn_profiling.kernels.build import all_variants

PROBLEM = {
    "batch": 1,
    "num_heads": 4,
    "num_kv_heads": 2,
    "seq_q": 100,
    "seq_k": 130,
    "head_dim": 64,
    "dtype": "float16",
}
MASKED = {"mask": "bool", "mask_shape": (1, 1, 100, 130), "alibi": True, "sinks": True, "return_lse": True}
PLANS = {
    "causal": ({"causal": True}, True),
    "nocausal": ({"return_lse": True}, True),
    "generic": (MASKED, True),
    "decode": ({"seq_q": 1, "seq_k": 40_000}, True),
    "standard": (MASKED, False),
    "backward": ({"direction": "backward", "causal": True}, True),
}


ARGS = (BufferArg("q"), ScalarArg("count", "u32", 3))
GOOD = (KernelArg("q", 0, 8, "global_buffer"), KernelArg("count", 8, 4, "by_value"))


def kernel(*args, wants=()):
    """Return what the metadata of a kernel with these arguments says."""
    return KernelInfo("k", 32, 64, 10, 0, 10, 0, 0, 0, 0, 16, args, wants)


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (kernel(*GOOD), ""),
        (kernel(replace(GOOD[0], name="other"), replace(GOOD[1], name="")), ""),
        (kernel(*GOOD, KernelArg("", 16, 4, "hidden_block_count_x")), "k has hidden arguments: hidden_block_count_x"),
        (kernel(*GOOD, wants=("dispatch pointer",)), "k asks for more than its arguments: dispatch pointer"),
        (kernel(GOOD[0]), "k takes 1 arguments, the plan gives 2"),
        (
            kernel(GOOD[0], replace(GOOD[1], offset=12)),
            "count: by_value of 4 bytes at 12, where the plan has count: u32",
        ),
        (kernel(GOOD[0], replace(GOOD[1], size=8)), "count: by_value of 8 bytes at 8, where"),
        (
            kernel(GOOD[0], replace(GOOD[1], name="rows")),
            "k takes rows: by_value of 4 bytes at 8, where the plan has count",
        ),
        (
            kernel(replace(GOOD[0], kind="by_value"), GOOD[1]),
            "q: by_value of 8 bytes at 0, where the plan has q: pointer",
        ),
        (kernel(GOOD[0], replace(GOOD[1], kind="global_buffer")), "count: global_buffer of 4 bytes"),
    ],
)
def test_every_way_to_contradict_a_plan_is_named(info, words):
    """Hidden arguments, the dispatch packet, number, offset, size, kind and name; other pointer names are fine."""
    found = argument_problem(info, ARGS)
    assert words in found
    assert bool(words) == bool(found)


@pytest.mark.slow
@pytest.mark.usefixtures("kernel_cache")
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
@pytest.mark.parametrize("case", PLANS)
def test_the_metadata_has_the_arguments_of_the_plan(arch, case):
    """Offset, size and kind of each argument are equal, scalars have the plan's names, and none is hidden."""
    options, flash = PLANS[case]
    made = plan(AttentionConfig(**PROBLEM | options), arch, use_flash_attention=flash)
    assert made.launches
    for launch in made.launches:
        code = compile_hip(launch.source, arch, defines=launch.defines)
        (info,) = kernels_of(code.data)
        assert code_problem(code.data, launch.symbol, launch.args, launch.block) == ""
        assert [(arg.offset, arg.size) for arg in info.args] == arg_layout(launch.args)
        assert {arg.kind for arg in info.args} <= {"global_buffer", "by_value"}
        for have, arg in zip(info.args, launch.args, strict=True):
            assert (have.kind == "global_buffer") == (arg.kind != "scalar" or arg.type == "u64")
            assert arg.kind != "scalar" or have.name == arg.name
        assert info.block == launch.block[0]
        assert info.wave_size == (64 if arch == "gfx942" else 32)


@pytest.mark.parametrize("arch", TESTED)
def test_plans_and_the_build_grid_name_the_same_files(arch):
    """What `rocattn kernels build --arch` writes holds what plans of every kind ask for, at its head dimensions."""
    built = {variant.code_object for variant in all_variants([arch])}
    for dtype in ("float16", "bfloat16", "float32"):
        for options, flash in PLANS.values():
            for head_dim in BUILT_HEAD_DIMS:
                config = AttentionConfig(**PROBLEM | options | {"dtype": dtype, "head_dim": head_dim})
                if not supports(config):
                    continue
                names = {launch.code_object for launch in plan(config, arch, use_flash_attention=flash).launches}
                assert names <= built, f"{config.label}: {names - built}"


@pytest.mark.parametrize(("text", "wanted"), [("", False), ("1", True)])
def test_the_environment_asks_for_line_tables(monkeypatch, text, wanted):
    """`rocattn profile --pc-sampling` sets it, so that samples in our kernels have lines."""
    asked = []

    def compile_nothing(*_arguments, **options):
        asked.append(options["line_tables"])
        return SimpleNamespace(data=b"code")

    monkeypatch.setattr("rocattn.toolchain.hip.compile_hip", compile_nothing)
    monkeypatch.setenv(LINE_TABLES, text)
    assert compile_for_device("hip/any.hip", "gfx942", {}, stand_in=False) == b"code"
    assert asked == [wanted]
