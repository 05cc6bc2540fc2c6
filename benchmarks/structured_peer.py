"""The sheets by transformers' `generate` with a logits processor of llguidance, as a user would write it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.sheets import MOST_TOKENS, SHEET, check, prompts
from lmnb.runtime.model_source import resolve_source

_END = 2  # SmolLM2's end token


class Transformers:
    """One matcher a row. `dummy`: a folder whose weights are made up (see `sheets.write_dummy`)."""

    def __init__(self, dtype: str, dummy: Path | None) -> None:
        import llguidance
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

        folder, _ = resolve_source(dummy)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        options: dict[str, Any] = {"dtype": getattr(torch, dtype)}
        if dummy is None:
            self.model: Any = AutoModelForCausalLM.from_pretrained(folder, **options).to(self.device)
        else:
            with self.device:
                self.model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), **options)
        self.model.eval()
        self.vocab_size = self.model.config.vocab_size
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.tokenizer.pad_token_id = _END
        self.library = llguidance
        self.guide = llguidance.LLTokenizer(
            self.tokenizer.backend_tokenizer.to_str(), n_vocab=self.vocab_size, eos_token=_END
        )
        style = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
        self.grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(SHEET), overrides=style)

    def sheets(self, count: int) -> dict[str, float]:
        """The same prompts in one batch."""
        matchers = [self.library.LLMatcher(self.guide, self.grammar) for _ in range(count)]
        inputs = self.tokenizer(prompts(count), return_tensors="pt", padding=True).to(self.device)
        start = inputs["input_ids"].shape[1]
        mask = np.zeros((count, self.vocab_size // 32), dtype=np.int32)

        def constrain(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            last = ids[:, -1].tolist()
            for i, matcher in enumerate(matchers):
                if ids.shape[1] > start and not matcher.is_stopped():
                    matcher.consume_token(last[i])
                if matcher.is_stopped():
                    mask[i] = 0
                    mask[i, 0] = 1 << _END
                else:
                    matcher.unsafe_compute_mask_ptr(mask[i].ctypes.data, mask[i].nbytes)
            bits = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")
            return scores.masked_fill(torch.from_numpy(bits == 0).to(scores.device), -torch.inf)

        began, began_cpu = time.perf_counter(), time.process_time()
        with torch.inference_mode():
            output = self.model.generate(
                **inputs,
                do_sample=False,
                max_new_tokens=MOST_TOKENS,
                pad_token_id=_END,
                eos_token_id=_END,
                logits_processor=[constrain],
            )
        new = output[:, start:].cpu()
        seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
        for row in new:
            check(self.tokenizer.decode(row[row != _END]))
        tokens = int((new != _END).sum())
        return {
            "sheets_per_second": count / seconds,
            "output_tokens_per_second": tokens / seconds,
            "tokens_per_sheet": tokens / count,
            "processor_seconds": cpu,
        }
