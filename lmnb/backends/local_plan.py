"""What a local runtime was asked for, checked as far as that needs no weights; then the weights, and the engine.

One place reads the options, so that a wrong one is found before a model is unloaded for the new one, and before
minutes of reading.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from lmnb.backends.runtime_options import RuntimeOptions
from lmnb.backends.templates import (
    ChatTemplate,
    check_chat_template,
    get_chat_template,
    get_chat_template_by_model_path,
)
from lmnb.backends.token_codec import TokenCodec
from lmnb.errors import ArgumentError
from lmnb.runtime.argument_checks import function
from lmnb.runtime.whole_imports import import_whole

if TYPE_CHECKING:
    from lmnb.runtime.batch import KVLayout
    from lmnb.runtime.cache_size import PoolSize
    from lmnb.runtime.config import EngineConfig
    from lmnb.runtime.engine import Engine
    from lmnb.runtime.grammar import Grammars
    from lmnb.runtime.jump_forward import JumpTables
    from lmnb.runtime.loading import LoadedModel, LoadPlan
    from lmnb.runtime.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class RuntimePlan:
    """A runtime that can be made, as far as can be told without the model's weights."""

    name: str
    model: LoadPlan | LoadedModel
    codec: TokenCodec
    template: ChatTemplate
    template_source: str
    size: PoolSize | None
    config: EngineConfig
    on_progress: Callable[[int, int], None] | None

    def start(self) -> tuple[Engine, TokenCodec]:
        """Read the weights, unless they are there, and start the engine. For one use."""
        from lmnb.runtime.engine import Engine
        from lmnb.runtime.loading import LoadedModel
        from lmnb.runtime.process_end import ENDING
        from lmnb.runtime.warm_up import warm_up

        if isinstance(self.model, LoadedModel):
            loaded, begun = self.model, None
        else:
            begun = None if self.model.vocab_size is None else _constraints(self.model.tokenizer, self.model.vocab_size)
            loaded = self.model.read(self.on_progress)
        grammars, tables = begun or _constraints(loaded.tokenizer, loaded.model.vocab_size)
        config = _sized(self.config, self.size, loaded.model.kv_layout)
        engine = Engine(loaded.model, loaded.tokenizer, config, grammars, tables)
        warm_up(engine.rehearse)
        warm_up(grammars.prepare_xgrammar, when=partial(engine.activity.wait_until_calm, ENDING))
        return engine, self.codec


def _constraints(tokenizer: Tokenizer, vocab_size: int) -> tuple[Grammars, JumpTables]:
    """What constraints need; its tables are made from now on."""
    from lmnb.runtime.grammar import Grammars
    from lmnb.runtime.jump_forward import JumpTables
    from lmnb.runtime.warm_up import warm_up

    grammars, tables = Grammars(tokenizer, vocab_size), JumpTables(tokenizer, vocab_size)
    warm_up(grammars.prepare_llguidance, tables.prepare)
    return grammars, tables


def plan_runtime(options: RuntimeOptions) -> RuntimePlan:
    """The plan for what `Runtime` takes. Raises all that `Runtime` raises, but for what only the weights can show."""
    if options.model is not None and options.model_path is not None:
        raise ArgumentError("model and model_path name the same thing: pass one of them")
    if options.on_progress is not None:
        function("on_progress", options.on_progress, ("bytes read so far", "bytes in all"))
    if options.chat_template is not None and not isinstance(options.chat_template, str):
        check_chat_template(options.chat_template)
    _import_engine()
    from lmnb.runtime.cache_size import pool_size
    from lmnb.runtime.config import EngineConfig, check_fits, check_strict
    from lmnb.runtime.loading import LoadedModel, plan_load

    size = None if options.kv_cache is None else pool_size(options.kv_cache)
    config = EngineConfig(
        kv_cache_dtype=options.kv_cache_dtype,
        max_running=options.max_running,
        prefill_chunk=options.prefill_chunk,
        jump_forward=options.jump_forward,
        deterministic=options.deterministic,
    )
    source = options.model if options.model is not None else options.model_path
    planned: LoadPlan | LoadedModel
    if isinstance(source, LoadedModel):
        planned, name = source, source.model.name
    else:
        planned = plan_load(
            source,
            dtype=options.dtype,
            device=options.device,
            quantization=options.quantization,
            load_format=options.load_format,
        )
        name = planned.name
        check_strict(config, name, planned.decoder is not None)
        if planned.kv_layout is not None:
            check_fits(_sized(config, size, planned.kv_layout), planned.kv_layout)
    codec = TokenCodec(planned.tokenizer)
    template, template_source = _choose_template(options.chat_template, codec, source, name)
    return RuntimePlan(name, planned, codec, template, template_source, size, config, options.on_progress)


def _sized(config: EngineConfig, size: PoolSize | None, layout: KVLayout) -> EngineConfig:
    """`config` with the slots that a size comes to for a model of this layout."""
    from lmnb.runtime.cache_size import stored_layout

    if size is None:
        return config
    return replace(config, pool_tokens=size.tokens(stored_layout(layout, config.kv_cache_dtype)))


def _import_engine() -> None:
    """Everything large that an engine needs, so that no import of it happens in the middle of loading."""
    import_whole("lmnb.runtime.loading", "lmnb.runtime.engine", "lmnb.runtime.grammar")
    if import_module("torch").cuda.is_available() and find_spec("triton") is not None:
        import_whole("triton", "triton.language")


def _choose_template(
    wanted: str | ChatTemplate | None, codec: TokenCodec, source: object, model_name: str
) -> tuple[ChatTemplate, str]:
    """The chat template, and where it came from."""
    if wanted is not None and not isinstance(wanted, str):
        return wanted, "argument"
    if wanted is not None and "{%" not in wanted and "{{" not in wanted:
        return get_chat_template(wanted), "argument"
    jinja = wanted or codec.tokenizer.chat_template
    if jinja is None:
        path = str(source) if isinstance(source, (str, Path)) else model_name
        return get_chat_template_by_model_path(path), "name"
    from lmnb.backends.jinja_template import JinjaTemplate

    atoms = [codec.marker_text(token_id) for token_id in codec.marker_ids]
    name = "argument" if wanted else "tokenizer"
    return JinjaTemplate(jinja, codec.tokenizer.template_variables, atoms, name), name
