"""A GGUF file's byte-level BPE tokenizer, rewritten as tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

from typing import Any

from lmnb.errors import UnsupportedModelError
from lmnb.runtime.gguf_file import GGUFFile

# llama.cpp's token types.
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_GPT2 = {**_BYTE_LEVEL, "use_regex": True}  # ByteLevel's own regex is GPT-2's
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


# llama.cpp's name for how text is cut into words. "default" is what files from before these names say; like
# transformers, take it as GPT-2's.
_PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _sequence({"type": "Digits", "individual_digits": True}, _GPT2),
    "llama-bpe": _sequence(_split(f"{_CONTRACTIONS}|{_LETTERS}|\\p{{N}}{{1,3}}|{_REST}"), _BYTE_LEVEL),
    "qwen2": _sequence(_split(f"{_CONTRACTIONS}|{_LETTERS}|\\p{{N}}|{_REST}"), _BYTE_LEVEL),
}


def tokenizer_files(file: GGUFFile) -> tuple[dict[str, Any], dict[str, Any]]:
    """The contents of tokenizer.json and tokenizer_config.json. Raises UnsupportedModelError."""
    kind, pre = file.require("tokenizer.ggml.model"), file.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2":
        raise UnsupportedModelError(
            f"{file.path.name} has a {kind!r} tokenizer; of GGUF files lmnb reads byte-level BPE ('gpt2') only; "
            "use the model's transformers folder instead"
        )
    if pre not in _PRE_TOKENIZERS:
        known = ", ".join(_PRE_TOKENIZERS)
        raise UnsupportedModelError(
            f"{file.path.name} cuts text into words by {pre!r} rules; lmnb knows these: {known}; "
            "use the model's transformers folder instead"
        )
    tokens: list[str] = file.require("tokenizer.ggml.tokens")
    types: list[int] = file.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    merges: list[str] = file.require("tokenizer.ggml.merges")
    added = [_added_token(i, tokens[i], types[i]) for i in range(len(tokens)) if types[i] in (_CONTROL, _USER_DEFINED)]
    named = _named_tokens(file, tokens)
    definition = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": _PRE_TOKENIZERS[pre],
        "post_processor": _post_processor(file, named),
        "decoder": _GPT2,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre == "llama-bpe",
            "vocab": {token: i for i, token in enumerate(tokens) if types[i] != _UNUSED},
            "merges": [merge.split(" ", 1) for merge in merges],
        },
    }
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": int(file.get_own("context_length", 8192)),
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        **named,
    }
    template = file.get("tokenizer.chat_template")
    if template:
        settings["chat_template"] = template
    return definition, settings


def _added_token(token_id: int, content: str, kind: int) -> dict[str, Any]:
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": kind == _CONTROL,
    }


def _named_tokens(file: GGUFFile, tokens: list[str]) -> dict[str, str]:
    named = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = file.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None and 0 <= token_id < len(tokens):
            named[f"{name}_token"] = tokens[token_id]
    return named


def _post_processor(file: GGUFFile, named: dict[str, str]) -> dict[str, Any] | None:
    """Puts the start token before a text, where the file asks for it (Llama 3's do so even without saying)."""
    asked = file.get("tokenizer.ggml.add_bos_token", file.get("tokenizer.ggml.pre") == "llama-bpe")
    if not asked or "bos_token" not in named:
        return None
    bos, bos_id = named["bos_token"], file.get("tokenizer.ggml.bos_token_id")
    start = {"SpecialToken": {"id": bos, "type_id": 0}}
    first, second = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
    return {
        "type": "TemplateProcessing",
        "single": [start, first],
        "pair": [start, first, {"SpecialToken": {"id": bos, "type_id": 1}}, second],
        "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}},
    }
