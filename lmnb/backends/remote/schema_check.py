"""Whether a server's answer is of the JSON schema that it was asked for: not every one looks at the field."""

from __future__ import annotations

import asyncio
import json
import re

from lmnb.backends.remote.packages import require
from lmnb.backends.remote.unreadable import Teller
from lmnb.runtime.request import SamplingParams

_LONGEST = 160  # characters of a problem


async def check_schema(tell: Teller, params: SamplingParams, text: str, reason: str | None) -> None:
    """RemoteError for a finished answer that is not of the schema. One that a limit or a stop cut need not be."""
    constraint = params.constraint
    cut = reason != "stop" or bool(params.stop or params.stop_regex or params.stop_token_ids)
    if constraint is None or constraint.kind != "json_schema" or cut:
        return
    problem = await asyncio.to_thread(problem_of, text, constraint.source)
    if problem is not None:
        raise tell.sent(f"an answer that is not of the JSON schema that it was asked for ({problem})", text)


def problem_of(text: str, schema: str) -> str | None:
    """Why `text` is no JSON of `schema` (a JSON text), in a few words; None if it is. What a schema says in a way that
    nobody but its server can check (a pattern of another dialect, a reference to elsewhere) is left to the server."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"it is no JSON: {error}"
    jsonschema = require("jsonschema", "json_schema on an API")
    referencing = require("referencing", "json_schema on an API")
    parsed = json.loads(schema)
    kind = jsonschema.validators.validator_for(parsed, default=jsonschema.Draft202012Validator)
    validator = kind(parsed, registry=referencing.Registry())  # which fetches nothing
    try:
        found = jsonschema.exceptions.best_match(validator.iter_errors(value))
    except (re.error, RecursionError, jsonschema.exceptions.UnknownType, referencing.exceptions.Unresolvable):
        return None
    if found is None:
        return None
    message = " ".join(found.message.split())
    return f"{found.json_path}: {message[:_LONGEST]}"
