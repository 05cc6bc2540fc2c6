"""lmnb: prompt programs in notebooks. `import lmnb as sgl` runs SGLang programs.

Names are loaded when they are first used, so that importing lmnb is quick and loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmnb.backends.local import Runtime
    from lmnb.backends.templates import get_chat_template, register_chat_template
    from lmnb.errors import (
        ArgumentError,
        CancelledError,
        EngineClosedError,
        GenerationError,
        GrammarError,
        LmnbError,
        ModelNotFoundError,
        NoBackendError,
        ProgramError,
        RequestTooLongError,
        TemplateError,
        UnknownVariableError,
        UnsupportedModelError,
    )
    from lmnb.language import (
        BatchStopped,
        ChoicesDecision,
        ChoicesSamplingMethod,
        Program,
        ProgramState,
        ProgramStateGroup,
        Results,
        Run,
        SglFunction,
        assistant,
        Defaults,
        assistant_begin,
        assistant_end,
        flush_cache,
        ReasoningFormat,
        function,
        gen,
        gen_int,
        gen_string,
        get_server_info,
        greedy_token_selection,
        image,
        on_run,
        partial_results,
        select,
        set_default_backend,
        system,
        system_begin,
        system_end,
        token_length_normalized,
        register_reasoning_format,
        unconditional_likelihood_normalized,
        separate_reasoning,
        user,
        user_begin,
        user_end,
    )

    __version__: str

__all__ = [
    "ArgumentError",
    "BatchStopped",
    "CancelledError",
    "ChoicesDecision",
    "ChoicesSamplingMethod",
    "EngineClosedError",
    "GenerationError",
    "GrammarError",
    "LmnbError",
    "ModelNotFoundError",
    "NoBackendError",
    "Program",
    "ProgramError",
    "Defaults",
    "ProgramState",
    "ProgramStateGroup",
    "RequestTooLongError",
    "Results",
    "Run",
    "Runtime",
    "SglFunction",
    "TemplateError",
    "UnknownVariableError",
    "UnsupportedModelError",
    "__version__",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "ReasoningFormat",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_chat_template",
    "get_server_info",
    "greedy_token_selection",
    "image",
    "load_ipython_extension",
    "on_run",
    "partial_results",
    "register_chat_template",
    "select",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "unload_ipython_extension",
    "user",
    "user_begin",
    "user_end",
]

_ELSEWHERE = {
    "register_reasoning_format",
    "Runtime": "lmnb.backends.local",
    "separate_reasoning",
    "get_chat_template": "lmnb.backends.templates",
    "register_chat_template": "lmnb.backends.templates",
}


def load_ipython_extension(ipython: Any) -> None:
    """`%load_ext lmnb`."""
    import_module("lmnb.magics").load_ipython_extension(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """`%unload_ext lmnb`."""
    import_module("lmnb.magics").unload_ipython_extension(ipython)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'lmnb' has no attribute {name!r}")
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("lmnb")
    else:
        home = _ELSEWHERE.get(name) or ("lmnb.errors" if name.endswith("Error") else "lmnb.language")
        value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
