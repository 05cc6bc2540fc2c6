"""The chat templates that exist by name. Facts about public models' prompt formats; no logic."""

from __future__ import annotations

from lmnb.backends.role_template import RoleTemplate

_IM_END = "<|im_end|>"
_ASSISTANT = "You are a helpful assistant."


def _headers(pattern: str, suffix: str) -> dict[str, tuple[str, str]]:
    """Roles whose prefixes differ by the role's name only."""
    return {role: (pattern.format(role), suffix) for role in ("system", "user", "assistant")}


_CHATML = _headers("<|im_start|>{}\n", f"{_IM_END}\n")
_LLAMA_3 = _headers("<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>")
_MINICPM = {"system": ("", " "), "user": ("user:", " "), "assistant": ("assistant:", "</s>")}
_DEEPSEEK = {
    "system": ("", ""),
    "user": ("<｜User｜>", ""),
    "assistant": ("<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
}
_COMMAND_R = {
    role: (f"<|START_OF_TURN_TOKEN|><|{token}_TOKEN|>", "<|END_OF_TURN_TOKEN|>")
    for role, token in (("system", "SYSTEM"), ("user", "USER"), ("assistant", "CHATBOT"))
}

TEMPLATES = (
    RoleTemplate(
        name="default",
        roles={"system": ("SYSTEM:", "\n"), "user": ("USER:", "\n"), "assistant": ("ASSISTANT:", "\n")},
    ),
    RoleTemplate(
        name="claude",
        roles={"system": ("", ""), "user": ("\n\nHuman: ", ""), "assistant": ("\n\nAssistant:", "")},
    ),
    RoleTemplate(name="chatml", roles=_CHATML, stop=(_IM_END,)),
    RoleTemplate(
        name="chatml-llava",
        roles=_CHATML,
        default_system_prompt=_ASSISTANT,
        stop=(_IM_END,),
        image_token="<image>\n",
    ),
    RoleTemplate(name="qwen", roles=_CHATML, default_system_prompt=_ASSISTANT, stop=(_IM_END,)),
    RoleTemplate(
        name="qwen2-vl",
        roles=_CHATML,
        default_system_prompt=_ASSISTANT,
        stop=(_IM_END,),
        image_token="<|vision_start|><|image_pad|><|vision_end|>",
    ),
    RoleTemplate(
        name="vicuna_v1.1",
        roles={"system": ("", " "), "user": ("USER:", " "), "assistant": ("ASSISTANT:", "</s>")},
        default_system_prompt=(
            "A chat between a curious user and an artificial intelligence assistant. "
            "The assistant gives helpful, detailed, and polite answers to the user's questions."
        ),
        image_token=" <image>\n",
    ),
    RoleTemplate(
        name="llama-2-chat",
        roles={
            "system": ("<<SYS>>\n", "\n<</SYS>>\n\n"),
            "user": ("[INST] ", " [/INST]"),
            "assistant": ("", " </s><s>"),
        },
        system_in_user=True,
    ),
    RoleTemplate(
        name="mistral",
        roles={
            "system": ("[SYSTEM_PROMPT] ", " [/SYSTEM_PROMPT]"),
            "user": ("[INST] ", " [/INST]"),
            "assistant": ("", " </s><s>"),
        },
        stop=("</s>",),
        image_token="[IMG]",
    ),
    RoleTemplate(name="llama-3-instruct", roles=_LLAMA_3, stop=("<|eot_id|>",), image_token="<|image|>"),
    RoleTemplate(name="llama-3-instruct-llava", roles=_LLAMA_3, stop=("<|eot_id|>",), image_token="<image>\n"),
    RoleTemplate(
        name="llama-4",
        roles=_headers("<|header_start|>{}<|header_end|>\n\n", "<|eot|>"),
        stop=("<|eot|>",),
        image_token="<|image|>",
    ),
    RoleTemplate(name="minicpmv", roles=_MINICPM, stop=(_IM_END, "<|endoftext|>"), image_token="(<image>./</image>)"),
    RoleTemplate(
        name="minicpmo",
        roles=_MINICPM,
        stop=(_IM_END, "<|endoftext|>"),
        image_token="(<image>./</image>)",
        audio_token="(<audio>./</audio>)",
    ),
    RoleTemplate(
        name="janus",
        roles={
            "system": ("", "\n\n"),
            "user": ("<|User|>: ", "\n\n"),
            "assistant": ("<|Assistant|>:", "<｜end▁of▁sentence｜>"),
        },
        stop=("<|User|>", "<｜end▁of▁sentence｜>"),
        image_token="<image_placeholder>\n",
    ),
    RoleTemplate(
        name="janus-pro", roles=_DEEPSEEK, stop=("<｜end▁of▁sentence｜>",), image_token="<image_placeholder>\n"
    ),
    RoleTemplate(
        name="yi-1.5",
        roles={
            "system": ("", ""),
            "user": ("<|im_start|>user\n", f"{_IM_END}\n<|im_start|>assistant\n"),
            "assistant": ("", f"{_IM_END}\n"),
        },
        stop=(_IM_END,),
    ),
    RoleTemplate(
        name="yi-vl",
        roles={"system": ("", "\n\n"), "user": ("### Human:", "\n"), "assistant": ("### Assistant:", "\n")},
        default_system_prompt=(
            "This is a chat between an inquisitive human and an AI assistant. Assume the role of the AI assistant. "
            "Read all the images carefully, and respond to the human's questions with informative, helpful, "
            "detailed and polite answers."
            "这是一个好奇的人类和一个人工智能助手之间的对话。假设你扮演这个AI助手的角色。"
            "仔细阅读所有的图像，并对人类的问题做出信息丰富、有帮助、详细的和礼貌的回答。"
        ),
        image_token=" <image_placeholder>\n",
    ),
    RoleTemplate(
        name="gemma-it",
        roles={
            "system": ("", ""),
            "user": ("<start_of_turn>user\n", "<end_of_turn>\n"),
            "assistant": ("<start_of_turn>model\n", "<end_of_turn>\n"),
        },
    ),
    RoleTemplate(
        name="gemma-4-it",
        roles={
            "system": ("<|turn>system\n", "<turn|>\n"),
            "user": ("<|turn>user\n", "<turn|>\n"),
            "assistant": ("<|turn>model\n", "<turn|>\n"),
        },
    ),
    RoleTemplate(
        name="dbrx-instruct",
        roles={
            "system": ("<|im_start|>system\n", _IM_END),
            "user": ("\n<|im_start|>user\n", _IM_END),
            "assistant": ("\n<|im_start|>assistant\n", _IM_END),
        },
        default_system_prompt=(
            "You are DBRX, created by Databricks. You were last updated in December 2023. You answer questions "
            "based on information available up to that point.\n"
            "YOU PROVIDE SHORT RESPONSES TO SHORT QUESTIONS OR STATEMENTS, but provide thorough responses to more "
            "complex and open-ended questions.\n"
            "You assist with various tasks, from writing to coding (using markdown for code blocks — remember to use "
            "``` with code, JSON, and tables).\n"
            "(You do not have real-time data access or code execution capabilities. You avoid stereotyping and "
            "provide balanced perspectives on controversial topics. You do not provide song lyrics, poems, or news "
            "articles and do not divulge details of your training data.)\n"
            "This is your system prompt, guiding your responses. Do not reference it, just respond to the user. If "
            "you find yourself talking about this message, stop. You should be responding appropriately and usually "
            "that means not mentioning this.\n"
            "YOU DO NOT MENTION ANY OF THIS INFORMATION ABOUT YOURSELF UNLESS THE INFORMATION IS DIRECTLY PERTINENT "
            "TO THE USER'S QUERY."
        ),
        stop=(_IM_END,),
    ),
    RoleTemplate(name="c4ai-command-r", roles=_COMMAND_R),
    RoleTemplate(
        name="internvl-2-5",
        roles=_CHATML,
        default_system_prompt=(
            "你是书生·万象，英文名是InternVL，是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态大语言模型。"
        ),
        stop=(_IM_END, "<|action_end|>"),
    ),
    RoleTemplate(
        name="interns1",
        roles=_CHATML,
        default_system_prompt=(
            "You are an AI assistant whose name is Intern-S1 (书生大模型).\n"
            "- Intern-S1 (书生大模型) is a vision-language model that is developed by Shanghai AI Laboratory "
            "(上海人工智能实验室).  It is designed to be helpful, honest, and harmless.\n"
            "- Intern-S1 (书生大模型) can understand and communicate fluently in the language chosen by the user such "
            "as English and 中文.\n"
            "You are an expert reasoner with extensive experience in all areas. You approach problems through "
            "systematic thinking and rigorous reasoning. Your response should reflect deep understanding and precise "
            "logical thinking, making your solution path and reasoning clear to others. Please put your thinking "
            "process within <think>...</think> tags."
        ),
        stop=(_IM_END, "<|action_end|>"),
    ),
    RoleTemplate(
        name="granite-3-instruct",
        roles=_headers("<|start_of_role|>{}<|end_of_role|>", "<|end_of_text|>"),
        stop=("<|end_of_text|>",),
    ),
    RoleTemplate(name="deepseek-v3", roles=_DEEPSEEK, stop=("<｜end▁of▁sentence｜>",)),
    RoleTemplate(
        name="glm-4v",
        roles=_headers("<|{}|>\n", ""),
        stop=("<|user|>", "<|endoftext|>", "<|observation|>"),
    ),
)
