"""The `Tokenizer` protocol over a model folder's tokenizer.json (byte-pair encoding, by the `tokenizers` library).

Text that is not trusted never yields an added token, special or not (runs of white space aside, which some
models keep as added tokens): `<|im_start|>` or `<tool_call>` in a document are letters and signs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as RustTokenizer

from lmnb.errors import ArgumentError, LmnbError, ModelNotFoundError, UnsupportedModelError
from lmnb.runtime.argument_checks import shown, whole_numbers
from lmnb.runtime.model_files import how_to_mend, read_object

_TEMPLATE_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_OLDER_FILES = ("tokenizer.model", "vocab.json", "tekken.json")


class HFTokenizer:
    """Implements `Tokenizer`. Immutable after construction, so that threads may share it.

    `definition` is tokenizer.json's text; `settings` holds tokenizer_config.json; `eos_ids` come from the
    model's generation settings, and the tokenizer's own end token is added to them.
    """

    def __init__(self, definition: str, settings: dict[str, Any], eos_ids: Iterable[int], name: str) -> None:
        spec = json.loads(definition)
        kind = spec.get("model", {}).get("type")
        if kind != "BPE":
            raise UnsupportedModelError(f"{name} has a {kind} tokenizer; lmnb reads byte-pair encodings (BPE)")
        added: dict[int, dict[str, Any]] = {token["id"]: token for token in spec["added_tokens"]}
        self._trusted = RustTokenizer.from_str(definition)
        self._plain = RustTokenizer.from_str(json.dumps(_without_markers(spec)))
        vocab = self._trusted.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values()) + 1
        self.special_ids = frozenset(i for i, token in added.items() if token["special"])
        self.added_ids = frozenset(added)
        self._bytes = _bytes_of_tokens(vocab, added, byte_level=_is_byte_level(spec), size=self.vocab_size)
        self.bos_ids = _bos_ids(self._trusted)
        self.template_variables = _template_variables(settings)
        self.chat_template = _default_template(settings.get("chat_template"))
        eos_token = self.template_variables.get("eos_token")
        own_eos = {vocab[eos_token]} if eos_token in vocab else set()
        self.eos_ids = frozenset(eos_ids) | own_eos

    def encode(self, text: str, *, trusted: bool = False) -> list[int]:
        """Token ids of `text`, nothing added. Added tokens are recognised only if `trusted`. Characters that UTF-8
        cannot hold (lone surrogates) become `?`."""
        tokenizer = self._trusted if trusted else self._plain
        try:
            ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        except TypeError:  # what the library says of them
            if not isinstance(text, str):
                raise ArgumentError(f"text must be text, not {shown(text)}") from None
            ids = tokenizer.encode(text.encode("utf-8", "replace").decode("utf-8"), add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int] | tuple[int, ...]) -> str:
        """Text of `ids`: their bytes, joined, as UTF-8. What is no whole character becomes U+FFFD."""
        return b"".join(map(self.token_bytes, whole_numbers("ids", ids))).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for (an added token: its written form; an unused id: none)."""
        try:
            if token_id >= 0:
                return self._bytes[token_id]
        except (IndexError, TypeError):
            pass
        raise ArgumentError(f"token ids must lie in [0, {self.vocab_size}), not {shown(token_id)}")


def load_tokenizer(folder: Path, eos_ids: Iterable[int], name: str) -> HFTokenizer:
    """The tokenizer of a transformers folder. Raises ModelNotFoundError, UnsupportedModelError."""
    definition_file, settings_file = folder / "tokenizer.json", folder / "tokenizer_config.json"
    settings = read_object(settings_file) or {}
    template_file = folder / "chat_template.jinja"
    if template_file.is_file():
        settings["chat_template"] = template_file.read_text("utf-8")
    if definition_file.is_file():
        definition = definition_file.read_text("utf-8")
    else:
        definition = _definition_through_transformers(folder)
    try:
        return HFTokenizer(definition, settings, eos_ids, name)
    except LmnbError:
        raise
    except Exception as error:  # what a broken definition makes of the library, or of ours
        reason = " ".join(str(error).split())[:200]
        raise ModelNotFoundError(
            f"{definition_file} is no tokenizer that can be read ({type(error).__name__}: {reason}); "
            f"{how_to_mend(definition_file)}"
        ) from None


def _definition_through_transformers(folder: Path) -> str:
    """tokenizer.json's text for a folder that holds an older form only (vocab.json and merges.txt, tokenizer.model)."""
    # Without any of these, transformers would make an empty tokenizer and say nothing.
    if not any((folder / name).is_file() for name in _OLDER_FILES):
        raise ModelNotFoundError(f"{folder} holds no tokenizer; add the model's tokenizer.json to it")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers raises many kinds here; all mean that there is no usable tokenizer
        raise ModelNotFoundError(
            f"the tokenizer in {folder} cannot be read; add the model's tokenizer.json to it"
        ) from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UnsupportedModelError(f"{folder} has a tokenizer without a fast form; add a tokenizer.json to it")
    definition: str = backend.to_str()
    return definition


def _without_markers(spec: dict[str, Any]) -> dict[str, Any]:
    """A copy of tokenizer.json that cannot produce any added token but runs of white space.

    Many vocabularies list their markers beside ordinary tokens too, so that merges (or, with `ignore_merges`,
    a whole word) could still build one: those ways are cut as well.
    """
    markers = {token["content"] for token in spec["added_tokens"] if token["content"].strip()}
    model = dict(spec["model"])
    joined = ((merge, "".join(merge.split(" ") if isinstance(merge, str) else merge)) for merge in model["merges"])
    model["merges"] = [merge for merge, result in joined if result not in markers]
    if model.get("ignore_merges"):
        needed = {part for merge in model["merges"] for part in (merge.split(" ") if isinstance(merge, str) else merge)}
        keep = needed | {model.get("unk_token")}
        model["vocab"] = {word: i for word, i in model["vocab"].items() if word not in markers or word in keep}
    kept = [token for token in spec["added_tokens"] if not token["content"].strip()]
    # The post-processor names markers by id; nothing is to be added to a plain text anyway.
    return {**spec, "model": model, "added_tokens": kept, "post_processor": None}


def _parts(component: dict[str, Any] | None) -> list[dict[str, Any]]:
    """A pre-tokenizer or decoder as the list of its steps."""
    if component is None:
        return []
    if component["type"] == "Sequence":
        steps = component.get("pretokenizers") or component.get("decoders") or []
        return [part for step in steps for part in _parts(step)]
    return [component]


def _is_byte_level(spec: dict[str, Any]) -> bool:
    steps = _parts(spec.get("decoder")) + _parts(spec.get("pre_tokenizer"))
    return any(step["type"] == "ByteLevel" for step in steps)


def byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: itself if printable in Latin-1, else the next free from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet.update((chr(0x100 + n), byte) for n, byte in enumerate(others))
    return alphabet


def _bytes_of_tokens(
    vocab: dict[str, int], added: dict[int, dict[str, Any]], *, byte_level: bool, size: int
) -> list[bytes]:
    alphabet = byte_level_alphabet()
    table = [b""] * size
    for token, token_id in vocab.items():
        if token_id in added:
            table[token_id] = added[token_id]["content"].encode()
        elif byte_level:
            table[token_id] = bytes(alphabet[char] for char in token if char in alphabet)
        elif len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            table[token_id] = bytes([int(token[3:5], 16)])
        else:  # SentencePiece writes a space as U+2581
            table[token_id] = token.replace("\u2581", " ").encode()
    return table


def _bos_ids(tokenizer: RustTokenizer) -> tuple[int, ...]:
    """What the tokenizer's own post-processor puts before a text."""
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    full = tokenizer.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(plain) + 1):
        if full[start : start + len(plain)] == plain:
            return tuple(full[:start])
    return ()


def _template_variables(settings: dict[str, Any]) -> dict[str, str]:
    """Named tokens for a chat template. Files write them as text or as an object with `content`."""
    variables = {}
    for name in _TEMPLATE_TOKENS:
        value = settings.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            variables[name] = value
    return variables


def _default_template(found: Any) -> str | None:
    """The chat template's source; of several named ones, the default."""
    if isinstance(found, list):
        named = {entry["name"]: entry["template"] for entry in found}
        found = named.get("default")
    return found if isinstance(found, str) else None
