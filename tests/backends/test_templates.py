"""The named templates: their texts, how they are found, and how a user adds one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lmnb.backends import templates
from lmnb.backends.role_template import RoleTemplate
from lmnb.backends.templates import (
    ChatTemplate,
    get_chat_template,
    get_chat_template_by_model_path,
    register_chat_template,
)
from lmnb.errors import ArgumentError, TemplateError

NAMES = (
    *("default", "claude", "chatml", "chatml-llava", "qwen", "qwen2-vl", "vicuna_v1.1", "llama-2-chat", "mistral"),
    *("llama-3-instruct", "llama-3-instruct-llava", "llama-4", "minicpmv", "minicpmo", "janus", "janus-pro"),
    *("yi-1.5", "yi-vl", "gemma-it", "gemma-4-it", "dbrx-instruct", "c4ai-command-r", "internvl-2-5", "interns1"),
    *("granite-3-instruct", "deepseek-v3", "glm-4v"),
)
CHAT = (("system", "S"), ("user", "U"), ("assistant", "A"), ("user", "V"))
EXPECTED = {
    "default": "SYSTEM:S\nUSER:U\nASSISTANT:A\nUSER:V\n",
    "claude": "S\n\nHuman: U\n\nAssistant:A\n\nHuman: V",
    "chatml": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
    "<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nV<|im_end|>\n",
    "llama-2-chat": "[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST]A </s><s>[INST] V [/INST]",
    "vicuna_v1.1": "S USER:U ASSISTANT:A</s>USER:V ",
    "llama-3-instruct": "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nV<|eot_id|>",
    "gemma-it": "S<start_of_turn>user\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n"
    "<start_of_turn>user\nV<end_of_turn>\n",
    "deepseek-v3": "S<｜User｜>U<｜Assistant｜>A<｜end▁of▁sentence｜><｜User｜>V",
    "dbrx-instruct": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>"
    "\n<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nV<|im_end|>",
    "c4ai-command-r": "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>S<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>U<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>A<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>V<|END_OF_TURN_TOKEN|>",
    "granite-3-instruct": "<|start_of_role|>system<|end_of_role|>S<|end_of_text|>"
    "<|start_of_role|>user<|end_of_role|>U<|end_of_text|>"
    "<|start_of_role|>assistant<|end_of_role|>A<|end_of_text|>"
    "<|start_of_role|>user<|end_of_role|>V<|end_of_text|>",
    "yi-1.5": "S<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
    "<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n",
    "janus-pro": "S<｜User｜>U<｜Assistant｜>A<｜end▁of▁sentence｜><｜User｜>V",
}


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Templates that a test registers are gone after it."""
    get_chat_template("default")
    before = dict(templates._registry)
    yield
    templates._registry.clear()
    templates._registry.update(before)


def assembled(template: ChatTemplate, chat: tuple[tuple[str, str], ...]) -> str:
    text = ""
    for index, (role, content) in enumerate(chat):
        history = [role for role, _ in chat[:index]]
        text += template.begin(history, role) + content + template.end(history, role)
    return text


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_the_three_roles(name: str) -> None:
    template = get_chat_template(name)
    assert template.name == name
    chat = tuple((role, f"<<{content}>>") for role, content in CHAT)
    places = [assembled(template, chat).index(content) for _, content in chat]
    assert places == sorted(places)
    assert all(isinstance(stop, str) and stop for stop in template.stop)


@pytest.mark.parametrize("name", EXPECTED)
def test_conversation(name: str) -> None:
    assert assembled(get_chat_template(name), CHAT) == EXPECTED[name]


def test_default_system_prompt_comes_before_a_first_turn_only() -> None:
    qwen = get_chat_template("qwen")
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    assert qwen.begin((), "user") == system + "<|im_start|>user\n"
    assert qwen.begin(("user", "assistant"), "user") == "<|im_start|>user\n"
    # An explicit system message, even an empty one, takes its place.
    assert qwen.begin((), "system") == "<|im_start|>system\n"
    assert qwen.begin(("system",), "user") == "<|im_start|>user\n"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V3-Base", "default"),
        ("/Volumes/models/Llama-2-7b-chat-hf", "llama-2-chat"),
        ("codellama/CodeLlama-7b-Instruct-hf", "llama-2-chat"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mistral"),
        ("meta-llama/Llama-3.2-1B-Instruct", "llama-3-instruct"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2-vl"),
        ("Qwen/Qwen2.5-0.5B-Instruct", "qwen"),
        ("01-ai/Yi-1.5-9B-Chat", "yi-1.5"),
        ("google/gemma-2-2b-it", "gemma-it"),
        ("google/gemma-4-12b-it", "gemma-4-it"),
        ("databricks/dbrx-instruct", "dbrx-instruct"),
        ("lmsys/vicuna-7b-v1.5", "vicuna_v1.1"),
        ("ibm-granite/granite-3.0-2b-instruct", "granite-3-instruct"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "chatml"),
        ("gpt2", "default"),
    ],
)
def test_by_model_path(path: str, name: str) -> None:
    assert get_chat_template_by_model_path(path).name == name


def test_own_template() -> None:
    mine = RoleTemplate(name="mine", roles={"user": ("Q: ", "\n"), "assistant": ("A: ", "\n")}, stop=("\n",))
    register_chat_template(mine)
    assert get_chat_template("mine") is mine
    assert assembled(mine, CHAT[1:3]) == "Q: U\nA: A\n"


def test_unknown_names_and_roles_say_what_there_is() -> None:
    with pytest.raises(ArgumentError, match="did you mean 'llama-2-chat'"):
        get_chat_template("llama2-chat")
    with pytest.raises(ArgumentError, match=r"known names: .*vicuna"):
        get_chat_template("?")
    with pytest.raises(TemplateError, match="has no role 'tool'; it has assistant, system, user"):
        get_chat_template("chatml").begin(("user",), "tool")
