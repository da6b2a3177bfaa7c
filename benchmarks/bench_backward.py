"""Gradients over prompts: the inference and odd grids."""

from .common import GRIDS, BackwardCase, configs_of


class QuickBackward(BackwardCase):
    """One causal config: what the gate's quick mode measures."""

    configs = configs_of(
        "inference", "backward", lambda c: (c.batch, c.seq_q, c.head_dim, c.causal) == (1, 128, 64, True)
    )
    params = [GRIDS["inference"].backends, list(configs)]

    def time_attention_backward(self, *_):
        self.call()


class Inference(BackwardCase):
    """dQ, dK and dV of prompts."""

    repeat = (3, 10, 2.0)
    number = 1
    configs = configs_of("inference", "backward", lambda c: c.seq_q <= 512)
    params = [GRIDS["inference"].backends, list(configs)]

    def time_attention_backward(self, *_):
        self.call()


class Odd(BackwardCase):
    """Sizes that no tile fits."""

    configs = configs_of("odd", "backward")
    params = [["cpu-flash"], list(configs)]

    def time_attention_backward(self, *_):
        self.call()
