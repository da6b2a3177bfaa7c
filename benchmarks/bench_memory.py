"""Memory: the process's peak, what the allocators count in a call, what a backend says it needs beside the tensors."""

from .common import GRIDS, ForwardCase, able_backend, configs_of, needed


class Forward(ForwardCase):
    """Where scores of [Sq, Sk] are kept whole, memory grows with the square of the sequence."""

    configs = configs_of("inference", only=lambda c: c.batch == 1)
    params = [GRIDS["inference"].backends, list(configs)]

    def peakmem_attention(self, *_):
        self.call()

    def track_workspace(self, backend, label):
        return able_backend(backend, self.configs[label]).workspace_bytes(self.configs[label])

    track_workspace.unit = "bytes"


class Counted(ForwardCase):
    """Inputs, outputs and workspace as `rocattn memory` counts them: exact, so that any change is one of the code."""

    configs = Forward.configs
    params = Forward.params

    def setup(self, backend, label):
        """Skip commits that cannot count."""
        super().setup(backend, label)
        self.measure = needed("rocattn_profiling.memory.measure").measure_call

    def track_allocated(self, backend, label):
        return self.measure(self.configs[label], backend).allocated_bytes

    track_allocated.unit = "bytes"
