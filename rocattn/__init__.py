"""Attention for AMD GPUs and the CPU, with backends selected from a registry.

Names are loaded on first use, so ``import rocattn`` (and every command's ``--help``) does not import numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocattn.backend import Backend, Support
    from rocattn.config import AttentionConfig
    from rocattn.errors import BackendWarning, ConfigError, NoBackendError, RocattnError, SettingError, ToolchainError
    from rocattn.functional import attention, attention_backward
    from rocattn.kv_cache import KVCache, PagedKVCache
    from rocattn.registry import BACKENDS, BackendRegistry
    from rocattn.varlen import attention_varlen, attention_varlen_backward

__version__ = "0.1.0"

_HOMES = {
    "BACKENDS": "backends",
    "AttentionConfig": "config",
    "Backend": "backend",
    "BackendRegistry": "registry",
    "BackendWarning": "errors",
    "ConfigError": "errors",
    "KVCache": "kv_cache",
    "NoBackendError": "errors",
    "PagedKVCache": "kv_cache",
    "RocattnError": "errors",
    "SettingError": "errors",
    "Support": "backend",
    "ToolchainError": "errors",
    "attention": "functional",
    "attention_backward": "functional",
    "attention_varlen": "varlen",
    "attention_varlen_backward": "varlen",
}

__all__ = [
    "BACKENDS",
    "AttentionConfig",
    "Backend",
    "BackendRegistry",
    "BackendWarning",
    "ConfigError",
    "KVCache",
    "NoBackendError",
    "PagedKVCache",
    "RocattnError",
    "SettingError",
    "Support",
    "ToolchainError",
    "attention",
    "attention_backward",
    "attention_varlen",
    "attention_varlen_backward",
]


def __getattr__(name: str) -> Any:
    """Import the module of a public name on first access."""
    if name not in _HOMES:
        raise AttributeError(f"module 'rocattn' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"rocattn.{_HOMES[name]}"), name)  # else looked up on every access
    return value


def __dir__() -> list[str]:
    """List the public names, whether loaded or not."""
    return sorted({*globals(), *__all__})
