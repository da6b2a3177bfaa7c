"""Plans: pure, complete, the same after JSON, and refused in one line where there can be none."""

import dataclasses
import json
import sys

import pytest

from rocattn.config import AttentionConfig
from rocattn.errors import ConfigError
from rocattn.gpu import build
from rocattn.gpu.arch import TESTED
from rocattn.gpu.build import arg_layout, code_object_name
from rocattn.gpu.errors import ArchError
from rocattn.gpu.launch import BufferArg, LaunchPlan, ScalarArg, WorkspaceArg
from rocattn.gpu.plan import buffer_bytes, describe_buffers, plan, used_buffers
from rocattn.toolchain.inputs import inputs_of
from rocattn_profiling.kernels.build import all_variants

BASE = {"batch": 2, "num_heads": 6, "num_kv_heads": 3, "seq_q": 100, "seq_k": 131, "head_dim": 40, "head_dim_v": 24}
EVERYTHING = BASE | {
    "dtype": "bfloat16", "mask": "additive", "mask_shape": (2, 1, 100, 131), "alibi": True, "sinks": True,
    "softcap": 5.0, "window": (30, 7), "return_lse": True,
}  # fmt: skip


def config(**changes):
    """Return a problem of odd sizes with some fields changed."""
    return AttentionConfig(**BASE | {"dtype": "float16"} | changes)


@pytest.mark.parametrize("arch", TESTED)
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("options", [{}, {"causal": True}, EVERYTHING], ids=["plain", "causal", "everything"])
def test_a_plan_survives_json(arch, direction, options):
    """What a tool reads from the JSON is the plan; nothing in it is beyond JSON."""
    made = plan(config(**options, direction=direction), arch)
    assert made.launches
    assert LaunchPlan.from_dict(json.loads(json.dumps(made.as_dict()))) == made
    assert made == plan(config(**options, direction=direction), arch)
    again = AttentionConfig.from_dict(json.loads(json.dumps(made.config)))
    assert again == config(**options, direction=direction)


def test_the_json_has_the_documented_shape():
    """Tools outside this project read these keys."""
    made = plan(config(), "gfx1100", use_flash_attention=False).as_dict()
    assert made.keys() == {"arch", "config", "path", "reason", "buffers", "launches", "workspaces", "compute_units"}
    assert made["buffers"]["q"].keys() == {"shape", "strides", "dtype", "role"}
    launch = made["launches"][0]
    assert launch.keys() == {
        "kernel", "source", "defines", "symbol", "grid", "block", "args", "dynamic_lds_bytes", "code_object",
        "slots",
    }  # fmt: skip
    kinds = {arg["kind"]: arg.keys() for launch in made["launches"] for arg in launch["args"]}
    assert kinds == {
        "buffer": {"kind", "name", "offset_bytes"}, "scalar": {"kind", "name", "type", "value"},
        "workspace": {"kind", "name", "bytes"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("head_dim_v", "parts"),
    [
        (256, [(0, 256)]),
        (512, [(0, 256), (256, 256)]),
        (576, [(0, 192), (192, 192), (384, 192)]),
        (257, [(0, 160), (160, 97)]),
    ],
)
def test_wide_v_is_computed_in_parts(head_dim_v, parts):
    """Each part is a launch that begins within v and out; the first writes the LSE, and all see the sinks."""
    made = plan(config(head_dim=576, head_dim_v=head_dim_v, sinks=True, return_lse=True), "gfx942")
    found = []
    for launch in made.launches:
        args = {arg.name: arg for arg in launch.args}
        found.append((args["v"].offset_bytes // 2, args["head_dim_v"].value))
        assert args["out"].offset_bytes == args["v"].offset_bytes
        assert args["q"].offset_bytes == args["k"].offset_bytes == 0
        assert isinstance(args["lse"], BufferArg) == (found[-1][0] == 0)
        assert isinstance(args["sinks"], BufferArg)
    assert (made.path, found) == ("flash", parts)


@pytest.mark.parametrize(
    ("layout", "q", "v"),
    [
        ("BHSD", (6 * 100 * 40, 100 * 40, 40, 1), (3 * 131 * 24, 131 * 24, 24, 1)),
        ("BSHD", (100 * 6 * 40, 40, 6 * 40, 1), (131 * 3 * 24, 24, 3 * 24, 1)),
        ("BSE", (100 * 6 * 40, 40, 6 * 40, 1), (131 * 3 * 24, 24, 3 * 24, 1)),
    ],
)
def test_strides_follow_the_layout(layout, q, v):
    """Every layout is the same [B, H, S, D] view with other strides, in elements; outputs, too."""
    made = plan(config(layout=layout), "gfx942")
    assert (made.buffers["q"].strides, made.buffers["v"].strides) == (q, v)
    assert made.buffers["q"].shape == (2, 6, 100, 40)
    step = 24 if layout == "BHSD" else 6 * 24
    assert made.buffers["out"].strides[2:] == (step, 1)
    for launch in made.launches:
        values = {arg.name: arg.value for arg in launch.args if isinstance(arg, ScalarArg)}
        for axis, step in zip("bhs", q, strict=False):
            assert values.get(f"q_stride_{axis}", step) == step
        for axis, step in zip("bhs", v, strict=False):
            assert values.get(f"v_stride_{axis}", step) == step


def test_given_strides_reach_the_kernels():
    """A caller's own strides (a padded tensor) replace those of the layout, and the bytes they span follow."""
    strides = {"q": (60_000, 9_000, 64, 1), "mask": (262, 999, 2, 7)}
    made = plan(config(mask="bool", mask_shape=(2, 1, 100, 1)), "gfx1100", strides=strides)
    assert made.buffers["q"].strides == (60_000, 9_000, 64, 1)
    assert made.buffers["mask"].strides == (262, 0, 2, 0)
    assert buffer_bytes(made.buffers["q"]) == 2 * (60_000 + 5 * 9_000 + 99 * 64 + 39 + 1)
    values = {arg.name: arg.value for launch in made.launches for arg in launch.args if isinstance(arg, ScalarArg)}
    assert [values[f"q_stride_{axis}"] for axis in "bhs"] == [60_000, 9_000, 64]
    assert [values[f"mask_stride_{axis}"] for axis in "bhqk"] == [262, 0, 2, 0]


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_buffers_are_what_a_caller_brings(direction):
    """Names, shapes, dtypes and roles of both directions, each option with its array."""
    found = describe_buffers(config(**EVERYTHING, direction=direction), {}, "float32")
    roles = {name: buffer.role for name, buffer in found.items()}
    common = dict.fromkeys(("q", "k", "v", "mask", "alibi_slopes", "sinks"), "input")
    if direction == "forward":
        assert roles == common | {"out": "output", "lse": "output"}
    else:
        assert roles == common | dict.fromkeys(("out", "lse", "dout"), "input") | dict.fromkeys(
            ("dq", "dk", "dv"), "output"
        )
    assert {name: found[name].dtype for name in ("q", "mask", "alibi_slopes", "lse")} == {
        "q": "bfloat16", "mask": "float32", "alibi_slopes": "float32", "lse": "float32"
    }  # fmt: skip
    assert found["mask"].strides == (100 * 131, 0, 131, 1)
    assert (found["alibi_slopes"].shape, found["sinks"].shape) == ((2, 6), (6,))


@pytest.mark.parametrize("arch", TESTED)
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("flash", [True, False])
def test_launches_are_complete(arch, direction, flash):
    """Every buffer exists, every output is written, every workspace is as large as asked, pointers come first."""
    made = plan(config(**EVERYTHING, direction=direction), arch, use_flash_attention=flash)
    outputs = {name for name, buffer in made.buffers.items() if buffer.role == "output"}
    assert outputs <= used_buffers(made) <= made.buffers.keys()
    assert made.workspaces.keys().isdisjoint(made.buffers)
    for launch in made.launches:
        assert min(launch.grid) > 0
        assert launch.block[1:] == (1, 1)
        for arg in launch.args:
            if isinstance(arg, WorkspaceArg):
                assert 0 < arg.bytes <= made.workspaces[arg.name]
        sizes = [size for _, size in arg_layout(launch.args)]
        assert sizes == sorted(sizes, reverse=True)
        pointers = [isinstance(arg, BufferArg | WorkspaceArg) or arg.type == "u64" for arg in launch.args]
        assert pointers == sorted(pointers, reverse=True)


@pytest.mark.parametrize(("seq_q", "seq_k"), [(0, 5), (5, 0), (0, 0)])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_empty_problems_launch_no_empty_grid(seq_q, seq_k, direction):
    """HIP refuses a grid of 0 blocks; what is not empty is still written."""
    made = plan(config(seq_q=seq_q, seq_k=seq_k, direction=direction, return_lse=True), "gfx1100")
    assert all(min(launch.grid) > 0 for launch in made.launches)
    written = used_buffers(made)
    for name, buffer in made.buffers.items():
        assert buffer.role == "input" or buffer_bytes(buffer) == 0 or name in written


def test_the_path_and_its_reason_are_told():
    """The flash path has no reason; the standard path says why it was taken."""
    assert (plan(config(), "gfx1100").path, plan(config(), "gfx1100").reason) == ("flash", "")
    off = plan(config(), "gfx1100", use_flash_attention=False)
    assert (off.path, off.reason) == ("standard", "switched off")
    assert [launch.kernel for launch in off.launches] == ["qk_matmul", "scale", "mask", "softmax", "pv_matmul"]
    large = plan(config(head_dim=600, head_dim_v=300), "gfx1100")
    assert large.path == "standard"
    assert "600" in large.reason


@pytest.mark.parametrize(
    ("options", "kernel"),
    [
        ({"causal": True}, "flash_attention_causal"),
        ({}, "flash_attention_nocausal"),
        ({"softcap": 3.0}, "flash_attention"),
        ({"mask": "bool", "mask_shape": (1, 1, 100, 131)}, "flash_attention"),
    ],
)
def test_the_kernel_follows_the_options(options, kernel):
    """Causal, no mask, or the general kernel."""
    assert [launch.kernel for launch in plan(config(**options), "gfx1100").launches] == [kernel]


@pytest.mark.parametrize(
    ("arch", "words"),
    [
        ("gfx803", "there are no kernels for gfx803, only for gfx90a"),
        ("gfx1250", "there are no kernels for gfx1250"),
        ("sm_75", "'sm_75' is no GPU architecture: write it like gfx942"),
        ("gfx942:fast+", "is no GPU architecture"),
    ],
)
def test_an_architecture_without_kernels_is_refused(arch, words):
    """The message names what there is."""
    with pytest.raises(ArchError, match=words):
        plan(config(), arch)


def test_features_of_a_target_do_not_matter():
    """A GPU reports its target with features; the plan is for the processor."""
    assert plan(config(), "gfx942:sramecc+:xnack-") == plan(config(), "gfx942")


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"dtype": "float64"}, {}, "float64 has no GPU kernels"),
        ({"seq_k": 1 << 30}, {}, "positions are 32-bit"),
        ({"batch": 70_000}, {}, "at most 65535 heads"),
        (
            {"batch": 65_535, "num_heads": 66, "seq_q": 1000, "direction": "backward"},
            {},
            "too large: attention_backward_preprocess counts up to 2.31 rows, not 4325310000",
        ),
        ({}, {"strides": {"q": (1, 2, 3, 2)}}, "q's last axis has stride 2: the kernels need it contiguous"),
        ({}, {"strides": {"q": (1, 2, 3)}}, "q has 4 axes, not 3 strides"),
        ({}, {"strides": {"bias": (1,)}}, "strides are given for 'bias'"),
        ({"return_lse": True}, {"strides": {"lse": (900, 150, 1)}}, "lse must be a contiguous array"),
        (
            {"mask": "additive", "mask_shape": (1, 1, 1, 131)},
            {"mask_dtype": "bfloat16"},
            "the mask's dtype is bfloat16",
        ),
    ],
)
def test_a_problem_without_kernels_is_one_line(changes, options, words):
    """What cannot be planned is refused with what is wrong."""
    with pytest.raises(ConfigError, match=words) as caught:
        plan(config(**changes), "gfx1100", **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda values: values.pop("arch"), "no 'arch'"),
        (lambda values: values["launches"][0].update(grid=[1, 2]), "not enough values"),
        (lambda values: values["launches"][0]["args"][0].update(kind="pointer"), "kind 'pointer'"),
        (lambda values: values["buffers"].pop("q"), "takes a buffer 'q' that the plan does not have"),
        (lambda values: values.update(buffers=[]), "has no attribute 'items'"),
    ],
)
def test_what_is_no_plan_is_refused(damage, words):
    """A damaged file is named for what is wrong with it, not by a traceback."""
    values = json.loads(json.dumps(plan(config(), "gfx1100", use_flash_attention=False).as_dict()))
    damage(values)
    with pytest.raises(ConfigError, match=words):
        LaunchPlan.from_dict(values)


def test_the_name_of_a_code_object_is_its_content(tmp_path, monkeypatch):
    """Source, headers, macros and architecture are in the name; where the files lie and the macros' order are not."""
    for root in ("one", "two"):
        (tmp_path / root / "hip").mkdir(parents=True)
        (tmp_path / root / "include" / "rocattn").mkdir(parents=True)
        (tmp_path / root / "hip" / "k.hip").write_text("#include <rocattn/device.h>\n")
        (tmp_path / root / "include" / "rocattn" / "device.h").write_text("int x;\n")

    def name(root="one", arch="gfx1100", **defines):
        monkeypatch.setattr("rocattn.gpu.build.kernel_root", lambda: tmp_path / root)
        return code_object_name("hip/k.hip", arch, defines)

    first = name(A=1, B=2)
    assert first == name("two", B=2, A=1)
    assert first.startswith("k.")
    assert first.endswith(".hsaco")
    assert len({first, name(A=1, B=3), name(A=12), name(arch="gfx942", A=1, B=2)}) == 4
    (tmp_path / "two" / "include" / "rocattn" / "device.h").write_text("int y;\n")
    assert name("two", A=1, B=2) != first


def test_a_source_is_read_once_for_all_that_is_compiled_from_it(monkeypatch):
    """Listing what is shipped names hundreds of code objects, made from a dozen sources."""
    read = []
    monkeypatch.setattr(
        build, "inputs_of", lambda headers, source: (read.append(source), inputs_of(headers, source))[1]
    )
    build._name.cache_clear()
    build._read.cache_clear()
    names = {variant.code_object for variant in all_variants(["gfx942", "gfx1100"])}
    assert len(names) > 10 * len(read)
    assert len(read) == len(set(read))


def test_planning_needs_no_driver_and_no_compiler(monkeypatch):
    """A plan is made where neither hip-python nor a compiler is."""
    monkeypatch.setattr("subprocess.run", None)
    for module in list(sys.modules):
        if module.partition(".")[0] in {"rocm", "hip"}:
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "rocm", None)
    monkeypatch.setitem(sys.modules, "hip", None)
    assert plan(config(), "gfx1100", use_flash_attention=False).launches


def test_a_plan_cannot_be_changed():
    """Prepared plans are shared between calls."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan(config(), "gfx1100", use_flash_attention=False).arch = "gfx942"
