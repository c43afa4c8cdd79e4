"""How a store is reached from elsewhere: what can be pasted works, and no password is among it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import everstep
from everstep.web import app
from everstep.web.reaching import reach
from tests.tools import servers
from tests.web.conftest import ORIGIN, PAGE_HEADERS

SECRETS = (
    "postgresql://ada:s3cret@db/agents",
    "postgresql://db/agents?user=ada&password=s3cret",
    "redis://:s3cret@cache:6379/0",
    "redis://s3cret@cache:6379/0",
    "rediss://cache/0?password=s3cret",
)


@pytest.mark.parametrize("url", SECRETS)
def test_an_address_with_a_password_is_that_of_the_environment(url: str) -> None:
    found = reach(url, None, {})
    assert "s3cret" not in repr(found)
    assert found.command == 'EVERSTEP_STORE="${EVERSTEP_STORE:?}" everstep'
    assert found.python == 'os.environ["EVERSTEP_STORE"]'
    assert "EVERSTEP_STORE" in (found.note or "")


@pytest.mark.parametrize("url", ["postgresql://ada@db/agents", "redis://cache:6379/0", "redis+cluster://cache:7000"])
def test_an_address_without_a_password_is_given_as_it_is(url: str) -> None:
    found = reach(url, None, {})
    assert (found.command, found.python, found.note) == (f"everstep --store {url}", json.dumps(url), None)


def test_a_file_is_given_with_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with everstep.open("a b?.db").sync as engine:
        engine.append("t", [{"role": "user", "content": "hello"}])
    store = everstep.open("a b?.db").checkpointer.store  # type: ignore[attr-defined]
    url = f"sqlite:///{tmp_path}/a%20b%3F.db"
    assert reach("a b?.db", store, {}) == (f"everstep --store {url}", json.dumps(url), "", None, False)
    assert reach(None, store, {}).command == f"everstep --store {url}"
    with everstep.open(url).sync as engine:
        assert engine.get_latest("t") is not None


def test_nothing_but_requests_reaches_a_store_in_memory() -> None:
    with TestClient(app("memory://"), base_url=ORIGIN, headers=PAGE_HEADERS) as client:
        found = client.get("/api/v1/info").json()["reach"]
    assert (found["command"], found["python"]) == ("everstep", None)
    assert "curl" in found["note"]


def test_options_are_part_of_a_program_and_commands_take_them_from_a_file() -> None:
    found = reach("redis://cache/0", None, {"key_prefix": "agents:"})
    assert (found.command, found.options) == ("everstep", ', key_prefix="agents:"')
    assert "key_prefix" in (found.note or "")


def test_a_server_that_was_passed_in_open_is_named_by_the_environment() -> None:
    engine = everstep.open(servers.postgres())
    with TestClient(app(engine), base_url=ORIGIN, headers=PAGE_HEADERS) as client:
        found = client.get("/api/v1/info").json()["reach"]
    assert found["python"] == 'os.environ["EVERSTEP_STORE"]'
