"""What a bench goes through: parts of one suite each, from grids, attention modules or a model's file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocattn_profiling.base.status import CommandError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from rocattn.config import AttentionConfig
    from rocattn_profiling.bench.session import Facts

    FactsOf = Callable[[AttentionConfig], Facts]


@dataclass(frozen=True)
class Part:
    """One grid, module, model, or the shape of the command line, with what of it is measured on which backends.

    Attributes:
        suite: Of the records.
        configs: What to measure.
        backends: Their names.
        facts_of: What the records of a config say besides; None for nothing.
    """

    suite: str
    configs: list[AttentionConfig]
    backends: list[str]
    facts_of: FactsOf | None = None


def refuse(arguments: argparse.Namespace, option: str, unfit: dict[str, str]) -> None:
    """Raise if options are given that mean nothing beside ``option``.

    Args:
        arguments: The command line.
        option: ``--modules`` or ``--model``.
        unfit: Attribute to the option as people write it.

    Raises:
        CommandError: Naming them.
    """
    if found := [text for name, text in unfit.items() if getattr(arguments, name)]:
        raise CommandError(f"{', '.join(found)} cannot be used with {option}, which has sizes of its own: leave it out")


def module_parts(arguments: argparse.Namespace) -> list[Part]:
    """Return a part for each workload of the modules asked for.

    Raises:
        ConfigError: When there is no such module.
        CommandError: When options are given that modules do not have.
    """
    from rocattn_profiling.bench.session import Facts
    from rocattn_profiling.workloads.modules import extra_work, of_module

    refuse(arguments, "--modules", {"grid": "--grid", "layout": "--layout"})
    if arguments.direction != "forward":
        raise CommandError("modules are measured forward only: leave out --direction backward")
    if arguments.data != "normal":
        raise CommandError("modules have normal tokens and weights only: leave out --data")

    def part(suite: str, configs: list[AttentionConfig], option: str) -> Part:
        def facts_of(config: AttentionConfig) -> Facts:
            flops, size = extra_work(suite, config)
            return Facts(option=option, extra_flops=flops, extra_bytes=size, module=True)

        return Part(suite, configs, [], facts_of)

    workloads = [workload for name in dict.fromkeys(arguments.modules) for workload in of_module(name)]
    changes = {"dtype": arguments.dtype} if arguments.dtype else {}
    quick = " --quick" if arguments.quick else ""
    return [
        part(w.suite, [c.replace(**changes) for c in w.chosen(arguments.quick)], f"--modules {w.module}{quick}")
        for w in workloads
    ]
