"""lmnb: prompt programs in notebooks. `import lmnb as sgl` runs SGLang programs.

Names are loaded when they are first used, so that importing lmnb is quick and loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lmnb.backends import serving as _serving

if TYPE_CHECKING:
    from lmnb import dspy as dspy  # not in __all__, see below
    from lmnb import mlflow, telemetry
    from lmnb.backends.local import Runtime
    from lmnb.backends.remote.anthropic_backend import Anthropic
    from lmnb.backends.remote.crusoe_backend import Crusoe
    from lmnb.backends.remote.endpoint import RuntimeEndpoint
    from lmnb.backends.remote.litellm_backend import LiteLLM
    from lmnb.backends.remote.openai_backend import OpenAI
    from lmnb.backends.remote.vertexai_backend import VertexAI
    from lmnb.backends.templates import get_chat_template, register_chat_template
    from lmnb.errors import (
        ArgumentError,
        CacheError,
        CancelledError,
        EngineClosedError,
        GenerationError,
        GrammarError,
        LmnbError,
        MissingPackageError,
        ModelNotFoundError,
        NoBackendError,
        ProgramError,
        RemoteError,
        RequestTooLongError,
        TemplateError,
        UnknownVariableError,
        UnsupportedModelError,
    )
    from lmnb.language import (
        BatchStopped,
        ChoicesDecision,
        ChoicesSamplingMethod,
        Defaults,
        Graph,
        Program,
        ProgramState,
        ProgramStateGroup,
        ReasoningFormat,
        Results,
        Run,
        RunDiff,
        SavedRun,
        SglFunction,
        Tokens,
        assistant,
        assistant_begin,
        assistant_end,
        flush_cache,
        function,
        gen,
        gen_int,
        gen_string,
        get_server_info,
        global_config,
        greedy_token_selection,
        image,
        on_run,
        partial_results,
        register_reasoning_format,
        replay,
        run_schema,
        select,
        separate_reasoning,
        set_default_backend,
        system,
        system_begin,
        system_end,
        token_length_normalized,
        unconditional_likelihood_normalized,
        user,
        user_begin,
        user_end,
        video,
    )
    from lmnb.language.check import ConstraintReport, check_constraint
    from lmnb.language.tools import ToolCall, describe_tools
    from lmnb.server import Server
    from lmnb.server.offline import Engine
    from lmnb.widgets import CacheView, RunView

    __version__: str

__all__ = [
    "Anthropic",
    "ArgumentError",
    "BatchStopped",
    "CacheError",
    "CacheView",
    "CancelledError",
    "ChoicesDecision",
    "ChoicesSamplingMethod",
    "ConstraintReport",
    "Crusoe",
    "Defaults",
    "Engine",
    "EngineClosedError",
    "GenerationError",
    "GrammarError",
    "Graph",
    "LiteLLM",
    "LmnbError",
    "MissingPackageError",
    "ModelNotFoundError",
    "NoBackendError",
    "OpenAI",
    "Program",
    "ProgramError",
    "ProgramState",
    "ProgramStateGroup",
    "ReasoningFormat",
    "RemoteError",
    "RequestTooLongError",
    "Results",
    "Run",
    "RunDiff",
    "RunView",
    "Runtime",
    "RuntimeEndpoint",
    "SavedRun",
    "Server",
    "SglFunction",
    "TemplateError",
    "Tokens",
    "ToolCall",
    "UnknownVariableError",
    "UnsupportedModelError",
    "VertexAI",
    "__version__",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "check_constraint",
    "describe_tools",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_chat_template",
    "get_server_info",
    "global_config",
    "greedy_token_selection",
    "image",
    "load_ipython_extension",
    "mlflow",
    "on_run",
    "partial_results",
    "register_chat_template",
    "register_reasoning_format",
    "replay",
    "run_schema",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "telemetry",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "unload_ipython_extension",
    "user",
    "user_begin",
    "user_end",
    "video",
]

_ELSEWHERE = {
    "Anthropic": "lmnb.backends.remote.anthropic_backend",
    "CacheView": "lmnb.widgets",
    "ConstraintReport": "lmnb.language.check",
    "Crusoe": "lmnb.backends.remote.crusoe_backend",
    "Engine": "lmnb.server.offline",
    "LiteLLM": "lmnb.backends.remote.litellm_backend",
    "OpenAI": "lmnb.backends.remote.openai_backend",
    "RunView": "lmnb.widgets",
    "Runtime": "lmnb.backends.local",
    "RuntimeEndpoint": "lmnb.backends.remote.endpoint",
    "Server": "lmnb.server",
    "ToolCall": "lmnb.language.tools",
    "VertexAI": "lmnb.backends.remote.vertexai_backend",
    "check_constraint": "lmnb.language.check",
    "describe_tools": "lmnb.language.tools",
    "get_chat_template": "lmnb.backends.templates",
    "register_chat_template": "lmnb.backends.templates",
}
_MODULES = ("dspy", "mlflow", "telemetry")  # `dspy` needs its package at once, so `import *` leaves it out


def _open_server(*arguments: Any, **options: Any) -> Any:
    return import_module("lmnb.server").Server(*arguments, **options)


_serving.serve_with(_open_server)


def load_ipython_extension(ipython: Any) -> None:
    """`%load_ext lmnb`."""
    import_module("lmnb.magics").load_ipython_extension(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """`%unload_ext lmnb`."""
    import_module("lmnb.magics").unload_ipython_extension(ipython)


def __getattr__(name: str) -> Any:
    if name not in __all__ and name not in _MODULES:
        raise AttributeError(f"module 'lmnb' has no attribute {name!r}")
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("lmnb")
    elif name in _MODULES:
        value = import_module(f"lmnb.{name}")
    else:
        home = _ELSEWHERE.get(name) or ("lmnb.errors" if name.endswith("Error") else "lmnb.language")
        value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
