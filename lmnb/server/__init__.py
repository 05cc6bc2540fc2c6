"""`lmnb serve`: the local engine over HTTP, in SGLang's native protocol and in OpenAI's.

It knows nothing of programs and notebooks. Everything is the standard library's: a server that a notebook's kernel or
a Databricks driver can start must not bring its own versions of pydantic or an event loop of its own.
"""

from lmnb.server.server import Server

__all__ = ["Server"]
