"""The command line: `lmnb serve`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lmnb.backends.runtime_options import RuntimeOptions, add_arguments
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
    add_arguments(serve)
    serve.set_defaults(run=_serve)


def _serve(options: argparse.Namespace) -> int:
    from lmnb.backends.local import Runtime
    from lmnb.env import api_key

    told = {name: value for name, value in vars(options).items() if name in RuntimeOptions.__dataclass_fields__}
    runtime = Runtime(**told)
    with runtime, Server(runtime, host=options.host, port=options.port, api_key=api_key()) as server:
        print(f"{runtime.name} at {server.url} (OpenAI: {server.url}/v1)", flush=True)  # noqa: T201
        server.wait()
    return 0
