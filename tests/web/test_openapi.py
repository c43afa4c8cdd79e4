"""The OpenAPI document tells the truth: requests made from it, sensible or not, are answered as it says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from jsonschema import Draft202012Validator
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient

import everstep
from everstep import SnapshotConfig
from everstep.web import app
from everstep.web.endpoints import ENDPOINTS, Endpoint
from everstep.web.openapi import document as make_document
from tests.web.conftest import ORIGIN, PAGE_HEADERS

EXAMPLES = 10
STORY = "trip-to-oslo"
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


@pytest.fixture(scope="module")
def described(told: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[schemathesis.BaseSchema]:
    path = tmp_path_factory.mktemp("asked") / "demo.db"
    path.write_bytes(told.read_bytes())
    # Each request starts and ends the application: an engine of its own would be closed with the first.
    engine = everstep.open(path, SnapshotConfig(gc_policy="keep_all"), synchronous="off")
    yield schemathesis.openapi.from_asgi("/api/v1/openapi.json", app(engine), headers={"Host": "127.0.0.1"})
    engine.sync.close()


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: f"{endpoint.method} {endpoint.path}")
def test_generated_requests_are_answered_as_described(
    described: schemathesis.BaseSchema, endpoint: Endpoint, mode: GenerationMode
) -> None:
    if mode is GenerationMode.NEGATIVE and not endpoint.parameters:
        return  # nothing can be wrong about nothing
    operation = described[endpoint.path][endpoint.method]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    def ask(case: Case[Any]) -> None:
        case.call_and_validate(headers={"Host": "127.0.0.1", **PAGE_HEADERS}, checks=CHECKS)

    ask()


@pytest.fixture(scope="module")
def asked(told: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    path = tmp_path_factory.mktemp("answered") / "demo.db"
    path.write_bytes(told.read_bytes())
    with TestClient(app(path), base_url=ORIGIN, headers=PAGE_HEADERS) as found:
        yield found


SENSIBLE: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("GET", "/info"): [{}],
    ("GET", "/threads"): [{}, {"text": "oslo"}, {"status": "waiting"}, {"limit": 1}, {"since": "2020-01-01"}],
    ("GET", "/history"): [
        {"thread": STORY},
        {"thread": STORY, "kind": ["llm", "tool"]},
        {"thread": STORY, "path": "state.hotel"},
        {"thread": STORY, "hidden": "true", "branches": "false", "limit": 3},
        {"thread": STORY, "offset": 5, "limit": 3},
        {"thread": "refund-0093"},
        {"thread": "invoice-run-2026-11", "errors": "true"},
    ],
    ("GET", "/changed"): [{"thread": STORY, "id": ["@HEAD"]}],
    ("GET", "/place"): [{"thread": STORY, "id": "@HEAD"}],
    ("GET", "/resolve"): [{"ref": STORY}, {"ref": "~1", "thread": STORY}],
    ("GET", "/checkpoint"): [{"ref": STORY}, {"ref": "#7", "thread": STORY}, {"ref": "refund-0093"}],
    ("GET", "/compare"): [{"b": STORY}, {"a": f"{STORY}~3", "b": STORY}, {"b": "refund-0093"}],
    ("GET", "/messages"): [{"ref": STORY}, {"ref": "support-4711", "limit": 5}, {"ref": "refund-0093"}],
    ("GET", "/messages/pair"): [{"a": STORY, "b": "@BRANCH"}, {"a": f"{STORY}~3", "b": STORY, "limit": 1}],
    ("GET", "/state"): [{"ref": STORY}, {"ref": STORY, "path": "state"}, {"ref": "refund-0093"}],
    ("GET", "/state/search"): [{"ref": STORY, "text": "Oslo"}],
    ("GET", "/value"): [{"ref": STORY}, {"ref": STORY, "pointer": "/state/hotel"}],
    ("GET", "/blame"): [{"thread": STORY, "path": "state.hotel"}],
    ("GET", "/operations"): [{"thread": STORY}],
    ("GET", "/timing"): [{"thread": STORY}, {"thread": "support-4711", "limit": 10, "branches": "false"}],
    ("GET", "/branches"): [{"thread": STORY}, {"thread": "@BRANCH", "archived": "false"}],
    ("GET", "/tags"): [{"thread": STORY}],
    ("GET", "/runs"): [{}, {"status": "waiting"}, {"limit": 1}],
    ("GET", "/run"): [{"thread": "trip-to-bergen"}, {"thread": "report-week-46", "limit": 3}],
    ("GET", "/storage"): [{}, {"thread": STORY}],
    ("GET", "/verify"): [{}, {"thread": STORY}],
    ("GET", "/rewind"): [{"ref": f"{STORY}~2"}],
    ("POST", "/rewind"): [{"ref": f"{STORY}~2"}],
    ("POST", "/undo"): [{"thread": STORY}],
    ("POST", "/redo"): [{"thread": STORY}],
    ("POST", "/fork"): [
        {"ref": STORY, "name": "bus"},
        {"ref": STORY, "name": "boat", "patch": [{"op": "add", "path": "/state/hotel", "value": "Boat"}]},
    ],
    ("GET", "/merge"): [{"source": "@BRANCH", "into": STORY}],
    ("POST", "/merge"): [{"source": "@BRANCH", "into": STORY, "resolve": "theirs"}],
    ("POST", "/pin"): [{"ref": STORY}, {"ref": STORY, "pinned": False}],
    ("POST", "/tag"): [{"ref": STORY, "tag": "good"}, {"ref": STORY, "tag": "good", "given": False}],
    ("POST", "/note"): [{"ref": STORY, "note": "the one\nto keep"}, {"ref": STORY, "note": ""}],
    ("POST", "/rename"): [{"thread": "@BRANCH", "name": "with her sister"}, {"thread": "@BRANCH", "name": ""}],
    ("POST", "/archive"): [{"thread": "@BRANCH"}, {"thread": "@BRANCH", "archived": False}],
    ("POST", "/signal"): [{"thread": "trip-to-bergen", "event": "paid", "value": {"by": "card"}}],
    ("POST", "/answer"): [{"thread": "trip-to-bergen", "value": "yes"}],
    ("GET", "/delete"): [{"thread": "support-4711"}],
    ("POST", "/delete"): [{"thread": "support-4711"}],
    ("POST", "/collect"): [{"dry_run": True}, {"thread": STORY, "policy": "keep_last_n", "param": 5}],
}
"""What somebody might really ask, in an order in which all of it works; names of the demo's are filled in."""


def test_every_endpoint_answers_as_described(asked: TestClient) -> None:
    document = make_document("/api/v1")
    assert set(SENSIBLE) == {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS}
    for (method, path), requests in SENSIBLE.items():
        operation = document["paths"][path][method.lower()]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        validator = Draft202012Validator({**schema, "components": document["components"]})
        for request in requests:
            values = {name: _named(asked, value) for name, value in request.items()}
            options: dict[str, Any] = {"params": values} if method == "GET" else {"json": values}
            answer = asked.request(method, f"/api/v1{path}", **options)
            assert answer.status_code == 200, (path, values, answer.text)
            assert len(answer.content) < 200_000
            problems = [f"{list(error.path)}: {error.message}" for error in validator.iter_errors(answer.json())]
            assert problems == [], (path, values)


def _named(client: TestClient, value: Any) -> Any:
    if value == ["@HEAD"] or value == "@HEAD":
        head = client.get("/api/v1/resolve", params={"ref": STORY}).json()["id"]
        return [head] if isinstance(value, list) else head
    if value == "@BRANCH":
        names = [found["thread_id"] for found in client.get("/api/v1/threads?archived=true").json()["threads"]]
        return next(name for name in names if name.startswith(f"{STORY}-branch-family"))
    return value


def test_the_document_says_where_it_is_mounted(asked: TestClient) -> None:
    assert asked.get("/api/v1/openapi.json").json()["servers"] == [{"url": "/api/v1"}]
