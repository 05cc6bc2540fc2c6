"""The command line: `lmnb serve`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lmnb.errors import LmnbError
from lmnb.server.server import Server


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return _serve(options)
    except LmnbError as error:
        print(f"lmnb: {error}", file=sys.stderr)  # noqa: T201  # a command line speaks here
        return 1
    except KeyboardInterrupt:
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lmnb", description="Prompt programs in notebooks, and their engine.")
    commands = parser.add_subparsers(dest="command", required=True)
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
    serve.add_argument("--pool-tokens", type=int, help="tokens that the KV cache holds")
    serve.add_argument("--max-running", type=int, help="sequences decoded together")
    serve.add_argument("--chat-template", help="a registered name, or Jinja source")
    return parser


def _serve(options: argparse.Namespace) -> int:
    from lmnb.backends.local import Runtime
    from lmnb.env import api_key

    runtime = Runtime(
        options.model,
        device=options.device,
        dtype=options.dtype,
        pool_tokens=options.pool_tokens,
        max_running=options.max_running,
        chat_template=options.chat_template,
    )
    with runtime, Server(runtime, host=options.host, port=options.port, api_key=api_key()) as server:
        print(f"{runtime.name} at {server.url} (OpenAI: {server.url}/v1)", flush=True)  # noqa: T201
        server.wait()
    return 0
