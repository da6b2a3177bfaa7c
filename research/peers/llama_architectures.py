"""Compares our table of llama.cpp's architectures with a checkout of llama.cpp, whose loaders are read as text.

Give it the checkout's folder; the sdist of the package llama-cpp-python has one in ``vendor/llama.cpp``, and its
CHANGELOG names the commit::

    pip download llama-cpp-python --no-deps --no-binary :all: && tar xf llama_cpp_python-*.tar.gz
    .venv/bin/python research/peers/llama_architectures.py llama_cpp_python-*/vendor/llama.cpp

It prints what the loaders say and ``workloads/llama_cpp.toml`` does not, or the other way round, an architecture a
line, and ends with status 1 if there is any: names, which loaders read a window and with which pattern, intervals of
full attention, soft caps, ALiBi, attention that is not causal, and sinks that all layers must have.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from rocattn_profiling.workloads.models import LLAMA_CPP

_LOADER = re.compile(r"void llama_model_(\w+)::load_arch_hparams\(.*?\n}\n", re.DOTALL)
_PERIOD = re.compile(r"load_swa_pattern\(ml, (\d+)(, (?:/\*dense_first=\*/)?true)?\)")
_REQUIRED_SINKS = re.compile(r"LLM_TENSOR_ATTN_SINKS, .*\{ ?n_head ?\}, (?:0|flags)\)")


def names_of(source: Path) -> dict[str, str]:
    """Return each architecture's name in files by its constant's."""
    text = (source / "llama-arch.cpp").read_text()
    return dict(re.findall(r'\{ LLM_ARCH_(\w+),\s+"([^"(]+)"', text))


def traits_of(loader: str) -> dict[str, object]:
    """Return what an architecture's loader does about attention."""
    period = _PERIOD.search(loader)
    interval = re.search(r"full_attn_interval = (\d+)", loader)
    return {
        "windows": "LLAMA_SWA_TYPE_STANDARD" in loader or "SYMMETRIC" in loader or "CHUNKED" in loader,
        "period": (int(period[1]), bool(period[2])) if period else None,
        "full_attention_interval": int(interval[1]) if interval else None,
        "softcap": "ATTN_LOGIT_SOFTCAPPING" in loader,
        "alibi": "f_max_alibi_bias = " in loader,
        "alibi_by_key": "MAX_ALIBI_BIAS" in loader,
        "scaled": "LLM_KV_ATTENTION_SCALE" in loader,
    }


def ours(name: str) -> dict[str, object]:
    """Return the same of our table."""
    row = LLAMA_CPP.windows.get(name)
    return {
        "windows": row is not None,
        "period": (row.period, row.dense_first) if row is not None and row.period else None,
        "full_attention_interval": LLAMA_CPP.full_attention_interval.get(name),
        "softcap": name in LLAMA_CPP.softcaps,
        "alibi": name in LLAMA_CPP.alibi or name == "baichuan",
        "alibi_by_key": name in LLAMA_CPP.alibi_by_key,
        "scaled": name in LLAMA_CPP.scaled,
    }


def main() -> int:
    """Print the differences."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkout", type=Path)
    source = parser.parse_args().checkout / "src"
    names = names_of(source)
    lines = [f"{name}: not in the table" for name in sorted({*names.values()} - LLAMA_CPP.names)]
    lines += [f"{name}: not in llama.cpp" for name in sorted(LLAMA_CPP.names - {*names.values()})]
    by_class = {constant.lower(): name for constant, name in names.items()}
    for path in sorted((source / "models").glob("*.cpp")):
        text = path.read_text()
        for match in _LOADER.finditer(text):
            name = by_class.get(match[1])
            if name is None or name in LLAMA_CPP.not_measured:
                continue
            theirs = traits_of(match[0]) | {"sinks": bool(_REQUIRED_SINKS.search(text))}
            mine = ours(name) | {"sinks": LLAMA_CPP.sinks.get(name) == "all"}
            lines += [
                f"{name}: {key} is {theirs[key]}, the table has {mine[key]}" for key in mine if theirs[key] != mine[key]
            ]
            if "causal_attn = false" in match[0] and name not in LLAMA_CPP.not_causal:
                lines.append(f"{name}: not causal")
    print("\n".join(lines) or f"{len(names)} architectures, no difference to the table of {LLAMA_CPP.date}")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
