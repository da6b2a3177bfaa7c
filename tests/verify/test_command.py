"""``rocattn verify`` finds wrong backends, says how to see each failure again, and never passes by doing nothing."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rocattn.backend import Support
from rocattn.backends import BACKENDS, CpuBackend
from rocattn.backends.gpu import GpuBackend
from rocattn.config import FP8_DTYPES
from rocattn_profiling.base.lds_banks import lds_groups_text
from rocattn_profiling.cli import main
from rocattn_profiling.verify.cases import FAMILIES, LEVELS, cases, find_case
from rocattn_profiling.verify.run import verify

from ..screens import line


class Faulty(CpuBackend):
    """The cpu backend with a fault of choice."""

    name = "faulty"
    fault = ""

    def available(self):
        """Absent if told so."""
        return Support(ok=self.fault != "absent", reason="it was left at home")

    def supports(self, config):
        """Nothing if told so."""
        if self.fault == "no answer":
            return None
        if self.fault == "cannot say":
            raise KeyError("dtype")
        return Support(ok=self.fault != "refuses", reason="not today") and super().supports(config)

    def forward(self, config, operands, out, lse):
        """Compute, but wrongly."""
        if self.fault in {"raises", "complains"}:
            raise MemoryError("no room\nat all" + "\na race of threads" * (self.fault == "complains") * 100)
        if self.fault == "exits":
            raise SystemExit(0)
        kept = out.copy()
        super().forward(config, operands, out, lse)
        if self.fault == "unwritten" and out.size:
            out[..., -1] = kept[..., -1]
        if self.fault == "off":
            out *= out.dtype.type(1.03)


@pytest.fixture
def faulty():
    """A registered faulty backend."""
    yield BACKENDS.register(Faulty())
    BACKENDS.unregister("faulty")


def run(capsys, tmp_path, *words):
    """(status, stdout, stderr) of the command."""
    status = main(["verify", "--out", str(tmp_path), *words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def accuracy(level):
    """A level's cases of the sweep over options."""
    return [case for case in cases(level) if case.family == "accuracy"]


def label(**wanted):
    """The first quick forward case with these config fields."""
    return next(
        case.label
        for case in accuracy("quick")
        if case.config.direction == "forward"
        and case.config.seq_q * case.config.seq_k > 100
        and all(getattr(case.config, name) == value for name, value in wanted.items())
    )


def test_quick_cases_pass_on_the_builtin_backends(capsys, tmp_path):
    """They are right on cpu and cpu-flash; JSON is alone on stdout and equals verify.json.

    Two families with all reasons for leaving a case out: docs/getting-started.md runs the others, too.
    """
    words = ["--quick", "--family", "basics", "fp8", "--json", "--backend", "cpu", "cpu-flash"]
    status, out, err = run(capsys, tmp_path, *words)
    assert status == 0
    report = json.loads(out)
    assert report == json.loads((tmp_path / "verify.json").read_text())
    assert report["failed"] == 0
    assert report["ran"] >= 50
    double = next(case.config for case in cases("quick") if case.config.dtype == "float64")
    reason = BACKENDS.get("cpu-flash").supports(double).reason
    small = {f"cpu-flash takes no 8-bit keys and values, here {name}" for name in FP8_DTYPES}
    assert {o["skipped"] for o in report["outcomes"] if o["skipped"]} == {reason, *small}
    assert "0 wrong" in err


@pytest.mark.parametrize("fault", ["unwritten", "off", "raises"])
def test_wrong_backend_fails_with_a_command_to_see_it_again(capsys, tmp_path, faulty, fault):
    """An unwritten element, a 3 % error and an exception each give status 1 and a line that reproduces it."""
    faulty.fault = fault
    case = label(dtype="float32")
    status, _, err = run(capsys, tmp_path, "--case", case, "--backend", "faulty")
    assert status == 1
    line = next(line for line in err.splitlines() if line.startswith("WRONG"))
    assert line.endswith(f"again: rocattn verify --case {case} --backend faulty")
    assert line.startswith(f"WRONG faulty {case}: MemoryError: no room at all; ") == (fault == "raises")
    faulty.fault = ""
    assert run(capsys, tmp_path, *line.split(" rocattn verify ")[1].split())[0] == 0


def test_a_long_complaint_is_printed_once_and_short(capsys, tmp_path, faulty):
    """Its beginning, and of other cases where it is; verify.json has all of it."""
    faulty.fault = "complains"
    _, _, err = run(capsys, tmp_path, "--quick", "--family", "basics", "--backend", "faulty")
    lines = [line for line in err.splitlines() if line.startswith("WRONG")]
    first, second = (line.split(" ", 3)[2].rstrip(":") for line in lines[:2])
    begins, ends = "MemoryError: no room at all a race of threads a race of ", "(1,827 characters in verify.json)"
    again = [f"; again: rocattn verify --case {case} --backend faulty" for case in (first, second)]
    assert re.fullmatch(re.escape(f"WRONG faulty {first}: {begins}") + ".*… " + re.escape(ends + again[0]), lines[0])
    assert lines[1] == f"WRONG faulty {second}: as in {first} {ends}{again[1]}"
    assert max(map(len, lines)) < 700
    fault = json.loads((tmp_path / "verify.json").read_text())["failures"][1]["fault"]
    assert (len(fault), fault.count("a race of threads")) == (1827, 100)


def test_the_summary_names_the_architecture(capsys, tmp_path, monkeypatch):
    """Of the stand-in also that there are others; of a GPU nothing more; of backends without one nothing."""
    monkeypatch.setattr(GpuBackend, "available", lambda _: Support(ok=True))
    monkeypatch.setattr(GpuBackend, "supports", lambda *_: Support(ok=False, reason="not today"))
    runtime = SimpleNamespace(arch="gfx942", device=SimpleNamespace(is_stand_in=True))
    monkeypatch.setattr(GpuBackend, "_first_device", lambda _: (runtime, ""))
    monkeypatch.setattr(GpuBackend, "runtime", lambda _: runtime)
    for stand_in, words in (
        (True, "gpu: the stand-in for gfx942, 1 of 6 architectures (ROCATTN_HOSTGPU_ARCH picks another)"),
        (False, "gpu: gfx942"),
    ):
        runtime.device.is_stand_in = stand_in
        _, _, err = run(capsys, tmp_path, "--case", label(), "--backend", "cpu", "gpu")
        assert (
            err.splitlines()[-1].partition("; written to ")[0]
            == f"verify: 1 checked, 0 wrong, 1 not supported; {words}"
        )


def test_without_a_gpu_the_stand_in_is_named(capsys, tmp_path, monkeypatch):
    """Only to who asked for a GPU and has neither."""
    monkeypatch.setattr(GpuBackend, "available", lambda _: Support(ok=False, reason="no HIP runtime"))
    monkeypatch.setattr("rocattn.gpu.driver.stand_in_at_hand", lambda: False)
    status, _, err = run(capsys, tmp_path, "--case", label(), "--backend", "gpu")
    hint = "without a GPU: ROCM_PATH=$(rocattn doctor --hostgpu) rocattn verify --backend gpu"
    assert (status, hint in err.splitlines()) == (3, True)
    assert hint not in run(capsys, tmp_path, "--case", label())[2]
    monkeypatch.setattr("rocattn.gpu.driver.stand_in_at_hand", lambda: True)
    assert hint not in run(capsys, tmp_path, "--case", label(), "--backend", "gpu")[2]


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        # Whatever it does where an answer was due is a failure of the case, and no status 0.
        ("no answer", 1, "ConfigError: backend 'faulty' answers None: it must answer a rocattn.Support"),
        ("cannot say", 1, "KeyError: 'dtype'"),
        ("exits", 1, "SystemExit: 0"),
        # Nothing that ran is no pass.
        ("absent", 3, "it was left at home"),
        ("refuses", 3, "not supported"),
    ],
)
def test_a_backend_that_does_not_compute_is_no_pass(capsys, tmp_path, faulty, fault, status, words):
    """It ends no run, and its reason is told."""
    faulty.fault = fault
    found, _, err = run(capsys, tmp_path, "--quick", "--family", "basics", "--backend", "faulty")
    wrong = [line for line in err.splitlines() if line.startswith("WRONG")]
    assert (found, bool(wrong)) == (status, status == 1)
    assert words in (wrong[0] if wrong else err)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--backend", "gqu"], "no backend is named 'gqu'; registered: cpu-flash, cpu"),
        (["--case", "b1"], "no case has the label 'b1'"),
        (["--family", "shapes"], "no family is named 'shapes': use one of basics, accuracy,"),
        (
            ["--case", label(), "--family", "gradients"],
            "the case given with --case is in the family accuracy: name that, or no --family",
        ),
        (["--backend-module", "no_such_module"], "cannot import the backend module 'no_such_module'"),
    ],
)
def test_bad_arguments_are_one_line(capsys, tmp_path, words, message):
    """An unknown backend or case is status 4 and one line."""
    status, out, err = run(capsys, tmp_path, *words)
    assert status == 4
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("number", "how"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_an_interrupted_run_keeps_what_was_finished(capsys, tmp_path, faulty, number, how):
    """Ctrl-C in the second case, or a cancelled CI job, leaves the first one's outcome beside a whole run's files."""
    calls = []
    compute = faulty.forward

    def forward(*arguments):
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(number)
        compute(*arguments)

    faulty.forward = forward
    words = ["verify", "--family", "visibility", "--quick", "--backend", "faulty", "--out", str(tmp_path)]
    try:
        status = main(words)
    except SystemExit as error:
        status = error.code
    err = capsys.readouterr().err
    assert status == 128 + number
    assert re.search(rf"{how}; kept 1 of \d+ in {tmp_path}/cases.jsonl; the same command continues\n", err)
    report = json.loads((tmp_path / "interrupted/verify.json").read_text())
    assert (report["ran"], report["failed"]) == (1, 0)
    assert "1 check " in (tmp_path / "interrupted/index.html").read_text()
    assert not (tmp_path / "verify.json").exists()
    assert main(words) == 0
    resumed = line(capsys.readouterr().err, "resuming")
    assert resumed == f"verify: resuming an earlier run, cases done: 1 ({tmp_path}/cases.jsonl)"
    report = json.loads((tmp_path / "verify.json").read_text())
    assert len(calls) == report["ran"] + 1, "the first case was not run again, the second was"
    assert not (tmp_path / "cases.jsonl").exists()


def test_a_crash_leaves_the_command_of_the_case_behind(tmp_path):
    """A backend that kills the process: running.txt says which case it was, the screen where; else there is neither."""
    code = "import sys; from rocattn_profiling.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["verify", "--quick", "--backend-module", "odd_backends", "--out", str(tmp_path), "--backend"]
    kept = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "bench")}

    def end(backend):
        done = subprocess.run(
            [sys.executable, "-c", code, *words, backend, "--family", "positions"],
            env=kept, capture_output=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stderr.decode()

    status, said = end("odd-good")
    assert (status, "Fatal" in said) == (0, False)
    assert not (tmp_path / "running.txt").exists()
    status, said = end("odd-crash")
    assert status == -signal.SIGSEGV
    assert line(said, "Fatal") == "Fatal Python error: Segmentation fault"
    assert "odd_backends.py" in said
    command = (tmp_path / "running.txt").read_text().strip()
    assert command.startswith("rocattn verify --case positions/")
    assert command.endswith(" --backend odd-crash --backend-module odd_backends")


def test_json_is_alone_on_stdout_whatever_a_backend_prints(tmp_path):
    """What a user's module prints when it is imported, and its backend with every call, joins stderr."""
    (tmp_path / "loud_backend.py").write_text(
        "import os\nfrom rocattn.backends import BACKENDS, CpuBackend\nprint('imported')\n"
        "class Loud(CpuBackend):\n    name = 'loud'\n"
        "    def forward(self, *words):\n        print('called')\n        os.write(1, b'native')\n"
        "        super().forward(*words)\nBACKENDS.register(Loud())\n"
    )
    words = ["verify", "--quick", "--family", "visibility", "--backend", "loud", "--backend-module", "loud_backend"]
    command = [sys.executable, "-m", "rocattn_profiling.cli", *words, "--json", "--out", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["failed"] == 0
    assert all(word in done.stderr for word in ("imported", "called", "native"))


@pytest.mark.parametrize("verb", ["verify", "bench", "memory"])
def test_a_script_as_backend_module_does_not_end_the_command(tmp_path, monkeypatch, capsys, verb):
    """Its ``sys.exit(0)`` would be the status of a command that checked and measured nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "a_script_that_exits.py").write_text("import sys\nsys.exit(0)\n")
    assert main([verb, "--quick", "--backend-module", "a_script_that_exits", "--out", "out"]) == 4
    told = f"rocattn {verb}: cannot import the backend module 'a_script_that_exits': SystemExit: 0\n"
    assert capsys.readouterr().err == told


def test_unwritable_folder_is_one_line(capsys, tmp_path):
    """A file where the folder should be is status 4 and one line that names it."""
    (tmp_path / "file").write_text("")
    status = main(["verify", "--case", label(), "--out", str(tmp_path / "file")])
    assert status == 4
    assert "cannot write" in capsys.readouterr().err


def test_cases_cover_every_pair_of_options():
    """Each dtype, layout, band, mask kind and direction occurs with each of the others, quick ones; dropout apart."""
    features = [
        {
            ("dtype", c.dtype), ("layout", c.layout), ("direction", c.direction), ("mask", c.mask),
            ("band", (c.causal, c.window)), ("softcap", c.softcap), ("alibi", c.alibi), ("sinks", c.sinks),
            ("group", c.num_heads // c.num_kv_heads), ("seq", (c.seq_q, c.seq_k)), ("data", case.data),
        }
        for case in accuracy("quick")
        for c in [case.config]
        if not c.dropout_p
    ]  # fmt: skip
    values = sorted(set().union(*features), key=repr)
    missing = [
        (a, b)
        for a, b in itertools.combinations(values, 2)
        if a[0] != b[0] and not any(a in row and b in row for row in features)
    ]
    assert missing == []
    assert len(features) < 90


def test_cases_have_distinct_labels_and_are_found_by_them():
    """A label names one case at any level; all sixteen mask shapes occur; levels hold those below."""
    everything = cases("full")
    assert len({case.label for case in everything}) == len(everything)
    assert everything[: len(cases("quick"))] == cases("quick")
    assert everything[: len(cases("core"))] == cases("core")
    assert find_case(everything[-1].label) == everything[-1]
    for kind in ("bool", "additive"):
        shapes = {
            tuple(m != 1 for m in c.config.mask_shape)
            for c in accuracy("full")
            if c.config.mask == kind and min(c.config.scores_shape) > 1
        }
        assert len(shapes) == 16


@pytest.mark.parametrize("level", LEVELS)
def test_every_family_has_cases_at_every_level(level):
    """No family is left out of a level but layouts, which the sweep covers at the quick one."""
    assert set(FAMILIES) - {case.family for case in cases(level)} <= ({"layouts"} if level == "quick" else set())
    assert all(not set(case.label) & set(" '\"$&|;<>()*?") for case in cases(level))


def test_families_are_listed_with_their_cases(capsys, tmp_path):
    """--list computes nothing; its JSON has what the level has."""
    status, out, err = run(capsys, tmp_path, "--list", "--quick", "--json")
    assert status == 0
    listed = {row["family"]: row["cases"] for row in json.loads(out)}
    assert list(listed) == list(FAMILIES)
    assert sum(listed.values()) == len(cases("quick"))
    assert "determinism" in err
    assert list(tmp_path.iterdir()) == []


def test_the_report_has_ulps_of_backend_and_naive_program(capsys, tmp_path):
    """Each tensor of each case: largest, relative and RMS error and ULPs, beside what a naive program has."""
    status, out, _ = run(capsys, tmp_path, "--case", label(dtype="float16"), "--backend", "cpu", "--json")
    assert status == 0
    report = json.loads(out)
    ((outcome,), edges) = report["outcomes"], report["ulp_edges"]
    assert [(t["what"], t["dtype"]) for t in outcome["tensors"]] == [("out", "float16"), ("lse", "float32")]
    for tensor in outcome["tensors"]:
        assert tensor["ratio"] <= 1
        for program in ("mine", "naive"):
            assert len(tensor[program]["ulps"]) == len(edges) + 1
            assert tensor[program]["max_abs"] >= tensor[program]["rms"] > 0
    out_tensor = outcome["tensors"][0]
    assert out_tensor["mine"]["ulps"][0] > out_tensor["naive"]["ulps"][0]  # rounded once, not after each step
    assert sum(out_tensor["mine"]["ulps"]) == sum(out_tensor["naive"]["ulps"])


def test_outputs_are_given_to_the_backend_as_nan(faulty):
    """What a backend does not write is NaN when it is judged."""
    seen = []
    faulty.forward = lambda _config, _operands, out, lse: seen.extend([np.isnan(out).all(), np.isnan(lse).all()])
    (outcome,) = verify([find_case(label())], [faulty]).outcomes
    assert seen == [True, True]
    assert not outcome.ok


def test_lds_conflicts_are_asked_of_the_stand_in(tmp_path, monkeypatch):
    """The stand-in gets the groups of its architecture; a run on other backends is what it is without."""
    monkeypatch.setenv("ROCATTN_HOSTGPU_LDS_GROUPS", "")
    monkeypatch.setenv("ROCATTN_HOSTGPU_ARCH", "gfx942")
    case = cases("quick", [CpuBackend()])[0].label
    assert main(["verify", "--case", case, "--backend", "cpu", "--lds-conflicts", "--out", str(tmp_path)]) == 0
    assert os.environ["ROCATTN_HOSTGPU_LDS_GROUPS"] == lds_groups_text("gfx942", 64)
