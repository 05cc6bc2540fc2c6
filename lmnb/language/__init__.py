"""The language: expressions, programs, states, groups, choices, runs and their events.

It knows nothing of notebooks and engines: a backend generates, a view subscribes to a run.
"""

from lmnb.language.choices import (
    ChoicesDecision,
    ChoicesSamplingMethod,
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from lmnb.language.current_run import current_run
from lmnb.language.default_backend import (
    flush_cache,
    get_default_backend,
    get_server_info,
    resolve_backend,
    set_default_backend,
)
from lmnb.language.defaults import Defaults
from lmnb.language.global_config import global_config
from lmnb.language.graph import Graph
from lmnb.language.group import ProgramStateGroup
from lmnb.language.open_state import open_state
from lmnb.language.primitives import (
    assistant,
    assistant_begin,
    assistant_end,
    gen,
    gen_int,
    gen_string,
    image,
    select,
    separate_reasoning,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
    video,
)
from lmnb.language.program import Program, function
from lmnb.language.reasoning import ReasoningFormat, register_reasoning_format
from lmnb.language.results import BatchStopped, Results, partial_results
from lmnb.language.run import Run
from lmnb.language.run_diff import RunDiff
from lmnb.language.run_observers import on_run
from lmnb.language.saved_run import SavedRun, replay, run_schema
from lmnb.language.state import ProgramState
from lmnb.language.token_lens import Tokens
from lmnb.language.unfinished import cancel_runs, runs_at_work

SglFunction = Program  # SGLang's name for it

__all__ = [
    "BatchStopped",
    "ChoicesDecision",
    "ChoicesSamplingMethod",
    "Defaults",
    "Graph",
    "Program",
    "ProgramState",
    "ProgramStateGroup",
    "ReasoningFormat",
    "Results",
    "Run",
    "RunDiff",
    "SavedRun",
    "SglFunction",
    "Tokens",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "cancel_runs",
    "current_run",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_default_backend",
    "get_server_info",
    "global_config",
    "greedy_token_selection",
    "image",
    "on_run",
    "open_state",
    "partial_results",
    "register_reasoning_format",
    "replay",
    "resolve_backend",
    "run_schema",
    "runs_at_work",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
]
