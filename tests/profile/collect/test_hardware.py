"""The GPUs as the kernel shows them, and what is said where it shows nothing."""

import os

import pytest

from rocattn_profiling.profile.collect import hardware


@pytest.mark.parametrize(
    ("version", "arch"),
    [
        (90402, "gfx942"),
        (90010, "gfx90a"),
        (90500, "gfx950"),
        (100300, "gfx1030"),
        (110000, "gfx1100"),
        (120001, "gfx1201"),
    ],
)
def test_the_architecture_is_read_from_the_kernels_number(tmp_path, version, arch):
    """gfx_target_version is decimal major, minor and step; the name has the last two in hexadecimal."""
    node = tmp_path / "sys/class/kfd/kfd/topology/nodes/1"
    node.mkdir(parents=True)
    (node / "properties").write_text(f"simd_count 8\nsimd_per_cu 2\ngfx_target_version {version}\n")
    assert hardware.examine(tmp_path).archs == (arch,)


def test_clocks_level_and_units_are_read(machine):
    """The clock in use is the starred one; CPU nodes are no GPUs."""
    machine.gpus("gfx1100", "gfx942", level="profile_peak")
    found = machine.examine()
    assert [gpu.arch for gpu in found.gpus] == ["gfx1100", "gfx942"]
    first = found.gpus[0]
    assert (first.performance_level, first.core_mhz, first.memory_mhz) == ("profile_peak", 2100, 900)
    assert (first.compute_units, found.told_by, found.absent) == (304, "sysfs", ())


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    """No GPU, no driver, no smi tool: each is a line, and nothing fails."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(hardware, "ask", lambda *_, **__: None)
    found = hardware.examine(tmp_path)
    assert found.gpus == ()
    assert found.kfd == "missing"
    assert len(found.absent) == 3
    assert all("\n" not in line for line in found.absent)


def test_an_smi_tool_answers_where_sysfs_does_not(tmp_path, monkeypatch):
    """Its JSON is kept as it is, also with a warning printed before it."""
    smi = tmp_path / "amd-smi"
    smi.write_text('#!/bin/sh\necho "WARNING: user is missing a group"\necho \'[{"gpu": 0, "perf_level": "AUTO"}]\'\n')
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = hardware.examine(tmp_path)
    assert (found.told_by, found.smi) == ("amd-smi", [{"gpu": 0, "perf_level": "AUTO"}])


@pytest.mark.parametrize(
    ("arch", "level", "gated"),
    [
        ("gfx1100", "auto", "auto"),
        ("gfx1201", "high", "high"),
        ("gfx1100", "profile_standard", ""),
        ("gfx942", "auto", ""),
    ],
)
def test_only_radeons_count_nothing_under_some_levels(machine, arch, level, gated):
    """auto, low and high gate Radeon's counters; profile levels do not, and Instinct is not concerned."""
    machine.gpus(arch, level=level)
    assert machine.examine().gated(arch) == gated


def test_only_the_gpus_of_one_architecture_are_to_be_seen(machine):
    """ROCR counts GPU nodes from 0; where all are of that kind, nothing needs to be hidden."""
    machine.gpus("gfx1036", "gfx1100", "gfx1100")
    assert hardware.visible(machine.examine(), "gfx1100") == "1,2"
    machine.gpus("gfx942", "gfx942")
    assert hardware.visible(machine.examine(), "gfx942") == ""
    assert hardware.visible(machine.examine(), "gfx90a") == ""


def test_only_radeons_of_the_profiled_architecture_are_gated():
    """RDNA 2 is one, an Instinct is none, and the card beside it may have any level."""

    def level(arch, *gpus):
        made = tuple(hardware.Gpu(arch, node, performance_level=own) for node, (arch, own) in enumerate(gpus))
        return hardware.Hardware(made, "6.8", "", "ok", None, "sysfs").gated(arch)

    assert level("gfx1030", ("gfx1030", "auto")) == "auto"
    assert level("gfx1100", ("gfx1036", "auto"), ("gfx1100", "profile_standard")) == ""
    assert level("gfx942", ("gfx942", "auto")) == ""
