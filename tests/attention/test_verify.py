"""``rocattn verify`` finds wrong backends, says how to see each failure again, and never passes by doing nothing."""

import itertools
import json

import numpy as np
import pytest

from rocattn.backends import BACKENDS, CpuBackend
from rocattn.registry import Support
from rocattn_profiling.cli import main
from rocattn_profiling.measure.verification import cases, find_case, verify


class Faulty(CpuBackend):
    """The cpu backend with a fault of choice."""

    name = "faulty"
    fault = ""

    def available(self):
        """Absent if told so."""
        return Support(ok=self.fault != "absent", reason="it was left at home")

    def supports(self, config):
        """Nothing if told so."""
        return Support(ok=self.fault != "refuses", reason="not today") and super().supports(config)

    def forward(self, config, operands, out, lse):
        """Compute, but wrongly."""
        if self.fault == "raises":
            raise MemoryError("no room\nat all")
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


def label(**wanted):
    """The first quick forward case with these config fields."""
    return next(
        case.label
        for case in cases(quick=True)
        if case.config.direction == "forward"
        and case.config.seq_q * case.config.seq_k > 100
        and all(getattr(case.config, name) == value for name, value in wanted.items())
    )


def test_quick_sweep_passes_on_the_builtin_backends(capsys, tmp_path):
    """Every quick case is right on cpu and cpu-flash; JSON is alone on stdout and equals verify.json."""
    status, out, err = run(capsys, tmp_path, "--quick", "--json", "--backend", "cpu", "cpu-flash")
    assert status == 0
    report = json.loads(out)
    assert report == json.loads((tmp_path / "verify.json").read_text())
    assert report["failed"] == 0
    assert report["ran"] >= 100
    double = next(case.config for case in cases(quick=True) if case.config.dtype == "float64")
    reason = BACKENDS.get("cpu-flash").supports(double).reason
    assert {o["skipped"] for o in report["outcomes"] if o["skipped"]} == {reason}
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
    assert ("MemoryError: no room at all" in line) == (fault == "raises")
    faulty.fault = ""
    assert run(capsys, tmp_path, *line.split(" rocattn verify ")[1].split())[0] == 0


@pytest.mark.parametrize(("fault", "words"), [("absent", "it was left at home"), ("refuses", "not supported")])
def test_nothing_run_is_not_a_pass(capsys, tmp_path, faulty, fault, words):
    """A backend that is absent, or refuses every case, gives status 3 and its reason."""
    faulty.fault = fault
    status, _, err = run(capsys, tmp_path, "--case", label(), "--backend", "faulty")
    assert status == 3
    assert words in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--backend", "gqu"], "no backend is named 'gqu'; registered: cpu-flash, cpu"),
        (["--case", "b1"], "no case is labelled 'b1'"),
    ],
)
def test_bad_arguments_are_one_line(capsys, tmp_path, words, message):
    """An unknown backend or case is status 4 and one line."""
    status, out, err = run(capsys, tmp_path, *words)
    assert status == 4
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_unwritable_folder_is_one_line(capsys, tmp_path):
    """A file where the folder should be is status 4 and one line that names it."""
    (tmp_path / "file").write_text("")
    status = main(["verify", "--case", label(), "--out", str(tmp_path / "file")])
    assert status == 4
    assert "cannot write" in capsys.readouterr().err


def test_cases_cover_every_pair_of_options():
    """Each dtype, layout, band, mask kind and direction occurs with each of the others, quick ones included."""
    features = [
        {
            ("dtype", c.dtype), ("layout", c.layout), ("direction", c.direction), ("mask", c.mask),
            ("band", (c.causal, c.window)), ("softcap", c.softcap), ("alibi", c.alibi), ("sinks", c.sinks),
            ("group", c.num_heads // c.num_kv_heads), ("seq", (c.seq_q, c.seq_k)), ("data", case.data),
        }
        for case in cases(quick=True)
        for c in [case.config]
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
    """A label names one case, also among the larger ones; all sixteen mask shapes occur among these."""
    everything = cases(quick=False)
    assert len({case.label for case in everything}) == len(everything)
    assert everything[: len(cases(quick=True))] == cases(quick=True)
    assert find_case(everything[-1].label) == everything[-1]
    shapes = {
        tuple(m != 1 for m in c.config.mask_shape)
        for c in everything
        if c.config.mask == "bool" and min(c.config.scores_shape) > 1
    }
    assert len(shapes) == 16


def test_outputs_are_given_to_the_backend_as_nan(faulty):
    """What a backend does not write is NaN when it is judged."""
    seen = []
    faulty.forward = lambda _config, _operands, out, lse: seen.extend([np.isnan(out).all(), np.isnan(lse).all()])
    (outcome,) = verify([find_case(label())], [faulty])
    assert seen == [True, True]
    assert not outcome.ok
