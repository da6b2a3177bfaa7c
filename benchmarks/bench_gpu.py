"""Attention on the GPU's own clock (events), with warm and with cold caches; skipped where there is no GPU.

The gate records the GPU's clocks, power and temperature beside every sample: a time that is up while cycles are equal
is the clock's doing, not the code's.
"""

import functools

from .common import Timed, configs_of, inputs_for, needed

CACHES = ["warm", "cold"]


@functools.lru_cache(maxsize=2)
def device_case(config, cache):
    """A config on the device, made once a process: asv runs ``setup`` again before every timed call."""
    clock = needed("rocattn_profiling.bench.gpu_clock")
    clock.usable_gpu()
    return clock.DeviceCase(config, inputs_for(config), cold=cache == "cold")


def half_precision(configs):
    """The same problems in float16, which the matrix instructions take, by their new labels."""
    return {c.label: c for c in (config.replace(dtype="float16") for config in configs.values())}


class OnDevice(Timed):
    """One forward pass, arrays on the device already: the kernels alone, without copies and launches."""

    number = 5
    configs: dict = {}
    param_names = ["config", "cache"]

    def setup(self, label, cache):
        case = device_case(self.configs[label], cache)
        self.call, self.timer = case.call, case.clock


class QuickEvents(OnDevice):
    """Short prompts: what the gate's quick mode measures."""

    configs = half_precision(configs_of("inference", only=lambda c: (c.batch, c.seq_q, c.head_dim) == (1, 128, 64)))
    params = [list(configs), ["warm"]]

    def time_attention(self, *_):
        self.call()


class Prefill(OnDevice):
    """Self-attention of prompts."""

    configs = half_precision(configs_of("inference"))
    params = [list(configs), CACHES]

    def time_attention(self, *_):
        self.call()


class Decode(OnDevice):
    """One new token against a KV cache."""

    configs = half_precision(configs_of("decode"))
    params = [list(configs), CACHES]

    def time_decode(self, *_):
        self.call()


@functools.lru_cache(maxsize=2)
def host_call(config):
    """A call with arrays on the device, made once a process."""
    return needed("rocattn_profiling.bench.gpu_clock").HostCall(config, inputs_for(config))


class Host(Timed):
    """What a call costs the host where arrays are on the device: nothing in it waits for the GPU."""

    number = 50
    configs: dict = {
        **half_precision(configs_of("inference", only=lambda c: (c.batch, c.seq_q, c.head_dim) == (1, 128, 64))),
        **half_precision(configs_of("decode", only=lambda c: c.batch == 1)),
    }
    params = [list(configs)]
    param_names = ["config"]

    def setup(self, label):
        self.call = host_call(self.configs[label])
        self.call.wait()

    def time_call(self, *_):
        self.call()
