"""``rocattn plan`` and ``rocattn kernels build`` as a tool outside this project meets them."""

import dataclasses
import json

import pytest

from rocattn.gpu.launch import LaunchPlan
from rocattn_profiling import cli
from rocattn_profiling.kernels import build as kernel_build
from rocattn_profiling.workloads.options import SIZES

SHAPE = ["--arch", "gfx1100", "--dtype", "float16", "--batch", "1", "--num-heads", "4", "--num-kv-heads", "2",
         "--seq-q", "100", "--seq-k", "130", "--head-dim", "64"]  # fmt: skip


def plan_file(tmp_path, capsys, *options):
    """Write a plan's JSON, as a shell would, and return its file."""
    assert cli.main(["plan", *SHAPE, *options, "--json"]) == 0
    path = tmp_path / "plan.json"
    path.write_text(capsys.readouterr().out)
    return path


def test_plan_prints_json_alone(capsys):
    """stdout is the plan and nothing else; it is the plan of these options."""
    more = [
        "--causal",
        "--window",
        "50",
        "-1",
        "--softcap",
        "4",
        "--alibi",
        "--sinks",
        "--scale",
        "0.2",
        "--return-lse",
    ]
    masks = ["--mask", "additive", "--mask-shape", "1", "4", "1", "130", "--mask-dtype", "float32", "--layout", "BHSD"]
    assert cli.main(["plan", *SHAPE, *more, *masks, "--json"]) == 0
    made = LaunchPlan.from_dict(json.loads(capsys.readouterr().out))
    config = made.config
    assert (config["causal"], config["window"], config["softcap"], config["scale"]) == (True, [50, -1], 4.0, 0.2)
    assert (config["alibi"], config["sinks"], config["return_lse"], config["layout"]) == (True, True, True, "BHSD")
    assert (made.buffers["mask"].shape, made.buffers["mask"].dtype) == ((1, 4, 1, 130), "float32")
    assert {"alibi_slopes", "sinks", "lse"} <= made.buffers.keys()


def test_plan_cuts_the_keys_for_the_device_it_is_asked_about(capsys):
    """114 splits of 8 KV heads fill the 304 compute units of an MI300X once; one that has 38 gets fewer."""
    shape = ["--arch", "gfx942", "--dtype", "float16", "--num-heads", "32", "--num-kv-heads", "8", "--seq-q", "1",
             "--seq-k", "32768", "--head-dim", "128"]  # fmt: skip
    for units, splits in (([], 114), (["--compute-units", "38"], 14)):
        assert cli.main(["plan", *shape, *units]) == 0
        assert f"flash_decode: {splits} splits of the keys" in capsys.readouterr().out


def test_plan_shows_launches_to_people(capsys):
    """The table has grid, block, defines and file of each launch; below it every argument by name; on stdout."""
    assert cli.main(["plan", *SHAPE, "--standard"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "standard path: switched off" in shown.out
    assert "128 x 1 x 1" in shown.out
    assert "DTYPE=f16" in shown.out
    assert "pv_matmul(probs (workspace), v, out, v_stride_b=16640" in shown.out
    assert f"workspace scores: {4 * 100 * 130 * 4} bytes" in shown.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", *SHAPE, "--arch", "gfx803"], "there are no kernels for gfx803"),
        (["plan", *SHAPE, "--dtype", "float64"], "float64 has no GPU kernels"),
        (["plan", *SHAPE, "--num-kv-heads", "3"], "4 query heads cannot share 3 KV heads"),
        (["plan", *SHAPE, "--mask-shape", "1", "1", "1", "1"], "say which with --mask bool or additive"),
        (["plan", *SHAPE, "--mask", "bool", "--mask-dtype", "float32"], "--mask-dtype is for an additive mask"),
        (["kernels", "build"], "choose what to build: --arch GFX"),
        (["kernels", "build", "--arch", "gfx1100", "--plan", "x"], "choose what to build"),
        (["kernels", "build", "--arch", "sm_90"], "'sm_90' is no GPU architecture"),
        (["kernels", "build", "--plan", "nowhere.json"], "cannot read nowhere.json: No such file"),
    ],
)
def test_a_usage_error_is_one_line_and_status_4(capsys, arguments, words):
    """What is wrong and what to do, no traceback."""
    assert cli.main(arguments) == 4
    shown = capsys.readouterr().err
    assert words in shown
    assert len(shown.splitlines()) == 1


def test_a_file_that_is_no_plan_is_refused(tmp_path, capsys):
    """Not JSON, JSON of something else, and a plan of other sources each say so."""
    path = plan_file(tmp_path, capsys, "--standard")
    good = json.loads(path.read_text())
    good["launches"][0]["code_object"] = "qk_matmul.0123456789abcdef.hsaco"
    for text, words in (
        ("{", "is not JSON"),
        ('{"arch": "gfx1100"}', "this is not a launch plan from `rocattn plan --json`: no 'buffers'"),
        (json.dumps(good), "asks for qk_matmul.0123456789abcdef.hsaco, but these sources make qk_matmul."),
    ):
        path.write_text(text)
        assert cli.main(["kernels", "build", "--plan", str(path), "--out", str(tmp_path / "out")]) == 4
        assert words in capsys.readouterr().err


@pytest.mark.usefixtures("kernel_cache")
def test_build_writes_what_a_plan_names(tmp_path, capsys):
    """Code object, assembly and a manifest entry for each launch; the arguments are those of plan and code."""
    path, out = plan_file(tmp_path, capsys, "--standard"), tmp_path / "out"
    assert cli.main(["kernels", "build", "--plan", str(path), "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    manifest = json.loads((out / "manifest.json").read_text())
    assert printed == {"manifest": manifest, "problems": []}
    made = LaunchPlan.from_dict(json.loads(path.read_text()))
    entries = {entry["code_object"]: entry for entry in manifest["kernels"]}
    assert entries.keys() == {launch.code_object for launch in made.launches}
    assert {file.name for file in out.iterdir()} == {
        "manifest.json", *entries, *(entry["assembly"] for entry in entries.values())
    }  # fmt: skip
    for launch in made.launches:
        entry, data = entries[launch.code_object], (out / launch.code_object).read_bytes()
        assert data.startswith(b"\x7fELF")
        assert entry["bytes"] == len(data)
        assert f".globl\t{launch.symbol}" in (out / entry["assembly"]).read_text()
        assert (entry["arch"], entry["wave_size"], entry["max_block"]) == ("gfx1100", 32, launch.block[0])
        assert 0 < entry["vgprs"] <= 256
        assert [arg["name"] for arg in entry["args"]][-1] == launch.args[-1].name
        assert len(entry["args"]) == len(launch.args)
        last = entry["args"][-1]
        assert last["offset"] + last["size"] <= entry["kernarg_bytes"]
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    assert cli.main(["kernels", "build", "--plan", str(path), "--out", str(out)]) == 0
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


@pytest.mark.usefixtures("kernel_cache")
def test_arguments_that_contradict_the_code_are_status_1(tmp_path, capsys):
    """A plan whose argument is 64 bits where the kernel has 32 is found by the code object's own metadata."""
    path, out = plan_file(tmp_path, capsys, "--standard"), tmp_path / "out"
    damaged = json.loads(path.read_text())
    damaged["launches"][0]["args"][-1]["type"] = "i64"
    path.write_text(json.dumps(damaged))
    assert cli.main(["kernels", "build", "--plan", str(path), "--out", str(out)]) == 1
    shown = capsys.readouterr().err
    (line,) = (line for line in shown.splitlines() if "where the plan has" in line)
    assert line.startswith("qk_matmul gfx1100 DTYPE=f16: qk_matmul.")
    assert "qk_matmul takes head_dim: by_value of 4 bytes" in line
    assert not (out / "manifest.json").exists()


@pytest.mark.usefixtures("kernel_cache")
def test_a_kernel_that_does_not_compile_is_status_1_and_named(tmp_path, capsys, monkeypatch):
    """The others are built where nothing is there yet; the compiler's own line is shown."""
    path = plan_file(tmp_path, capsys, "--standard")
    variants = kernel_build.variants_of(LaunchPlan.from_dict(json.loads(path.read_text())))
    broken = [dataclasses.replace(variants[0], defines={"DTYPE": "nonsense"}), *variants[1:]]
    monkeypatch.setattr(kernel_build, "variants_of", lambda _: broken)
    assert cli.main(["kernels", "build", "--plan", str(path), "--out", str(tmp_path / "out")]) == 1
    shown = capsys.readouterr().err
    assert "qk_matmul gfx1100 DTYPE=nonsense: qk_matmul.hip does not compile for gfx1100" in shown
    assert f"1 of {len(variants)} failed" in shown
    built = list((tmp_path / "out").glob("*.hsaco"))
    assert len(built) == len(variants) - 1
    for file in built:
        file.write_text("an earlier build's")
    assert cli.main(["kernels", "build", "--plan", str(path), "--out", str(tmp_path / "out")]) == 1
    assert {file.read_bytes() for file in built} == {b"an earlier build's"}


@pytest.mark.usefixtures("kernel_cache")
def test_interrupted_build_resumes(tmp_path, capsys, monkeypatch):
    """Ctrl-C leaves whole files and no manifest; the next run makes the rest."""
    path, out = plan_file(tmp_path, capsys, "--standard"), tmp_path / "out"
    command = ["kernels", "build", "--plan", str(path), "--out", str(out), "--jobs", "1"]
    compile_hip, calls = kernel_build.compile_hip, []

    def interrupted(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return compile_hip(*arguments, **options)

    monkeypatch.setattr(kernel_build, "compile_hip", interrupted)
    assert cli.main(command) == 130
    assert "interrupted\n" in capsys.readouterr().err
    finished = {file.name: file.read_bytes() for file in out.iterdir()}
    assert "manifest.json" not in finished
    assert len(finished) >= 4
    assert all(name.endswith((".hsaco", ".s")) for name in finished)
    assert cli.main(command) == 0
    assert {name: (out / name).read_bytes() for name in finished} == finished
    assert (out / "manifest.json").exists()


@pytest.mark.usefixtures("kernel_cache")
def test_a_folder_that_takes_no_files_is_one_line(tmp_path, capsys):
    """The message names the file and the cause."""
    path = plan_file(tmp_path, capsys, "--standard")
    (tmp_path / "out").write_text("a file is in the way")
    assert cli.main(["kernels", "build", "--plan", str(path), "--out", str(tmp_path / "out")]) == 4
    assert "cannot write" in capsys.readouterr().err


def test_plan_and_bench_describe_shapes_alike():
    """One option means one thing in both commands."""
    from rocattn_profiling.cli import parser_for

    for verb in ("plan", "bench"):
        options = {flag for action in parser_for(verb)._actions for flag in action.option_strings}
        wanted = {f"--{name.replace('_', '-')}" for name in SIZES} | {
            "--causal",
            "--window",
            "--softcap",
            "--layout",
            "--dtype",
        }
        assert wanted <= options
