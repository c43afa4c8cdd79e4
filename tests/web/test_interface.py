"""The HTTP interface: what it answers, and how it tells what went wrong."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

import everstep
from everstep import InvalidInput, MemoryCheckpointer, SnapshotConfig
from everstep.errors import StoreUnavailable
from everstep.views import history
from everstep.views.index import Index
from everstep.web import app, events
from everstep.web.places import HISTORIES_MAX, Places
from tests.web.conftest import ORIGIN, PAGE_HEADERS

STORY = "trip-to-oslo"


def ask(client: TestClient, path: str, **query: Any) -> Any:
    answer = client.get(f"/api/v1/{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    ("place", "query", "status", "code"),
    [
        ("history", {"thread": "trip-to-osl"}, 404, "checkpoint_not_found"),
        ("checkpoint", {"ref": f"{STORY}@ffffffff"}, 404, "checkpoint_not_found"),
        ("checkpoint", {}, 400, "invalid_input"),
        ("checkpoint", {"ref": STORY, "what": "ever"}, 400, "invalid_input"),
        ("threads", {"limit": "1; DROP TABLE"}, 400, "invalid_input"),
        ("threads", {"limit": "٣"}, 400, "invalid_input"),
        ("threads", {"cursor": "nonsense"}, 400, "invalid_input"),
        ("threads", {"since": "yesterday"}, 400, "invalid_input"),
        ("threads", {"status": "happy"}, 400, "invalid_input"),
        ("history", {"thread": STORY, "offset": 3, "kind": "llm"}, 400, "invalid_input"),
        ("history", {"thread": STORY, "cursor": "nonsense"}, 400, "invalid_input"),
        ("runs", {"status": "happy"}, 400, "invalid_input"),
        ("run", {"thread": STORY}, 404, "run_not_found"),
        ("run", {"thread": "trip-to-bergen", "cursor": "nonsense"}, 400, "invalid_input"),
        ("export", {"thread": "../../etc/passwd"}, 404, "checkpoint_not_found"),
        ("nothing", {}, 404, "not_found"),
    ],
)
def test_what_went_wrong_is_told(client: TestClient, place: str, query: dict[str, Any], status: int, code: str) -> None:
    answer = client.get(f"/api/v1/{place}", params=query)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("place", ["operations", "verify", "storage", "timing", "branches", "tags"])
def test_looking_at_a_thread_that_is_not_there(client: TestClient, place: str) -> None:
    answer = client.get(f"/api/v1/{place}", params={"thread": "trip-to-osl"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (404, "checkpoint_not_found")
    assert error["similar"][0] == STORY


@pytest.mark.parametrize(
    ("place", "body"),
    [
        ("undo", {"thread": "trip-to-osl"}),
        ("redo", {"thread": "trip-to-osl"}),
        ("merge", {"source": "trip-to-osl", "into": STORY}),
        ("merge", {"source": STORY, "into": "trip-to-osl"}),
        ("collect", {"thread": "trip-to-osl"}),
        ("delete", {"thread": "trip-to-osl"}),
    ],
)
def test_changing_a_thread_that_is_not_there(client: TestClient, place: str, body: dict[str, str]) -> None:
    answer = client.post(f"/api/v1/{place}", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (404, "checkpoint_not_found")
    assert error["similar"][0] == STORY


@pytest.mark.parametrize("verb", ["undo", "redo"])
def test_a_thread_with_nothing_to_undo_is_another_thing(client: TestClient, verb: str) -> None:
    answer = client.post(f"/api/v1/{verb}", json={"thread": "onboarding-ada"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "cannot_undo")


def test_a_branch_that_is_all_hidden_is_a_thread(client: TestClient) -> None:
    """Its log is its own: nothing of it can be seen, and what was done to it can be undone."""
    made = client.post("/api/v1/fork", json={"ref": STORY, "name": "hidden"}).json()["thread_id"]
    client.post("/api/v1/rename", json={"thread": made, "name": "unseen"})
    client.post("/api/v1/undo", json={"thread": STORY})
    answer = client.post("/api/v1/undo", json={"thread": made})
    assert answer.status_code == 200, answer.text
    assert ask(client, "operations", thread=made)["operations"][0]["undone"]


def test_a_method_that_is_not_offered(client: TestClient) -> None:
    answer = client.get("/api/v1/undo")
    assert answer.status_code == 405
    assert answer.json()["error"]["code"] == "method_not_allowed"


def test_an_error_of_the_program_is_not_shown(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("secret")

    monkeypatch.setattr(history, "page", fail)
    with TestClient(app(path), base_url=ORIGIN, raise_server_exceptions=False) as client:
        answer = client.get("/api/v1/history", params={"thread": STORY})
    assert answer.status_code == 500
    assert "secret" not in answer.text


def test_passwords_are_not_shown() -> None:
    url = "postgresql://somebody:secret@127.0.0.1:1/nowhere"
    with TestClient(app(url), base_url=ORIGIN) as client:
        answer = client.get("/api/v1/info")
    assert answer.json()["kind"] == "postgres"
    assert "secret" not in answer.text


# -- rows of long histories


def whole(client: TestClient, **query: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = ask(client, "history", thread=STORY, limit=4, **query, **({"cursor": cursor} if cursor else {}))
        rows += page["rows"]
        cursor = page["cursor"]
        if cursor is None:
            return rows


@pytest.mark.parametrize("query", [{}, {"hidden": "true"}, {"branches": "false"}])
def test_any_place_of_a_history_can_be_jumped_to(client: TestClient, query: dict[str, str]) -> None:
    """A page in the middle is what reading all the way there would give, with the same lines."""
    rows = whole(client, **query)
    assert len(rows) > 8
    for offset in range(len(rows) - 1, 0, -1):
        page = ask(client, "history", thread=STORY, limit=5, offset=offset, **query)
        assert page["rows"] == rows[offset : offset + 5]
        assert page["total"] == len(rows)
    assert ask(client, "history", thread=STORY, offset=len(rows) + 3, **query)["rows"] == []


def test_a_straight_history_is_not_walked_through(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async def build(_: Any) -> None:
        raise AssertionError("it was walked through")

    monkeypatch.setattr(Index, "build", build)
    page = ask(client, "history", thread="support-4711", offset=400, limit=200)
    assert [row["step"] for row in page["rows"]] == list(range(12, 0, -1))


def test_places_move_when_something_comes_in_above(client: TestClient, path: Path) -> None:
    before = ask(client, "history", thread=STORY, limit=3, offset=5)
    with everstep.open(path, SnapshotConfig(gc_policy="keep_all")).sync as engine:
        engine.append(STORY, [{"role": "user", "content": "and now?"}])
    after = ask(client, "history", thread=STORY, limit=3, offset=6)
    assert [row["id"] for row in after["rows"]] == [row["id"] for row in before["rows"]]
    answer = client.post("/api/v1/rewind", json={"ref": f"{STORY}#7"})
    assert answer.status_code == 200
    rows = whole(client)
    assert ask(client, "history", thread=STORY, limit=3, offset=6)["rows"] == rows[6:9]


def test_a_checkpoint_has_a_place(client: TestClient) -> None:
    for place, row in enumerate(whole(client)):
        assert ask(client, "place", thread=STORY, id=row["id"])["place"] == place
    assert ask(client, "place", thread=STORY, id="nothing")["place"] is None


async def test_few_histories_are_remembered() -> None:
    engine = everstep.open("memory://", SnapshotConfig(gc_policy="keep_all"))
    places = Places(engine)
    for number in range(HISTORIES_MAX + 10):
        for _ in range(3):
            await engine.append(f"t{number}", [{"role": "user", "content": "hello"}])
        await places.page(f"t{number}", 1, limit=1, hidden=True)
    assert len(places._indexes) == HISTORIES_MAX


# -- what comes with the page


def test_a_deep_link_is_also_json(client: TestClient) -> None:
    assert client.get(f"/t/{STORY}.json").json()["rows"][0]["title"] == "Merge scenic"
    found = client.get(f"/t/{STORY}/c/%23{7}.json").json()
    assert found["step"] == 7
    assert client.get("/t/nothing.json").status_code == 404
    assert client.get(f"/t/{STORY}.json?{'a=b&' * 100}").status_code == 200


@pytest.mark.parametrize(
    ("place", "key"),
    [
        ("/.json", "threads"),
        ("/runs.json", "runs"),
        ("/storage.json", "total_bytes"),
        (f"/t/{STORY}.json", "rows"),
        (f"/t/{STORY}.json?tab=state", "children"),
        (f"/t/{STORY}/c/%237.json", "copy"),
        (f"/t/{STORY}/c/%237.json?tab=step", "copy"),
        (f"/t/{STORY}/c/%237.json?tab=diff", "patch"),
        (f"/t/{STORY}/c/%237.json?vs=%233", "patch"),
        (f"/t/{STORY}/c/%237.json?tab=changes&vs=%233", "patch"),
        (f"/t/{STORY}/c/%237.json?tab=messages", "messages"),
        (f"/t/{STORY}/c/%237.json?tab=messages&vs=%233", "common"),
        (f"/t/{STORY}/c/%237.json?tab=state", "children"),
        ("/t/report-week-46/c/@.json?tab=run", "entries"),
    ],
)
def test_every_address_of_the_page_is_also_json(client: TestClient, place: str, key: str) -> None:
    found = client.get(place)
    assert found.status_code == 200, found.text
    assert key in found.json()
    assert client.get(place.replace(".json", "")).headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("name", [".", "..", "a\nb", " ", "%2F", "?", "#"])
def test_names_that_no_path_can_hold_stand_behind_the_question_mark(tmp_path: Path, name: str) -> None:
    with everstep.open(tmp_path / "a.db").sync as engine:
        first = engine.append(name, [{"role": "user", "content": "one"}])
        engine.append(name, [{"role": "user", "content": "two"}])
    with TestClient(app(tmp_path / "a.db"), base_url=ORIGIN, headers=PAGE_HEADERS) as client:
        assert client.get("/t/", params={"thread": name}).headers["content-type"].startswith("text/html")
        assert len(client.get("/t/.json", params={"thread": name}).json()["rows"]) == 2
        assert client.get("/t/.json", params={"thread": name, "c": first}).json()["id"] == first
        exported = client.get("/api/v1/export", params={"thread": name})
        assert re.fullmatch(r'attachment; filename="[A-Za-z0-9-]+\.everstep"', exported.headers["content-disposition"])


def test_names_with_slashes_have_links_too(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with everstep.open(path).sync as engine:
        engine.append("a/b c", [{"role": "user", "content": "hello"}])
    with TestClient(app(path), base_url=ORIGIN) as client:
        assert client.get("/t/a%2Fb%20c.json").json()["thread_id"] == "a/b c"
        assert client.get("/t/a%2Fb%20c/c/x").headers["content-type"].startswith("text/html")


def test_it_can_be_mounted(path: Path) -> None:
    engine = everstep.open(path)
    inner = app(engine)
    with TestClient(Starlette(routes=[Mount("/tools/everstep", inner)]), base_url=ORIGIN) as client:
        page = client.get("/tools/everstep/t/trip-to-oslo")
        assert '<base href="/tools/everstep/">' in page.text
        assert client.get("/tools/everstep/static/page.js").status_code == 200
        assert client.get("/tools/everstep/api/v1/info").status_code == 200
        assert client.get("/tools/everstep/api/v1/openapi.json").json()["servers"] == [
            {"url": "/tools/everstep/api/v1"}
        ]
        assert client.get("/tools/everstep/t/trip-to-oslo.json").json()["thread_id"] == STORY
    assert engine.sync.get_latest(STORY) is not None  # it stays open
    engine.sync.close()


def test_a_store_is_given_in_any_form(path: Path) -> None:
    for store in (path, str(path), f"sqlite:///{path}", MemoryCheckpointer()):
        with TestClient(app(store), base_url=ORIGIN, headers=PAGE_HEADERS) as client:
            assert client.get("/api/v1/threads").status_code == 200
    with pytest.raises(InvalidInput, match="a store is"):
        app(7)  # type: ignore[arg-type]


def test_a_file_that_cannot_be_written_is_shown_read_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # permissions mean nothing to root
    with TestClient(app(path), base_url=ORIGIN) as client:
        assert client.get("/api/v1/info").json()["read_only"] is True


# -- live updates


def test_events_tell_of_changes(path: Path) -> None:
    found: list[tuple[str, str]] = []

    async def listen(last_id: str | None, until: int) -> None:
        async with everstep.open(path, SnapshotConfig(gc_policy="keep_all")) as engine:
            stream = events.stream(engine, STORY, last_id)
            async for event in stream:
                lines = dict(line.split(": ", 1) for line in event.decode().splitlines() if ": " in line)
                if "event" in lines:
                    found.append((lines["event"], lines["id"]))
                    json.loads(lines["data"])
                if len(found) == until:
                    return
                if found and until > 1:
                    with everstep.open(path, SnapshotConfig(gc_policy="keep_all")).sync as other:
                        other.rewind(other.list_time_travel_points(STORY, 2)[1].checkpoint_id)

    asyncio.run(listen(None, 2))
    assert [kind for kind, _ in found] == ["hello", "change"]
    first, last = found[0][1], found[1][1]
    assert first != last
    found.clear()
    asyncio.run(listen(last, 1))
    assert found == [("hello", last)]  # nothing was missed
    found.clear()
    asyncio.run(listen(first, 1))
    assert found == [("change", last)]  # something was


def test_events_tell_when_a_store_cannot_be_read_and_when_it_can_be_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = everstep.open("memory://")
    away = StoreUnavailable("the server is away")
    looks = iter([None, away, away, None])
    list_threads = engine.list_threads

    async def shaky(limit: int) -> Any:
        trouble = next(looks, None)
        if trouble is not None:
            raise trouble
        return await list_threads(limit)

    monkeypatch.setattr(engine, "list_threads", shaky)
    monkeypatch.setattr(events, "SERVER_SECONDS", 0.001)
    found: list[tuple[str, Any]] = []

    async def listen() -> None:
        async for event in events.stream(engine, None, None):
            lines = dict(line.split(": ", 1) for line in event.decode().splitlines() if ": " in line)
            if "event" in lines:
                found.append((lines["event"], json.loads(lines["data"])))
            if len(found) == 3:
                return

    asyncio.run(listen())
    assert [kind for kind, _ in found] == ["hello", "trouble", "change"]  # nothing has changed, but it can be read
    assert found[1][1]["error"]["message"] == "the server is away"


def _replace(path: Path) -> None:
    """Do what somebody does who begins anew: remove the file, and let an agent make another one."""
    for end in ("", "-wal", "-shm"):
        Path(f"{path}{end}").unlink(missing_ok=True)
    with everstep.open(path).sync as engine:
        engine.append("another", [])


def test_a_file_that_was_replaced_is_opened_anew(path: Path) -> None:
    with TestClient(app(path), base_url=ORIGIN, headers=PAGE_HEADERS) as client:
        assert len(ask(client, "threads")["threads"]) > 1
        _replace(path)
        assert [thread["thread_id"] for thread in ask(client, "threads")["threads"]] == ["another"]
        assert client.post("/api/v1/pin", json={"ref": "another", "pinned": True}).status_code == 200


def test_an_engine_that_was_passed_in_is_not_opened_anew(path: Path) -> None:
    engine = everstep.open(path)
    with TestClient(app(engine), base_url=ORIGIN) as client:
        assert client.get("/api/v1/threads").status_code == 200
        _replace(path)
        assert client.get("/api/v1/threads").status_code == 503
    engine.sync.close()


def test_the_list_of_threads_is_asked_for_once_for_all_who_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = everstep.open("memory://")
    asked = 0
    list_threads = engine.list_threads

    async def counted(limit: int) -> Any:
        nonlocal asked
        asked += 1
        return await list_threads(limit)

    monkeypatch.setattr(engine, "list_threads", counted)
    monkeypatch.setattr(events, "SERVER_SECONDS", 1000.0)

    async def listen() -> None:
        newest = events.NewestThreads(engine)
        listeners = [events.Watcher(engine, "t", newest) for _ in range(5)]
        first = [await listener.look() for listener in listeners]
        assert (len(set(first)), asked) == (1, 1)
        # The thread that is open is looked at each time.
        await engine.append("t", [])
        assert await listeners[0].look() != first[0]
        assert asked == 1
        assert await newest.look(0) == [("t", (await engine.resolve("t")).checkpoint_id)]
        assert asked == 2

    asyncio.run(listen())


def test_a_question_is_answered_once(client: TestClient) -> None:
    def post(**body: Any) -> tuple[int, Any]:
        answer = client.post("/api/v1/answer", json={"thread": "trip-to-bergen", **body}, headers=PAGE_HEADERS)
        return answer.status_code, answer.json()

    assert ask(client, "run", thread="trip-to-bergen")["waits"][0]["question"] == "Book it for 412?"
    assert post()[0] == 400
    assert post(outcome="happened")[0] == 400
    assert post(value="yes", key="another")[1]["error"]["code"] == "not_waiting"
    status, answered = post(value="yes", key="ask")
    assert (status, answered["status"]) == (200, "ready")
    assert post(value="yes")[0] == 409
