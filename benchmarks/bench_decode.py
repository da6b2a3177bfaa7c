"""One new token against a KV cache: the decode grid."""

from .common import GRIDS, ForwardCase, configs_of


class QuickDecode(ForwardCase):
    """A cache of medium length: what the gate's quick mode measures."""

    number = 5
    configs = configs_of("decode", only=lambda c: c.seq_k == 1024)
    params = [GRIDS["decode"].backends, list(configs)]

    def time_decode(self, *_):
        self.call()


class Decode(ForwardCase):
    """Short to long caches, 32 heads that share 8 KV heads."""

    number = 5
    configs = configs_of("decode")
    params = [GRIDS["decode"].backends, list(configs)]

    def time_decode(self, *_):
        self.call()
