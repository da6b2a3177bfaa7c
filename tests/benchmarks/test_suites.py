"""The asv suites: discoverable, named for people, versioned by hand, skipping what cannot run, and really running."""

import importlib.util
import json
import math
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import asv.benchmark
import pytest

from benchmarks.bench_forward import OddThreads
from rocattn.backends import BACKENDS
from rocattn.gpu.arch import TESTED
from rocattn.threads import thread_count
from rocattn_profiling.kernels.shipped import shipped_kernels
from rocattn_profiling.workloads.grids import GRIDS

ROOT = Path(__file__).parents[2]
SUITES = ROOT / "benchmarks"
QUICK = re.compile(r"\.Quick")
_spec = importlib.util.spec_from_file_location("suites_common", SUITES / "common.py")
COMMON = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(COMMON)


def bare(**changes):
    """Return the environment of asv's processes as it is now: one thread, and the default suite."""
    kept = {k: v for k, v in os.environ.items() if k != "ROCATTN_ASV_FULL"}
    return kept | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} | changes


def without_compilers(folder):
    """Return `bare` where there is none: an empty PATH, no ROCm, and a package of the pinned one that holds nothing."""
    (folder / "packages" / "ziglang").mkdir(parents=True, exist_ok=True)
    (folder / "packages" / "ziglang" / "__init__.py").touch()
    kept = {name: value for name, value in bare().items() if name != "ROCATTN_COMPILER"}
    return kept | dict.fromkeys(("PATH", "ROCM_PATH"), str(folder)) | {"ASV_PYTHONPATH": str(folder / "packages")}


def asv_script(cwd, *arguments, env=None, suites=SUITES):
    """Run the script that asv runs in each environment."""
    command = [sys.executable, asv.benchmark.__file__, arguments[0], str(suites), *arguments[1:]]
    environment = env or bare()
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=1200, check=False)


def discover(folder, **env):
    """Every benchmark's description by name."""
    done = asv_script(folder, "discover", str(folder / "found.json"), env=bare(**env))
    assert done.returncode == 0, done.stderr
    return {b["name"]: b for b in json.loads((folder / "found.json").read_text())}


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """The default suite."""
    return discover(tmp_path_factory.mktemp("suite"))


def run_one(folder, name, suites=SUITES):
    """(result, exit status, stderr) of one benchmark combination ("name-3"), as asv runs it."""
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    done = asv_script(folder, "run", name, "{}", "None", str(answer), suites=suites)
    return json.loads(answer.read_text()) if answer.exists() else None, done.returncode, done.stderr


def git(*arguments):
    """Return what git prints of this repository."""
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_asv_sees_only_suites():
    """Discovery imports every module here: programs of other kinds stand in folders without an __init__.py."""
    found = {module.name for module in pkgutil.iter_modules([str(SUITES)])}
    assert {name for name in found if not name.startswith("bench_")} == {"common"}


def test_asv_check_finds_nothing_wrong(tmp_path):
    """asv's own check of arguments and attributes passes."""
    done = asv_script(tmp_path, "check")
    assert (done.returncode, done.stdout) == (0, "")


def test_every_kind_of_benchmark_is_there(suite):
    """Forward, backward, decode, memory, accuracy and audit; time, peak memory and tracked values with units."""
    assert {name.split(".")[0] for name in suite} == {
        "bench_forward", "bench_backward", "bench_decode", "bench_memory", "bench_accuracy", "bench_audit",
        "bench_gpu",
    }  # fmt: skip
    assert {(b["type"], b["unit"]) for b in suite.values()} == {
        ("time", "seconds"), ("peakmemory", "bytes"), ("track", "bytes"), ("track", "ulp"), ("track", "registers"),
        ("track", "waves"), ("track", "cycles"),
    }  # fmt: skip


def test_versions_are_set_by_hand(suite):
    """asv's default version is a hash of the source: reformatting a benchmark would void its history."""
    assert {b["version"] for b in suite.values()} == {"1"}


def test_timings_state_how_they_are_sampled(suite):
    """asv-runner 0.3 times one call a sample wherever there is a setup, unless number is given."""
    timed = [b for b in suite.values() if b["type"] == "time"]
    assert timed
    assert all(b["number"] >= 1 and b["rounds"] >= 2 and b["warmup_time"] > 0 for b in timed)


def test_parameters_are_backend_and_config_label(suite):
    """asv's pages show parameters as they are: names of backends, labels of configs, no objects."""
    for name, benchmark in ((name, suite[name]) for name in suite if suite[name] in running(suite)):
        assert benchmark["param_names"] == ["backend", "config"]
        only = {"Odd", "OddThreads", "Varlen"} & set(name.split("."))  # sizes that cpu-flash is held to
        assert benchmark["params"][0] == (["'cpu-flash'"] if only else ["'cpu'", "'cpu-flash'"])
        assert all(re.fullmatch(r"'b\d+-h\d+(x\d+)?-q\d+-k\d+-d\d+[\w.-]*'", value) for value in benchmark["params"][1])


def running(suite):
    """Return the benchmarks that run attention here; the others read machine code, or need a GPU."""
    return [benchmark for name, benchmark in suite.items() if not name.startswith(("bench_audit.", "bench_gpu."))]


def test_default_suites_are_the_quick_subsets(suite, tmp_path):
    """The suites run what `rocattn bench --quick` runs; ROCATTN_ASV_FULL=1 takes the whole grids."""
    full = discover(tmp_path, ROCATTN_ASV_FULL="1")
    assert full.keys() == suite.keys()
    for name, grid in (
        ("bench_forward.Inference.time_attention", "inference"),
        ("bench_decode.Decode.time_decode", "decode"),
    ):
        for benchmarks, quick in ((suite, True), (full, False)):
            assert benchmarks[name]["params"][1] == [repr(c.label) for c in GRIDS[grid].configs(quick=quick)]


def test_quick_classes_are_few(suite):
    """The gate's quick mode measures some eight combinations: forward causal and not, backward, decode."""
    quick = [b for b in running(suite) if QUICK.search(b["name"])]
    assert sum(len(b["params"][0]) * len(b["params"][1]) for b in quick) in range(6, 11)
    exact = [b for name, b in suite.items() if QUICK.search(name) and name.startswith("bench_audit.")]
    assert [len(b["params"][0]) * len(b["params"][1]) for b in exact] == [1, 1, 1, 1]
    labels = " ".join(v for b in quick for v in b["params"][1])
    assert "bwd" in labels
    assert "q1-" in labels
    assert "q128-k128-d64-float32" in labels
    assert "causal" in labels


def quick_combinations():
    """Every quick combination by asv's name; read from the suites themselves."""
    return [
        ("bench_forward.QuickForward.time_attention", 4),
        ("bench_backward.QuickBackward.time_attention_backward", 2),
        ("bench_decode.QuickDecode.time_decode", 2),
    ]


@pytest.mark.parametrize(("name", "count"), quick_combinations(), ids=lambda v: str(v).split(".")[-1])
def test_every_quick_benchmark_runs(suite, tmp_path, name, count):
    """Each combination, in a process of its own as asv starts it, gives positive samples."""
    params = suite[name]["params"]
    assert len(params[0]) * len(params[1]) == count
    for index in range(count):
        answer, status, stderr = run_one(tmp_path, f"{name}-{index}")
        assert status == 0, stderr
        backend = params[0][index // len(params[1])].strip("'")
        if not (able := BACKENDS.get(backend).available()):
            assert answer != answer, f"{backend} ran though {able.reason}"  # noqa: PLR0124 - NaN: skipped
            continue
        assert min(answer["samples"]) > 0
        assert len(answer["samples"]) >= 5


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("bench_memory.Forward.peakmem_attention-0", 1 << 20, 1 << 33),
        ("bench_memory.Forward.track_workspace-0", 0, 1 << 33),
        ("bench_memory.Counted.track_allocated-0", 1 << 20, 1 << 33),
        ("bench_accuracy.Forward.track_max_error-0", 0.0, 8.0),
    ],
    ids=["peakmem", "workspace", "allocated", "ulp"],
)
def test_one_of_each_other_kind_runs(tmp_path, name, least, most):
    """Peak memory, workspace and error are numbers that asv can show, lower is better."""
    answer, status, stderr = run_one(tmp_path, name)
    assert status == 0, stderr
    assert least <= answer <= most


def test_audited_kernels_are_those_that_are_shipped(suite, tmp_path):
    """asv shows arch and kernel; each name is one that `rocattn kernels audit` knows, in the full suite, too."""
    full = discover(tmp_path, ROCATTN_ASV_FULL="1")
    known = {(one.arch, one.name) for one in shipped_kernels(TESTED)}
    for benchmarks in (suite, full):
        for name, benchmark in benchmarks.items():
            if name.startswith("bench_audit."):
                assert benchmark["param_names"] == ["arch", "kernel"]
                archs, kernels = ([value.strip("'") for value in values] for values in benchmark["params"])
                assert {(arch, kernel) for arch in archs for kernel in kernels} <= known
    assert len(full["bench_audit.Kernels.track_vgprs"]["params"][1]) > 3
    assert suite["bench_audit.Kernels.track_vgprs"]["params"][0] == [repr(arch) for arch in TESTED]


@pytest.mark.parametrize(
    ("metric", "least", "most"),
    [("vgprs", 1, 512), ("lost_wave_slots", 0, 8), ("spills", 0, 256), ("hot_loop", 1, 1e6)],
)
def test_machine_code_is_tracked(tmp_path, metric, least, most):
    """Each number as asv takes it, from a kernel compiled there; without a compiler it is skipped with the reason."""
    name = f"bench_audit.QuickKernels.track_{metric}-0"
    answer, status, stderr = run_one(tmp_path, name)
    assert status == 0, stderr
    if answer == answer:  # noqa: PLR0124 - not NaN: there is a compiler
        assert least <= answer <= most
    env = without_compilers(tmp_path)
    done = asv_script(tmp_path, "run", name, "{}", "None", str(tmp_path / "answer.json"), env=env)
    assert done.returncode == 0, done.stderr
    assert math.isnan(json.loads((tmp_path / "answer.json").read_text()))
    assert "packages/ziglang/zig does not start" in done.stderr + done.stdout


def test_a_missing_backend_is_skipped_not_failed(tmp_path, suite):
    """NotImplementedError in setup: asv records n/a for a backend that this commit or machine does not have."""
    copy = tmp_path / "benchmarks"
    copy.mkdir()
    for path in SUITES.glob("*.py"):
        (copy / path.name).write_text(
            path.read_text().replace('GRIDS["decode"].backends', '("cpu", "no-such-backend")')
        )
    index = len(suite["bench_decode.QuickDecode.time_decode"]["params"][1])
    answer, status, stderr = run_one(tmp_path, f"bench_decode.QuickDecode.time_decode-{index}", suites=copy)
    assert status == 0, stderr
    assert answer != answer  # noqa: PLR0124 - NaN is asv's word for skipped


def test_without_a_compiler_the_native_kernels_are_skipped(tmp_path):
    """In an environment where they cannot be compiled asv records n/a for cpu-flash, and cpu goes on."""
    answers = []
    for index in range(2):
        env = without_compilers(tmp_path)
        answer = tmp_path / f"{index}.json"
        name = f"bench_decode.QuickDecode.time_decode-{index}"
        done = asv_script(tmp_path, "run", name, "{}", "None", str(answer), env=env)
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(answer.read_text()))
    assert min(answers[0]["samples"]) > 0
    assert math.isnan(answers[1])


def test_grids_come_from_the_working_tree(tmp_path):
    """Parameters travel by position: beside a repository the suite reads its grids, not the installed ones."""
    source = (ROOT / "profiling/rocattn_profiling/workloads/grids.py").read_text()
    changed = source.replace("for n in (32, 64, 128, 256, 512):", "for n in (48, 512):").replace(
        "{32, 128, 512}", "{48}"
    )
    assert changed != source
    beside = tmp_path / "profiling/rocattn_profiling/workloads"
    beside.mkdir(parents=True)
    (beside / "grids.py").write_text(changed)
    copy = tmp_path / "benchmarks"
    copy.mkdir()
    for path in SUITES.glob("*.py"):
        (copy / path.name).write_text(path.read_text())
    done = asv_script(tmp_path, "discover", str(tmp_path / "found.json"), suites=copy)
    assert done.returncode == 0, done.stderr
    found = {b["name"]: b for b in json.loads((tmp_path / "found.json").read_text())}
    assert found["bench_forward.Square.time_attention"]["params"][1] == ["'b1-h1-q48-k48-d48-float32'"]


@pytest.mark.parametrize("name", COMMON.FORMER_NAMES)
def test_a_module_that_suites_need_exists_under_its_name(name):
    """Else every commit from now on would lack it."""
    assert importlib.util.find_spec(name) is not None


@pytest.mark.parametrize(
    ("name", "former"), [(name, former) for name, formers in COMMON.FORMER_NAMES.items() for former in formers]
)
def test_an_earlier_layout_has_the_module_elsewhere(tmp_path, name, former):
    """Where only the former name exists it is imported; and it did exist, as far as this clone's history goes."""
    path = f"{former.replace('.', '/')}.py"
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text("former = True\n")
    (tmp_path / "rocattn_profiling/__init__.py").touch()  # else the installed one is a part of the same namespace
    shutil.copy(SUITES / "common.py", tmp_path / "common.py")
    code = f"import common; assert common.needed({name!r}).former"
    layout = {**os.environ, "PYTHONPATH": str(tmp_path)}
    (tmp_path / "rocattn_profiling/workloads").mkdir(exist_ok=True)
    (tmp_path / "rocattn_profiling/workloads/grids.py").write_text("GRIDS = {}\n")
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=layout, check=True)
    if not (ROOT / ".git").exists() or git("rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("no history here to look the former name up in")
    assert git("rev-list", "-1", "HEAD", "--", f"profiling/{path}")


def test_four_threads_on_machines_that_have_them(monkeypatch):
    """With fewer CPUs the benchmark is skipped; afterwards the process chooses its threads again."""
    case, label = OddThreads(), next(iter(OddThreads.configs))
    monkeypatch.delenv("ROCATTN_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    with pytest.raises(NotImplementedError, match="fewer than 4 CPUs"):
        case.setup("cpu-flash", label)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    case.setup("cpu-flash", label)
    assert thread_count() == 4
    case.teardown()
    assert "ROCATTN_NUM_THREADS" not in os.environ
