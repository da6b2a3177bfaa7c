"""Split a bench into parts, one suite each: grids, one shape, attention modules or a model's file."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn_profiling.base.console import say
from rocattn_profiling.base.status import CommandError
from rocattn_profiling.bench.model import SUITE_PREFIX
from rocattn_profiling.bench.session import SuiteFacts
from rocattn_profiling.pages import render
from rocattn_profiling.workloads.grids import get_grid
from rocattn_profiling.workloads.models import read_model
from rocattn_profiling.workloads.modules import extra_work, of_module
from rocattn_profiling.workloads.options import STORAGE, config_of, flag, given

if TYPE_CHECKING:
    from rocattn.config import AttentionConfig
    from rocattn_profiling.workloads.models import Model

    FactsOf = Callable[[AttentionConfig], SuiteFacts]

CUSTOM = "custom"
DEFAULT_GRID = "inference"
LENGTHS, QUICK_LENGTHS = (128, 512, 2048), (128, 512)
"""Prompt lengths of a model."""


@dataclass(frozen=True)
class SuitePart:
    """A grid, module or model, or the shape from the command line, with its configs and backends.

    Attributes:
        suite: Suite of the records.
        configs: The problems to measure.
        backends: Names of backends.
        facts_of: Additional facts for a config's records; None for none.
    """

    suite: str
    configs: list[AttentionConfig]
    backends: list[str]
    facts_of: FactsOf | None = None


def parts_of(arguments: argparse.Namespace) -> list[SuitePart]:
    """Return the parts that the command line selects, with each grid's default backends.

    Raises:
        CommandError: When options conflict.
        RocattnError: When a model's file cannot be read or lacks a key.
        ConfigError: When a grid or module does not exist, or sizes contradict each other.
    """
    shape = given(arguments)
    mode = next((name for name in ("grid", "modules", "model") if getattr(arguments, name)), "")
    if shape and mode:
        flags = ", ".join(map(flag, shape))
        raise CommandError(
            f"{flags} cannot be used with {flag(mode)}, which has sizes of its own: leave one of them out"
        )
    if mode in {"modules", "model"}:
        return _module_parts(arguments) if arguments.modules else _model_parts(arguments)
    changes = given(arguments, STORAGE)
    if shape:
        return [SuitePart(CUSTOM, [config_of(shape | changes, arguments.direction)], [])]
    parts = []
    for name in dict.fromkeys(arguments.grid or [DEFAULT_GRID]):
        grid = get_grid(name)
        configs = grid.configs(arguments.quick, arguments.direction)
        parts.append(SuitePart(name, [config.replace(**changes) for config in configs], list(grid.backends)))
    return parts


def _module_parts(arguments: argparse.Namespace) -> list[SuitePart]:
    """Return a part for each workload of the requested modules.

    Raises:
        ConfigError: When the module does not exist.
        CommandError: When options do not apply to modules.
    """
    for name in ("layout", "q_dtype", "kv_dtype"):
        if getattr(arguments, name):
            raise CommandError(f"modules have a layout of their own and no cache: leave out {flag(name)}")
    if arguments.direction != "forward":
        raise CommandError("modules are measured forward only: leave out --direction backward")
    if arguments.data != "normal":
        raise CommandError("modules have normal tokens and weights only: leave out --data")

    def part(suite: str, configs: list[AttentionConfig], option: str) -> SuitePart:
        def facts_of(config: AttentionConfig) -> SuiteFacts:
            flops, size = extra_work(suite, config)
            return SuiteFacts(option=option, extra_flops=flops, extra_bytes=size, module=True)

        return SuitePart(suite, configs, [], facts_of)

    workloads = [workload for name in dict.fromkeys(arguments.modules) for workload in of_module(name)]
    changes = {"dtype": arguments.dtype} if arguments.dtype else {}
    quick = " --quick" if arguments.quick else ""
    return [
        part(w.suite, [c.replace(**changes) for c in w.chosen(arguments.quick)], f"--modules {w.module}{quick}")
        for w in workloads
    ]


def _model_parts(arguments: argparse.Namespace) -> list[SuitePart]:
    """Read the file, print a summary, and return its part.

    Raises:
        RocattnError: When the file cannot be read or lacks a key.
        CommandError: When options conflict.
    """
    if arguments.direction != "forward":
        raise CommandError("a model is measured forward only: leave out --direction backward")
    say(f"reading the metadata of {arguments.model}")  # a large vocabulary takes seconds
    model = read_model(Path(arguments.model))
    lengths = _lengths(arguments, model)
    _say_what_it_is(model)
    changes = given(arguments, ("layout", "q_dtype", "kv_dtype"))
    counts: dict[str, int] = {}
    configs: list[AttentionConfig] = []
    for length in lengths:
        for seq_q in (length, 1) if model.causal else (length,):
            for config, count in model.configs(seq_q, length, arguments.dtype or "float32").items():
                configs.append(config.replace(**changes))
                counts[configs[-1].label] = count
    option = f"--model {shlex.quote(arguments.model)} --prompts {' '.join(map(str, lengths))}"

    def facts_of(config: AttentionConfig) -> SuiteFacts:
        return SuiteFacts(option=option, layers=counts[config.label])

    suite = SUITE_PREFIX + re.sub(r"[^\w.]+", "-", model.name).strip("-").lower()
    return [SuitePart(suite, configs, [], facts_of)]


def _lengths(arguments: argparse.Namespace, model: Model) -> list[int]:
    """Return the lengths to measure, shortest first."""
    wanted = sorted(set(arguments.prompts or (QUICK_LENGTHS if arguments.quick else LENGTHS)))
    if wanted[0] < 2:
        raise CommandError("--prompts 1: a prompt has 2 tokens or more (one token is a decode step)")
    fitting = [length for length in wanted if length <= model.context_length]
    if len(fitting) < len(wanted):
        beyond = ", ".join(str(length) for length in wanted if length not in fitting)
        text = f"prompts of {beyond} tokens are longer than the model's context of {model.context_length}"
        if not fitting:
            raise CommandError(f"{text}: name shorter ones with --prompts")
        say(f"{text}: left out")
    return fitting


def _say_what_it_is(model: Model) -> None:
    """Print a short summary of the model."""
    kinds: dict[str, int] = {}
    for layer in model.layers:
        dims = f"{layer.head_dim}" if layer.head_dim == layer.head_dim_v else f"{layer.head_dim}/{layer.head_dim_v}"
        window = f", window {layer.window}" if layer.window else ""
        sinks = ", sinks" if layer.sinks else ""
        text = f"{layer.num_heads} heads, {layer.num_kv_heads} KV heads, D {dims}{window}{sinks}"
        kinds[text] = kinds.get(text, 0) + 1
    say(f"{model.name} ({model.architecture}): {model.block_count} blocks, context {model.context_length}")
    for text, layers in kinds.items():
        say(f"  {render.count(layers, 'attention layer')}: {text}")
    options = {
        "attention softcap": model.softcap, "final softcap (not part of attention)": model.final_softcap,
        "scale": model.scale, "ALiBi": model.alibi, "not causal": not model.causal,
    }  # fmt: skip
    if given := [name if value is True else f"{name} {value:g}" for name, value in options.items() if value]:
        say(f"  {', '.join(given)}")
    for note in model.notes:
        say(f"  note: {note}")
