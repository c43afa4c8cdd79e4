"""The OpenAPI document: made from the table of endpoints, so that it cannot say anything else."""

from __future__ import annotations

from typing import Any

from everstep import version
from everstep.web.endpoints import ENDPOINTS, Endpoint
from everstep.web.schemas import SCHEMAS

_ERRORS = {
    "400": "The request makes no sense.",
    "403": "It comes from another site, or the page only shows the store.",
    "404": "There is no such thread or checkpoint.",
    "409": "Somebody else was first, both sides changed the same, or there is nothing to undo.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "422": "What is stored, or shall be stored, cannot be read or written.",
    "500": "The store failed.",
    "503": "The store cannot be reached.",
    "507": "There is no space left.",
}


def document(where: str) -> dict[str, Any]:
    """Return the document of an interface that is mounted there."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    # What is sent or answered here is a stream or a file and no document, so they are not in the table of endpoints.
    paths["/events"] = {"get": _EVENTS}
    paths["/export"] = {"get": _EXPORT}
    paths["/import"] = {"post": _IMPORT}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Everstep",
            "version": version.__version__,
            "description": "Checkpoints of agents: what there is, what changed, and what can be done with it.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": where}],
        "paths": paths,
        "components": {"schemas": SCHEMAS, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        # Either none or a token: it depends on how the server was started, and the document is the same.
        "security": [{}, {"token": []}],
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": f"{endpoint.method.lower()}{endpoint.path.replace('/', '_')}",
        "summary": endpoint.about,
        "responses": _responses(endpoint),
    }
    if endpoint.is_write:
        fields = {p.name: {**p.schema, "description": p.about} for p in endpoint.parameters}
        required = [p.name for p in endpoint.parameters if p.required]
        # A name that is not known is refused, since who misspells one means something else than they get.
        body = {"type": "object", "properties": fields, "required": required, "additionalProperties": False}
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
        return found
    found["parameters"] = [
        {"name": p.name, "in": "query", "required": p.required, "description": p.about, "schema": p.schema}
        for p in endpoint.parameters
    ]
    return found


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    answers: dict[str, Any] = {"200": _answer("As asked.", endpoint.answer)}
    for status, about in _ERRORS.items():
        answers[status] = _answer(about, "Error")
    return answers


def _answer(about: str, schema: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"description": about, "content": content}


_EXPORT = {
    "operationId": "get_export",
    "summary": "A thread and its branches as one file, which `everstep import` takes.",
    "parameters": [
        {
            "name": "thread",
            "in": "query",
            "required": True,
            "description": "The name of a thread.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 4096},
        },
    ],
    "responses": {
        "200": {"description": "The file.", "content": {"application/octet-stream": {}}},
        "404": _answer("There is no such thread.", "Error"),
    },
}

_IMPORT = {
    "operationId": "post_import",
    "summary": "The threads of a file that an export wrote, brought into the store. Everything in it is checked.",
    "requestBody": {"required": True, "content": {"application/octet-stream": {}}},
    "responses": {
        "200": _answer("What was brought in.", "Imported"),
        "400": _answer("It is no such file, or the store has other threads of these names.", "Error"),
        "403": _answer(_ERRORS["403"], "Error"),
        "413": _answer("The file is too large for the page.", "Error"),
        "415": _answer("The body is not application/octet-stream.", "Error"),
        "422": _answer("The file is damaged.", "Error"),
        "507": _answer(_ERRORS["507"], "Error"),
    },
}

_EVENTS = {
    "operationId": "get_events",
    "summary": "Server-sent events: `hello` at first, `change` whenever something has changed.",
    "parameters": [
        {
            "name": "thread",
            "in": "query",
            "required": False,
            "description": "The thread that is open: its rewinds and undos count too.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 4096},
        },
        {
            "name": "Last-Event-ID",
            "in": "header",
            "required": False,
            "description": "The id of the last event that was received.",
            "schema": {"type": "string"},
        },
    ],
    "responses": {
        "200": {"description": "Events until the connection is closed.", "content": {"text/event-stream": {}}}
    },
}
