"""A pretend ROCm machine: fake profilers on PATH, a sysfs tree with GPUs, and a command to profile."""

import json
import os
import shutil
from pathlib import Path

import pytest

from rocattn_profiling.profile.collect import find, hardware, launchers
from rocattn_profiling.profile.collect.assemble import CollectionRequest, assemble
from rocattn_profiling.profile.collect.run import Session

from ...programs import python_program

FAKES = Path(__file__).parent / "fakes"
ENTRY = {
    "rocprofv3": "rocprofv3_fake.main",
    "rocprof": "rocprof_fake.main_v1",
    "rocprofv2": "rocprof_fake.main_v2",
    "rocprof-compute": "rocprof_compute_fake.main",
}
GFX_VERSION = {"gfx942": 90402, "gfx90a": 90010, "gfx1100": 110000, "gfx1036": 100306, "gfx1201": 120001}


class Machine:
    """Where everything of the pretend machine lies, and what a test changes of it."""

    def __init__(self, root):
        self.root, self.bin, self.out = root, root / "rocm" / "bin", root / "out"
        self.bin.mkdir(parents=True)
        self.calls = root / "calls.jsonl"
        self.args = root / "args.txt"
        self.app = root / "app.sh"
        self.app.write_text(
            f'#!/bin/sh\nfor a in "$@"; do printf "%s|" "$a"; done >> "{self.args}"\nexit ${{STATUS:-0}}\n'
        )
        self.app.chmod(0o755)
        self.settings = {}
        self.set(release="7.0.0", arch="gfx942", log=str(self.calls))

    def set(self, **settings):
        """Change what the fakes do."""
        self.settings |= settings
        (self.root / "settings.json").write_text(json.dumps(self.settings))

    def install(self, name, program=""):
        """Put a fake profiler into the machine's ROCm; skip where it would refuse the folder of temporary files."""
        if name in {"rocprof", "rocprofv2"}:
            try:
                launchers._refuse_unquotable(self.root)
            except launchers.PathError as error:
                pytest.skip(f"{name}: {error}")
        module, function = ENTRY[name].split(".")
        path = self.bin / (program or name)
        path.write_text(
            f"{python_program('-IS')}import sys\nsys.path.insert(0, {str(FAKES)!r})\n"
            f"from {module} import {function}\nsys.exit({function}({str(self.root / 'settings.json')!r}))\n"
        )
        path.chmod(0o755)
        return str(path)

    def gpus(self, *archs, level="auto"):
        """Give the machine GPUs, as Linux shows them."""
        shutil.rmtree(self.root / "sys", ignore_errors=True)
        nodes = self.root / "sys/class/kfd/kfd/topology/nodes"
        for number, arch in enumerate(("", *archs)):
            (nodes / str(number)).mkdir(parents=True)
            text = f"simd_count {1216 if arch else 0}\nsimd_per_cu 4\ndrm_render_minor {128 + number}\n"
            text += f"gfx_target_version {GFX_VERSION.get(arch, 0)}\n"
            (nodes / str(number) / "properties").write_text(text)
            device = self.root / f"sys/class/drm/renderD{128 + number}/device"
            device.mkdir(parents=True)
            (device / "power_dpm_force_performance_level").write_text(f"{level}\n")
            (device / "pp_dpm_sclk").write_text("0: 132Mhz\n1: 2100Mhz *\n")
            (device / "pp_dpm_mclk").write_text("0: 900Mhz *\n1: 1300Mhz\n")
        (self.root / "dev").mkdir(exist_ok=True)
        (self.root / "dev/kfd").touch()

    def examine(self):
        """Return what `hardware.examine` finds on this machine."""
        return EXAMINE(self.root)

    def job(self, *command, **request):
        """Return a job that profiles a command (the machine's own unless one is named)."""
        wanted = request.pop("wanted", ("occupancy", "memory"))
        return assemble(CollectionRequest(command or (str(self.app),), wanted=wanted, **request), self.examine())

    def collect(self, *command, resume=False, on_step=lambda _step: None, grace_s=5.0, **request):
        """Profile a command and return what there is then."""
        job = self.job(*command, **request)
        session = Session(job, self.out, examine=self.examine, resume=resume, on_step=on_step, grace_s=grace_s)
        return session.collect()

    def called(self):
        """Return the profiler's calls so far that were given a command."""
        if not self.calls.exists():
            return []
        calls = [json.loads(line) for line in self.calls.read_text().splitlines()]
        return [call for call in calls if call["argv"] not in (["--version"], ["--help"])]


EXAMINE = hardware.examine


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with one MI300X and no profiler yet; no profiler of the real machine is seen."""
    made = Machine(tmp_path)
    made.gpus("gfx942")
    monkeypatch.setattr(find, "_places", lambda: [str(made.bin)])
    monkeypatch.setattr(hardware, "examine", made.examine)
    for name in list(os.environ):
        if name.startswith(("ROC", "HSA_", "HIP_", "AQLPROFILE")) or name == "LD_PRELOAD":
            monkeypatch.delenv(name)
    return made
