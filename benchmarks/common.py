"""What the suites share: configs from the workload grids, inputs made once, and skipping what a backend cannot do.

asv runs these files as they stand in the working tree against the library of each measured commit, and passes
parameters by their position. So the grids too must come from the working tree (never from the measured commit, where
a position could mean another config), and the library is imported in ``setup`` only: a commit that lacks what a
benchmark needs skips it.
"""

import functools
import importlib
import importlib.util
import os
import sys
from pathlib import Path

FULL = os.environ.get("ROCATTN_ASV_FULL", "") not in {"", "0"}
WORKLOADS = "rocattn_profiling.workloads.grids"
FORMER_NAMES = {
    "rocattn_profiling.bench.gpu_clock": ("rocattn_profiling.measure.gpu_clock",),
    "rocattn_profiling.kernels.shipped": ("rocattn_profiling.audit.shipped",),
    "rocattn_profiling.memory.measure": ("rocattn_profiling.memory.worker", "rocattn_profiling.measure.memory_worker"),
    "rocattn_profiling.workloads.accuracy": ("rocattn_profiling.measure.evaluation",),
    "rocattn_profiling.workloads.inputs": ("rocattn_profiling.measure.data",),
}


def _load_workloads():
    """The grids of the working tree; the installed ones where the suites were copied without their repository."""
    beside = Path(__file__).resolve().parents[1] / "profiling" / (WORKLOADS.replace(".", "/") + ".py")
    if not beside.is_file():
        return importlib.import_module(WORKLOADS)
    spec = importlib.util.spec_from_file_location("_rocattn_suite_workloads", beside)
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up while it is being executed.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


GRIDS = _load_workloads().GRIDS


def configs_of(grid, direction="forward", only=None):
    """The configs of a grid by label: the parameter that asv's pages show. ``only`` narrows the quick subset."""
    chosen = GRIDS[grid].configs(quick=not FULL, direction=direction)
    return {c.label: c for c in chosen if FULL or only is None or only(c)}


@functools.lru_cache(maxsize=2)
def inputs_for(config):
    """Seeded inputs, made once a process: asv runs ``setup`` again before every timed call."""
    return needed("rocattn_profiling.workloads.inputs").make_inputs(config)


def needed(module):
    """Import a module of the measured commit; NotImplementedError (asv's word for skip) if it has none.

    A commit from before a module was moved has it under a former name.
    """
    for name in (module, *FORMER_NAMES.get(module, ())):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise  # it is there and broken: that is a failure, not a skip
    raise NotImplementedError(f"this commit has no {module}")


def able_backend(name, config):
    """The backend of that name; NotImplementedError if this machine or the backend cannot run the config."""
    needed("rocattn.backends")
    registry = needed("rocattn.registry").BACKENDS
    backend = next((b for b in registry if b.name == name), None)
    if backend is None:
        raise NotImplementedError(f"this commit has no backend {name}")
    answer = registry.supports(backend, config)
    if not answer:
        raise NotImplementedError(answer.reason)
    return backend


class Timed:
    """How everything is timed here: fixed counts, so that two commits are sampled alike.

    asv-runner would take one call a sample wherever there is a ``setup``; versions are set by hand because asv's own
    are hashes of the source, and reformatting it would void the history.
    """

    version = "1"
    number = 2
    repeat = (5, 15, 1.0)
    rounds = 2
    warmup_time = 0.1
    timeout = 120


class ForwardCase(Timed):
    """One call of `rocattn.attention`, checks and dispatch included: what a user waits for."""

    function = "attention"
    configs: dict = {}
    param_names = ["backend", "config"]

    def setup(self, backend, label):
        """Make inputs and find the backend, or skip."""
        config = self.configs[label]
        able_backend(backend, config)
        inputs = inputs_for(config)
        self.call = functools.partial(
            getattr(needed("rocattn"), self.function),
            inputs.q,
            inputs.k,
            inputs.v,
            backend=backend,
            **inputs.options(config),
        )


class VarlenCase(ForwardCase):
    """One call of `rocattn.attention_varlen`."""

    function = "attention_varlen"


class BackwardCase(Timed):
    """One call of `rocattn.attention_backward`, from the output and LSE of a forward call made in ``setup``."""

    configs: dict = {}
    param_names = ["backend", "config"]

    def setup(self, backend, label):
        """Make inputs, run forward once a process, and find the backend, or skip."""
        config = self.configs[label]
        able_backend(backend, config)
        inputs, (out, lse) = inputs_for(config), forward_of(config, backend)
        self.call = functools.partial(
            needed("rocattn").attention_backward,
            inputs.dout, inputs.q, inputs.k, inputs.v, out, lse, backend=backend, **without_lse(inputs.options(config)),
        )  # fmt: skip


@functools.lru_cache(maxsize=2)
def forward_of(config, backend):
    """(out, lse) of a config."""
    inputs = inputs_for(config)
    options = {**inputs.options(config), "return_lse": True, "backend": backend}
    return needed("rocattn").attention(inputs.q, inputs.k, inputs.v, **options)


def without_lse(options):
    """The options that backward takes: it always reads the LSE."""
    return {name: value for name, value in options.items() if name != "return_lse"}
