"""A GPU's clocks, power and temperature, read from the files of the amdgpu driver.

Files, because reading one takes microseconds and can be done while a kernel runs; ``amd-smi`` is a process of its own,
longer than most samples, and reads the same. Formats: kernel documentation, gpu/amdgpu/thermal.rst (hwmon in Hz, uW,
mC; ``pp_dpm_sclk`` marks the current level with an asterisk).
"""

from __future__ import annotations

import re
from pathlib import Path

DRM = Path("/sys/class/drm")
AMD = "0x1002"
_CURRENT = re.compile(r"(\d+(?:\.\d+)?)\s*Mhz\s*\*", re.IGNORECASE)
_HOTTEST = ("junction", "edge", "mem")  # temp*_label, the one to quote first


class Sensors:
    """What one device tells.

    Args:
        device: Its folder in sysfs, ``…/card0/device``.
    """

    def __init__(self, device: Path) -> None:
        self.device = device
        monitor = next(iter(sorted(device.glob("hwmon/hwmon*"))), None)
        self._clocks = {_text(label): _input(label) for label in _labels(monitor, "freq")}
        self._temperatures = {_text(label): _input(label) for label in _labels(monitor, "temp")}
        powers = [monitor / name for name in ("power1_average", "power1_input")] if monitor else []
        self._power = next((path for path in powers if path.is_file()), None)

    def read(self) -> dict[str, float]:
        """Return sclk_mhz, mclk_mhz, power_w and temperature_c; 0 for what the device does not tell."""
        hottest = next((self._temperatures[name] for name in _HOTTEST if name in self._temperatures), None)
        return {
            "sclk_mhz": self._clock("sclk"),
            "mclk_mhz": self._clock("mclk"),
            "power_w": _number(self._power) / 1e6,
            "temperature_c": _number(hottest) / 1e3,
        }

    def _clock(self, name: str) -> float:
        # The monitor tells what the clock is; the table of levels only which one was asked for.
        if exact := _number(self._clocks.get(name)) / 1e6:
            return exact
        marked = _CURRENT.search(_text(self.device / f"pp_dpm_{name}"))
        return float(marked.group(1)) if marked else 0.0


def find_sensors(bus_id: str = "", drm: Path = DRM) -> Sensors | None:
    """Return the sensors of an AMD GPU.

    Args:
        bus_id: Its place on the PCI bus ("0000:03:00.0"); without one the machine's only AMD GPU is taken.
        drm: Where the kernel lists its cards.

    Returns:
        None where there is no such GPU, or more than one and it is not known which: no clock is better than another's.
    """
    cards = [path for path in sorted(drm.glob("card*")) if re.fullmatch(r"card\d+", path.name)]
    devices = [card / "device" for card in cards if _text(card / "device" / "vendor") == AMD]
    if bus_id:
        devices = [device for device in devices if device.resolve().name.lower() == bus_id.lower()]
    return Sensors(devices[0]) if len(devices) == 1 else None


def _labels(monitor: Path | None, kind: str) -> list[Path]:
    return sorted(monitor.glob(f"{kind}*_label")) if monitor else []


def _input(label: Path) -> Path:
    return label.with_name(label.name.replace("_label", "_input"))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""  # a sensor of a sleeping or older GPU refuses to be read


def _number(path: Path | None) -> float:
    text = _text(path) if path is not None else ""
    try:
        return float(text)
    except ValueError:
        return 0.0
