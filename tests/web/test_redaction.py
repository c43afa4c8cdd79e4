"""Secrets are left out of everything that the page shows, if that is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import everstep
from everstep.web import app, redact_secrets
from tests.web.conftest import ORIGIN, PAGE_HEADERS

SECRETS = [
    "sk-proj-4f9d2c7b8a1e6f3d5c0b",
    "AKIAIOSFODNN7EXAMPLE",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "xoxb-123456789012-abcdefGHIJKL",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEAmq\n-----END RSA PRIVATE KEY-----",
    "postgres://agent:pa55w0rd@db/agents",
]
CANARIES = ["4f9d2c7b", "AKIAIOS", "16C7e42F", "abcdefGHIJKL", "eyJzdWIi", "MIIEowIB", "pa55w0rd"]
"""A part of each that no answer may hold."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store whose thread holds each secret in its messages, state, results, metadata and tags."""
    path = tmp_path / "agent.db"
    with everstep.open(path).sync as engine:
        for n, secret in enumerate(SECRETS):
            text = "word " * (n * 30) + secret + " end"
            engine.append(
                "t",
                [{"role": "user", "content": text}, {"role": "tool", "content": [{"type": "text", "text": secret}]}],
                {"key": secret, "deep": {"list": [text, {secret: secret}]}, f"n{n}": f"{secret}!"},
                {"tool": "t", "result": secret, "error": f"failed with {secret}"},
                metadata={"note": secret},
            )
        engine.branch(engine.resolve("t~2").checkpoint_id, "b", thread_id="t")
    return path


def answers(client: TestClient) -> Iterator[tuple[str, str]]:
    """Yield the answer of everything that can be asked for."""
    given = {
        "thread": "t", "ref": "t", "a": "t~3", "b": "t", "path": "/state/deep", "text": "end", "source": "b",
        "into": "t", "pointer": "/state/deep",
    }  # fmt: skip
    for place, methods in client.get("/api/v1/openapi.json").json()["paths"].items():
        if "get" not in methods or place in ("/events", "/export", "/openapi.json"):
            continue
        wanted = {one["name"]: one for one in methods["get"].get("parameters", [])}
        asked = {name: given[name] for name in wanted if name in given and name != "text"}
        yield place, client.get(f"/api/v1{place}", params=asked).text
    for place in ("/.json", "/t/t.json", "/t/t.json?tab=state", "/t/t.json?tab=diff&vs=t~2", "/t/t.json?tab=messages"):
        yield place, client.get(place).text
    for step in range(len(SECRETS)):
        for view in ("compare", "checkpoint", "state", "messages", "messages/pair", "blame"):
            values = {"a": f"t~{step + 1}", "b": f"t~{step}", "ref": f"t~{step}", "thread": "t", "path": "/state/key"}
            yield f"{view} of {step}", client.get(f"/api/v1/{view}", params=values).text
    yield "an error", client.get("/api/v1/checkpoint", params={"ref": SECRETS[0], "thread": "t"}).text


def test_no_answer_holds_a_secret(path: Path) -> None:
    with TestClient(app(path, redact=redact_secrets), base_url=ORIGIN, headers=PAGE_HEADERS) as client:
        leaks = [(place, canary) for place, text in answers(client) for canary in CANARIES if canary in text]
    assert leaks == []


def test_without_redaction_they_are_shown(path: Path) -> None:
    """Otherwise the test above would say nothing."""
    with TestClient(app(path), base_url=ORIGIN, headers=PAGE_HEADERS) as client:
        found = {canary for _, text in answers(client) for canary in CANARIES if canary in text}
    assert found == set(CANARIES)


def test_what_is_redacted_can_only_be_looked_at(path: Path) -> None:
    with TestClient(app(path, redact=redact_secrets), base_url=ORIGIN, headers=PAGE_HEADERS) as client:
        assert client.get("/api/v1/info").json()["read_only"] is True
        assert client.post("/api/v1/undo", json={"thread": "t"}).status_code == 403
        answer = client.get("/api/v1/export", params={"thread": "t"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "redacted")


def test_a_function_of_ones_own_sees_every_text(path: Path) -> None:
    def shout(text: str) -> str:
        return text.upper()

    with TestClient(app(path, redact=shout), base_url=ORIGIN, headers=PAGE_HEADERS) as client:
        found: Any = client.get("/api/v1/messages", params={"ref": "t#1"}).json()
    assert "END" in str(found)
    assert " end" not in str(found)


@pytest.mark.parametrize("text", ["the task-list is long", "skiing", "a sketch", "https://a.example:80/b@c", "eyJ"])
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact_secrets(text) == text
