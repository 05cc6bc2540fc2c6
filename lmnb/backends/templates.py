"""Chat templates: the protocol that contexts rely on, and the registry of templates by name and by model path.

A template says what text opens and closes a role, given the roles that came before. It never sees the
contents. Tokenizers' own templates are `jinja_template.JinjaTemplate`; the named ones are in `named_templates`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Protocol

from lmnb.backends.named_templates import TEMPLATES
from lmnb.errors import ArgumentError
from lmnb.runtime.argument_checks import check_text, shown


class ChatTemplate(Protocol):
    """The text around the messages of a chat. `history` lists the roles closed so far, in order."""

    @property
    def name(self) -> str:
        """What `get_chat_template` knows it by."""
        ...

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end an assistant turn."""
        ...

    def begin(self, history: Sequence[str], role: str) -> str:
        """The text that opens `role` after `history`. TemplateError if it cannot stand there."""
        ...

    def end(self, history: Sequence[str], role: str) -> str:
        """The text that closes `role`, which was opened after `history`."""
        ...


_registry: dict[str, ChatTemplate] = {template.name: template for template in TEMPLATES}

# Searched in this order in a model's path, whatever its letters' case; the first hit wins.
_MODEL_PATHS: list[tuple[str, str]] = [
    (r"^(?!.*base).*deepseek-(v3|r1)", "deepseek-v3"),
    (r"orion", "claude"),
    (r"janus", "janus-pro"),
    (r"(?=.*dbrx)(?=.*instruct)", "dbrx-instruct"),
    (r"vicuna|llava-v1\.5|llava-next-video-7b", "vicuna_v1.1"),
    (r"llama-2.*chat|codellama.*instruct", "llama-2-chat"),
    (r"pixtral|(mistral|mixtral).*instruct", "mistral"),
    (r"llama-3.*instruct", "llama-3-instruct"),
    (r"llama-4.*instruct", "llama-4"),
    (r"tinyllama", "chatml"),
    (r"qwen.*vl", "qwen2-vl"),
    (r"glm-?4.*v", "glm-4v"),
    (r"qwen.*(chat|instruct)", "qwen"),
    (r"llava-v1\.6-34b|llava-v1\.6-yi-34b|llava-next-video-34b|llava-onevision-qwen2", "chatml-llava"),
    (r"yi-vl", "yi-vl"),
    (r"yi-1\.5.*chat", "yi-1.5"),
    (r"gemma-4.*it", "gemma-4-it"),
    (r"gemma.*it|gemma-3", "gemma-it"),
    (r"minicpm-v", "minicpmv"),
    (r"minicpm-o", "minicpmo"),
    (r"c4ai-command-r", "c4ai-command-r"),
    (r"granite.*instruct", "granite-3-instruct"),
    (r"internvl2_5", "internvl-2-5"),
    (r"intern-?s1", "interns1"),
    (r"smollm", "chatml"),
]


def register_chat_template(template: ChatTemplate) -> None:
    """Make `template` known by its name; it replaces one of the same name. ArgumentError for anything else."""
    check_chat_template(template)
    _registry[template.name] = template


def check_chat_template(template: object) -> None:
    """ArgumentError for anything that is no `ChatTemplate`."""
    usable = all(callable(getattr(template, part, None)) for part in ("begin", "end"))
    if isinstance(template, type) or not usable or not isinstance(getattr(template, "name", None), str):
        raise ArgumentError(
            "a chat template has a name, stop, begin(history, role) and end(history, role), as "
            f"lmnb.backends.role_template.RoleTemplate(...) has; {shown(template)} has not"
        )


def get_chat_template(name: str) -> ChatTemplate:
    """The template registered as `name`. ArgumentError, with what it might have been, if there is none."""
    check_text("a chat template's name", name)
    if name in _registry:
        return _registry[name]
    close = get_close_matches(name, _registry, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known names: {', '.join(sorted(_registry))}"
    raise ArgumentError(f"there is no chat template {name!r}; {hint}")


def get_chat_template_by_model_path(model_path: str) -> ChatTemplate:
    """The named template that fits a model's path or hub id, else `default`."""
    for pattern, name in _MODEL_PATHS:
        if re.search(pattern, model_path, re.IGNORECASE):
            return get_chat_template(name)
    return get_chat_template("default")
