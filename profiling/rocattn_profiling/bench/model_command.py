"""``rocattn bench --model FILE.gguf``: time to first token and tokens/s of a model's attention layers."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocattn_profiling.base.console import print_table, say
from rocattn_profiling.base.status import CommandError
from rocattn_profiling.bench.parts import Part, refuse
from rocattn_profiling.workloads.options import positive

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from rocattn.config import AttentionConfig
    from rocattn_profiling.bench.session import Facts
    from rocattn_profiling.measure.records import Record
    from rocattn_profiling.workloads.models import Model

LENGTHS, QUICK_LENGTHS = (128, 512, 2048), (128, 512)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of models to those of ``rocattn bench``."""
    group = parser.add_argument_group("a model's attention layers (its projections and feed-forward layers are not)")
    group.add_argument(
        "--model", metavar="FILE.gguf",
        help="instead: time to first token and decoded tokens/s of the attention layers that this file's metadata "
        "describe (needs the package gguf: pip install 'rocattn[gguf]')",
    )  # fmt: skip
    group.add_argument(
        "--prompts", type=positive, nargs="+", metavar="N",
        help=f"prompt lengths, and the lengths to decode at (default {' '.join(map(str, LENGTHS))}; "
        f"quick: {' '.join(map(str, QUICK_LENGTHS))}; no longer than the model's context)",
    )  # fmt: skip


def parts(arguments: argparse.Namespace) -> list[Part]:
    """Read the file, say what it holds, and return what to measure.

    Raises:
        RocattnError: When the file cannot be read or lacks a key.
        CommandError: When options do not fit.
    """
    from rocattn_profiling.bench.model_times import SUITE_PREFIX
    from rocattn_profiling.bench.session import Facts
    from rocattn_profiling.workloads.models import read_model

    refuse(arguments, "--model", {"grid": "--grid"})
    if arguments.direction != "forward":
        raise CommandError("a model is measured forward only: leave out --direction backward")
    say(f"reading the metadata of {arguments.model}")  # a large vocabulary takes seconds
    model = read_model(Path(arguments.model))
    lengths = _lengths(arguments, model)
    _say_what_it_is(model)
    changes = {name: value for name in ("layout",) if (value := getattr(arguments, name)) is not None}
    counts: dict[str, int] = {}
    configs: list[AttentionConfig] = []
    for length in lengths:
        for seq_q in (length, 1) if model.causal else (length,):
            for config, count in model.configs(seq_q, length, arguments.dtype or "float32").items():
                configs.append(config.replace(**changes))
                counts[configs[-1].label] = count
    option = f"--model {shlex.quote(arguments.model)} --prompts {' '.join(map(str, lengths))}"

    def facts_of(config: AttentionConfig) -> Facts:
        return Facts(option=option, layers=counts[config.label])

    suite = SUITE_PREFIX + re.sub(r"[^\w.]+", "-", model.name).strip("-").lower()
    return [Part(suite, configs, [], facts_of)]


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
    """Print what was read, in a line or two."""
    kinds: dict[str, int] = {}
    for layer in model.layers:
        dims = f"{layer.head_dim}" if layer.head_dim == layer.head_dim_v else f"{layer.head_dim}/{layer.head_dim_v}"
        window = f", window {layer.window}" if layer.window else ""
        text = f"{layer.num_heads} heads, {layer.num_kv_heads} KV heads, D {dims}{window}"
        kinds[text] = kinds.get(text, 0) + 1
    say(f"{model.name} ({model.architecture}): {model.block_count} blocks, context {model.context_length}")
    for text, count in kinds.items():
        say(f"  {count} attention layers: {text}")
    options = {
        "attention softcap": model.softcap, "final softcap (not part of attention)": model.final_softcap,
        "scale": model.scale, "ALiBi": model.alibi, "sinks": model.sinks, "not causal": not model.causal,
    }  # fmt: skip
    if given := [name if value is True else f"{name} {value:g}" for name, value in options.items() if value]:
        say(f"  {', '.join(given)}")
    for note in model.notes:
        say(f"  note: {note}")


def shown(records: Sequence[Record]) -> dict[str, Any]:
    """Print the passes as tables; return them as JSON-ready values."""
    import msgspec

    from rocattn_profiling.bench.model_times import DISCLAIMER, passes
    from rocattn_profiling.bench.view import count, duration

    found = passes(records)
    backends = list(dict.fromkeys(record.backend for record in records))
    for step, title in ((False, "time to first token"), (True, "decoding, tokens/s of one sequence")):
        for machine in dict.fromkeys(one.machine for one in found):
            chosen = [one for one in found if one.step == step and one.machine == machine]
            by_length = {one.length: {} for one in chosen}  # type: dict[int, dict[str, str]]
            for one in chosen:
                text = count(one.tokens_per_s) if step else duration(one.p50_ns)
                by_length[one.length][one.backend] = text + (" !" if one.disturbed else "")
            rows = [(str(n), *(by.get(name, "not all layers") for name in backends)) for n, by in by_length.items()]
            if rows:
                where = f" on {machine}" if machine else ""
                print_table(f"{title}, {chosen[0].layers} attention layers{where}", ("tokens", *backends), rows)
    if not found:
        say("no length has all of the model's layers measured: see what was skipped")
    say(DISCLAIMER)
    return {"model": {"note": DISCLAIMER, "passes": msgspec.to_builtins(found)}}
