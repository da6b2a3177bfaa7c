"""Forward attention over prompts: the inference, square, gemma, odd and varlen grids."""

import os

from .common import GRIDS, ForwardCase, VarlenCase, configs_of

THREADS = 4


class QuickForward(ForwardCase):
    """Causal and not, short prompts: what the gate's quick mode measures."""

    configs = configs_of("inference", only=lambda c: (c.batch, c.seq_q, c.head_dim) == (1, 128, 64))
    params = [GRIDS["inference"].backends, list(configs)]

    def time_attention(self, *_):
        self.call()


class Inference(ForwardCase):
    """Self-attention of prompts."""

    configs = configs_of("inference")
    params = [GRIDS["inference"].backends, list(configs)]

    def time_attention(self, *_):
        self.call()


class Square(ForwardCase):
    """[1, n, n]: the original CPU baseline table."""

    configs = configs_of("square")
    params = [GRIDS["square"].backends, list(configs)]

    def time_attention(self, *_):
        self.call()


class Gemma(ForwardCase):
    """Grouped heads and a head dimension of 256."""

    repeat = (2, 5, 4.0)
    number = 1
    configs = configs_of("gemma", only=lambda c: c.batch == 1 and c.seq_q == 512)
    params = [GRIDS["gemma"].backends, list(configs)]

    def time_attention(self, *_):
        self.call()


class Odd(ForwardCase):
    """Sizes that no tile fits."""

    configs = configs_of("odd")
    params = [["cpu-flash"], list(configs)]

    def time_attention(self, *_):
        self.call()


class OddThreads(Odd):
    """The same with four threads, on machines that have them."""

    def setup(self, backend, label):
        """As `ForwardCase.setup`."""
        if len(os.sched_getaffinity(0)) < THREADS:
            raise NotImplementedError(f"this machine has fewer than {THREADS} CPUs")
        os.environ["ROCATTN_NUM_THREADS"] = str(THREADS)
        super().setup(backend, label)

    def teardown(self, *_):
        """Let the process choose its threads again."""
        os.environ.pop("ROCATTN_NUM_THREADS", None)


class Varlen(VarlenCase):
    """Sequences of lengths of their own, packed and in pages."""

    configs = configs_of("varlen")
    params = [["cpu-flash"], list(configs)]

    def time_attention(self, *_):
        self.call()
