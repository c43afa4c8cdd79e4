"""JSON out: what worked, and what did not."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from everstep.errors import EverstepError
from everstep.views import errors
from everstep.views.redaction import redacted

SCHEMA = "everstep/v1"


def to_bytes(document: object) -> bytes:
    """Return JSON as UTF-8; where a text holds half of a surrogate pair, with escapes."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()


def json_response(document: dict[str, Any]) -> Response:
    """Return an answer that says which version of the documents it is."""
    return Response(to_bytes({"schema": SCHEMA, **redacted(document)}), media_type="application/json")


def error_response(status: int, code: str, message: str, hint: str | None = None) -> Response:
    """Return what went wrong, in the same words as the command line."""
    error = {"code": code, "message": message, "hint": hint}
    return Response(to_bytes({"error": error}), status, media_type="application/json")


def failure_response(error: EverstepError) -> Response:
    """Return an error of ours as the command line tells it, with the status that it stands for."""
    told = redacted(errors.as_json(error))
    return Response(to_bytes(told), errors.answer(error).http_status, media_type="application/json")


def read_only_response() -> Response:
    """Return why nothing is changed here."""
    return error_response(
        403, "read_only", "this page only shows the store", "start it without --read-only to change anything"
    )
