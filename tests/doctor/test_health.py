"""`rocattn doctor --gpu`: whether there is a GPU to measure on, which the stand-in is not."""

import json

import msgspec
import pytest

from rocattn.gpu.driver import GpuDevice
from rocattn.gpu.probe import GpuProbe
from rocattn_profiling import cli
from rocattn_profiling.doctor import checks as doctor_checks
from rocattn_profiling.doctor.checks import BackendCheck, Report, gpu_problem

REAL = GpuDevice("AMD Instinct MI300X", "gfx942:sramecc+:xnack-", 304, 192 << 30, 64)
STAND_IN = GpuDevice("stand-in", "gfx942", 1, 1 << 30, 64, is_stand_in=True)
WORKS = BackendCheck("gpu", available=True, supports=True, works=True)
WRONG = msgspec.structs.replace(WORKS, works=False, reason="a small attention gives a wrong result")


def report(*devices, backend=WORKS, reason=""):
    """What doctor found."""
    cpu = BackendCheck("cpu", available=True, supports=True, works=True)
    return Report(True, [], [], GpuProbe(list(devices), reason), [cpu, *([backend] if backend else [])])


@pytest.mark.parametrize(
    ("found", "arch", "says"),
    [
        (report(REAL), "", ""),
        (report(REAL), "gfx942", ""),
        (report(REAL), "gfx90a", "it is gfx942, not gfx90a"),
        (report(STAND_IN, REAL), "gfx942", ""),
        (report(STAND_IN), "", "only the stand-in is there"),
        (report(reason="no AMD GPU: /dev/kfd is missing"), "", "/dev/kfd is missing"),
        (report(REAL, backend=WRONG), "gfx942", "gives a wrong result"),
        (report(REAL, backend=None), "", "no backend gpu"),
    ],
)
def test_a_healthy_gpu_is_there_of_the_right_kind_and_computes(found, arch, says):
    """Each way not to be healthy is named."""
    problem = gpu_problem(found, arch, allow_stand_in=False)
    assert bool(problem) == bool(says)
    assert says in problem


def test_the_stand_in_counts_where_that_is_asked_for():
    """For tests of the workflows."""
    assert gpu_problem(report(STAND_IN), "gfx942", allow_stand_in=True) == ""


def test_the_command_fails_in_one_line_and_still_reports(monkeypatch, capsys):
    """Status 4; the JSON is there all the same."""
    monkeypatch.setattr(doctor_checks, "examine", lambda _: report(reason="none here"))
    assert cli.main(["doctor", "--json"]) == 0
    assert cli.main(["doctor", "--json", "--gpu", "gfx942"]) == 4
    captured = capsys.readouterr()
    assert captured.err == "rocattn doctor: no GPU to measure on: none here\n"
    assert json.loads(captured.out.split("\n}\n")[0] + "}")["gpu"]["reason"] == "none here"
