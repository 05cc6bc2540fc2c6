"""The command line: `lmnb serve`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lmnb.server.server import Server

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_commands(commands: _SubParsersAction[Any]) -> None:
    """Add `serve` to the command line."""
    serve = commands.add_parser(
        "serve",
        help="serve a model over HTTP (SGLang's and OpenAI's protocols)",
        description="Serve a model over HTTP, in SGLang's native protocol and in OpenAI's. "
        "A key for clients is read from the environment variable LMNB_API_KEY.",
    )
    serve.add_argument("--model", default="smollm2", help="a name, folder, .gguf file or hub id (default: smollm2)")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    serve.add_argument("--port", type=int, default=30000, help="port; 0 takes a free one (default: 30000)")
    serve.add_argument("--device", default="auto", help="auto, cpu or cuda")
    serve.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    serve.add_argument("--quantization", default="auto", help="auto, none, or gguf: a GGUF file's integers as they are")
    serve.add_argument("--kv-cache", help="how much the KV cache holds: tokens, or memory such as 60GiB")
    serve.add_argument("--deterministic", action="store_true", help="same prompt and seed, same text; slower")
    serve.add_argument("--max-running", type=int, help="sequences decoded together")
    serve.add_argument("--chat-template", help="a registered name, or Jinja source")
    serve.set_defaults(run=_serve)


def _serve(options: argparse.Namespace) -> int:
    from lmnb.backends.local import Runtime
    from lmnb.env import api_key

    runtime = Runtime(
        options.model,
        device=options.device,
        dtype=options.dtype,
        quantization=options.quantization,
        kv_cache=options.kv_cache,
        deterministic=options.deterministic,
        max_running=options.max_running,
        chat_template=options.chat_template,
    )
    with runtime, Server(runtime, host=options.host, port=options.port, api_key=api_key()) as server:
        print(f"{runtime.name} at {server.url} (OpenAI: {server.url}/v1)", flush=True)  # noqa: T201
        server.wait()
    return 0
