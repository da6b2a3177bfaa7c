"""Accuracy: the largest error against float64, in units in the last place (lower is better, as everywhere in asv)."""

from .common import GRIDS, ForwardCase, configs_of, inputs_for, needed

EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}


class Forward(ForwardCase):
    """Every dtype on short prompts, causal and not; the unit is an ulp of the largest output."""

    configs = {
        changed.label: changed
        for config in configs_of("inference", only=lambda c: (c.batch, c.seq_q, c.head_dim) == (1, 128, 64)).values()
        for changed in (config.replace(dtype=dtype) for dtype in EPSILON)
    }
    params = [GRIDS["inference"].backends, list(configs)]

    def track_max_error(self, _backend, label):
        config = self.configs[label]
        check = needed("rocattn_profiling.workloads.accuracy").check_output(config, inputs_for(config), self.call())
        return check.max_rel_error / EPSILON[config.dtype]

    track_max_error.unit = "ulp"
