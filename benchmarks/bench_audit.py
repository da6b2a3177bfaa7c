"""Machine code of the GPU kernels: registers, lost waves, spills and issue cycles, with no GPU anywhere.

The numbers are exact: they change with the sources, the compiler or the audit's own tables, and with nothing else.
"""

from .common import FULL, needed

ARCHS = ["gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201"]
KERNELS = [
    "flash_attention_causal f16 D=128",
    "flash_decode f16 D=128",
    "attention_backward_dkdv f16 D=128 PLAIN_SCORES=1",
]
REST = [
    "flash_attention f16 D=128",
    "flash_attention_nocausal f16 D=128",
    *(
        f"{kernel} f16 D=128"
        for kernel in (
            "flash_attention_causal_varlen",
            "flash_attention_causal_paged",
            "flash_attention_causal_small_pages",
            "flash_decode_paged",
            "flash_decode_small_pages",
        )
    ),
    *(f"flash_attention_causal {dtype} D={dim}" for dtype in ("f16", "bf16") for dim in (32, 64, 256)),
    "attention_backward_dq f16 D=128 PLAIN_SCORES=1",
    "attention_backward_preprocess f16",
    "qk_matmul f16",
    "pv_matmul f16",
    "softmax f32->f16 BLOCK=256",
]


class QuickKernels:
    """One kernel on one architecture: each number is a process of its own in the gate and in the site's history."""

    version = "1"
    deterministic = True
    timeout = 300
    params = [["gfx942"], KERNELS[:1]]
    param_names = ["arch", "kernel"]

    def setup(self, arch, kernel):
        """Compile the kernel or take it from the cache; skip what this commit or machine does not have."""
        shipped, sources = needed("rocattn_profiling.kernels.shipped"), needed("rocattn.sources")
        found = [one for one in shipped.shipped_kernels([arch]) if one.name == kernel]
        if not found:
            raise NotImplementedError(f"this commit ships no {kernel} for {arch}")
        try:
            needed("rocattn.toolchain").choose_compiler()
        except needed("rocattn.errors").ToolchainError as error:
            raise NotImplementedError(str(error)) from None
        self.facts = shipped.shipped_facts(found[0], sources.kernel_root())

    def track_vgprs(self, *_):
        return self.facts.vgprs

    track_vgprs.unit = "registers"

    def track_lost_wave_slots(self, *_):
        return self.facts.lost_wave_slots

    track_lost_wave_slots.unit = "waves"

    def track_spills(self, *_):
        return self.facts.spills.vgprs + self.facts.spills.sgprs

    track_spills.unit = "registers"

    def track_hot_loop(self, *_):
        return self.facts.cycles_for_work

    track_hot_loop.unit = "cycles"


class Kernels(QuickKernels):
    """What `rocattn kernels audit` says of each kernel for each architecture; lower is better for all of it."""

    params = [ARCHS, KERNELS + REST if FULL else KERNELS]

    def track_sgprs(self, *_):
        return self.facts.sgprs

    track_sgprs.unit = "registers"

    def track_lds_bytes(self, *_):
        return self.facts.lds_bytes

    track_lds_bytes.unit = "bytes"

    def track_code_bytes(self, *_):
        return self.facts.code_bytes

    track_code_bytes.unit = "bytes"


class KernelsOf8Bits(Kernels):
    """Decode from pages of 8-bit K and V, and prompts of 8-bit Q, K and V, in the format that the GPU computes with."""

    params = [
        ["gfx942"],
        [
            "flash_decode_paged_fp8 f16 D=128 KV_DTYPE=e4m3fnuz",
            "flash_attention_fp8_q f16 D=128 KV_DTYPE=e4m3fnuz Q_DTYPE=e4m3fnuz",
        ],
    ]
