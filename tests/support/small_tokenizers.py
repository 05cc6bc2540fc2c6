"""Small tokenizers of the kinds that models have, trained here on a few sentences."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from lmnb.runtime.hf_tokenizer import HFTokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind: they're friends.",
    "Yes or no? The answer is yes. The answer is no. The answers are maybe, the calculator says 12345 + 678.",
    "I'll use a calculator, a search engine, a dictionary. She said: 'we've seen it all', didn't she?",
    "def main(argv):\n    print(argv[0])\n    return 42\n\nclass Foo_Bar(object):\n\tpass\n",
    "今天天气很好。这是一个测试，你好世界！ émigré naïve café 👩‍👩‍👧 😀😀",
    "<|im_start|>user\nWhat is it?<|im_end|>\n<|im_start|>assistant\nIt is what it is.<|im_end|>\n",
]
MARKERS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
KINDS = ("gpt2", "digits", "llama3", "nfc", "spm-always", "spm-first", "blanks")

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@cache
def small_tokenizer(kind: str, bos: bool = False) -> HFTokenizer:
    """One of `KINDS`; with `bos`, it puts `<|endoftext|>` before a text."""
    spec = json.loads(_trained(kind).to_str())
    # Trainers keep bytes as added tokens, models do not.
    spec["added_tokens"] = [token for token in spec["added_tokens"] if not token["content"].startswith("<0x")]
    if bos:
        marker = {"SpecialToken": {"id": MARKERS[0], "type_id": 0}}
        sequence = {"Sequence": {"id": "A", "type_id": 0}}
        spec["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [marker, sequence],
            "pair": [marker, sequence, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {MARKERS[0]: {"id": MARKERS[0], "ids": [0], "tokens": [MARKERS[0]]}},
        }
    settings = {"eos_token": MARKERS[2], "bos_token": MARKERS[0] if bos else ""}
    return HFTokenizer(json.dumps(spec), settings, [2], kind)


def _trained(kind: str) -> Tokenizer:
    if kind.startswith("spm"):
        return _sentencepiece(kind)
    tokenizer = Tokenizer(models.BPE())
    steps: list[Any] = []
    if kind == "digits":
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if kind == "llama3":
        steps.append(pre_tokenizers.Split(Regex(_LLAMA3), "isolated"))
    if kind == "nfc":
        tokenizer.normalizer = normalizers.NFC()
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind != "llama3"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=list(MARKERS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if kind == "blanks":
        tokenizer.add_tokens([" " * count for count in range(2, 13)])
    return tokenizer


def _sentencepiece(kind: str) -> Tokenizer:
    """As Llama 2 and Mistral have it: a space is U+2581, one is put before a text, rare characters are bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    if kind == "spm-always":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=[*MARKERS, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))],
        max_token_length=12,
        show_progress=False,
    )
    words = [" ".join(line.split()).replace("<|", "< |").replace("👩", "") for line in CORPUS]
    # Sentences are cut at spaces for training, so that no token spans two words.
    pieces = [word if index == 0 else " " + word for line in words for index, word in enumerate(line.split(" "))]
    tokenizer.train_from_iterator(pieces, trainer)
    return tokenizer
