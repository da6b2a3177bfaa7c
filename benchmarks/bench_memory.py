"""Memory: the peak of the whole process, and what a backend allocates beside inputs and outputs."""

from .common import GRIDS, ForwardCase, able_backend, configs_of


class Forward(ForwardCase):
    """Where scores of [Sq, Sk] are kept whole, memory grows with the square of the sequence."""

    configs = configs_of("inference", only=lambda c: c.batch == 1)
    params = [GRIDS["inference"].backends, list(configs)]

    def peakmem_attention(self, *_):
        self.call()

    def track_workspace(self, backend, label):
        return able_backend(backend, self.configs[label]).workspace_bytes(self.configs[label])

    track_workspace.unit = "bytes"
