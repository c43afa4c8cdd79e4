"""Who may talk to the page: the attacks that a local server must expect from web pages and networks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

import everstep
from everstep import InvalidInput
from everstep.web import app, serve
from everstep.web.guard import HEADERS, is_loopback, parse_host
from tests.web.conftest import ORIGIN, PAGE_HEADERS

UNDO = "/api/v1/undo"
INFO = "/api/v1/info"
TOKEN = "correct-horse"


@pytest.fixture
def stranger(path: Path) -> Iterator[TestClient]:
    """Somebody who sends no more than he is told to."""
    with TestClient(app(path), base_url=ORIGIN) as found:
        yield found


@pytest.fixture
def locked(path: Path) -> Iterator[TestClient]:
    with TestClient(app(path, token=TOKEN), base_url=ORIGIN, follow_redirects=False) as found:
        yield found


@pytest.mark.parametrize("host", ["127.0.0.1:8787", "127.0.0.1", "localhost", "LOCALHOST:9", "[::1]:8787"])
def test_names_of_this_machine_are_answered(stranger: TestClient, host: str) -> None:
    assert stranger.get(INFO, headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.com",
        "evil.com:8787",
        "127.0.0.1.evil.com",
        "localhost.evil.com",
        "evil.com@127.0.0.1",
        "127.0.0.1:8787@evil.com",
        "127.0.0.1:80:80",
        "127.0.0.1/evil.com",
        "[::1].evil.com",
        "[2001:db8::1]",
        "192.168.0.1",
        "localhost.",
        "",
        " ",
        "127.0.0.1:port",
    ],
)
@pytest.mark.parametrize("place", [INFO, "/", "/static/page.js", "/api/v1/events", "/nowhere"])
def test_other_names_are_not(stranger: TestClient, host: str, place: str) -> None:
    assert stranger.get(place, headers={"Host": host}).status_code == 421


def test_a_request_has_one_host(path: Path) -> None:
    for headers in ([], [(b"host", b"127.0.0.1"), (b"host", b"evil.com")]):
        assert _ask(path, headers) == 400


def _ask(path: Path, headers: list[tuple[bytes, bytes]]) -> int:
    """Send what no well-behaved client can be brought to send."""
    scope = {"type": "http", "method": "GET", "path": INFO, "query_string": b"", "headers": headers, "root_path": ""}
    sent: list[Any] = []

    async def run() -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        async with everstep.open(path) as engine:
            await app(engine)(scope, receive, send)

    asyncio.run(run())
    return int(sent[0]["status"])


def test_names_can_be_added(path: Path) -> None:
    with TestClient(app(path, allowed_hosts=["agents.example"]), base_url="http://agents.example") as found:
        assert found.get(INFO).status_code == 200
        assert found.get(INFO, headers={"Host": "127.0.0.1"}).status_code == 421
    with pytest.raises(InvalidInput, match="list of names"):
        app(path, allowed_hosts="agents.example")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": ORIGIN}, 200),
        ({}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://evil.com"}, 403),
        ({"Origin": "http://127.0.0.1:9999"}, 403),
        ({"Origin": "http://127.0.0.1:8787.evil.com"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": ORIGIN}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://evil.com"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403),
    ],
)
def test_only_the_page_itself_changes_anything(stranger: TestClient, headers: dict[str, str], status: int) -> None:
    before = _log(stranger)
    answer = stranger.post(UNDO, json={"thread": "trip-to-oslo"}, headers=headers)
    assert answer.status_code == status
    assert (_log(stranger) != before) == (status == 200)


def _log(client: TestClient) -> Any:
    return client.get("/api/v1/operations", params={"thread": "trip-to-oslo"}).json()


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_no_form_changes_anything(stranger: TestClient, kind: str) -> None:
    headers = {**PAGE_HEADERS, "Content-Type": kind}
    answer = stranger.post(UNDO, content='{"thread": "trip-to-oslo"}', headers=headers)
    assert answer.status_code == 415


@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.com"}])
@pytest.mark.parametrize("place", [INFO, "/api/v1/events", "/static/page.js"])
def test_other_sites_read_nothing(stranger: TestClient, headers: dict[str, str], place: str) -> None:
    assert stranger.get(place, headers=headers).status_code == 403


def test_a_link_from_another_site_opens_the_page(stranger: TestClient) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert stranger.get("/t/trip-to-oslo", headers=headers).status_code == 200


@pytest.mark.parametrize("place", ["/", INFO, "/static/page.js", "/static/nothing", "/api/v1/nothing", "/nothing"])
def test_every_answer_has_the_headers(stranger: TestClient, place: str) -> None:
    found = stranger.get(place).headers
    assert {name: found[name] for name in HEADERS} == HEADERS
    assert "default-src 'self'" in found["content-security-policy"]
    assert "unsafe" not in found["content-security-policy"]
    assert "frame-ancestors 'none'" in found["content-security-policy"]
    assert not [name for name in found if name.startswith("access-control")]


def test_no_preflight_is_granted(stranger: TestClient) -> None:
    headers = {"Origin": "http://evil.com", "Access-Control-Request-Method": "POST"}
    answer = stranger.options(UNDO, headers=headers)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


# -- the token


@pytest.mark.parametrize("place", ["/", "/t/trip-to-oslo", INFO, "/api/v1/events", "/static/page.js", "/nothing"])
def test_without_the_token_nothing_is_shown(locked: TestClient, place: str) -> None:
    assert locked.get(place).status_code == 401
    assert locked.get(place, headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert locked.get(place, headers={"Cookie": "everstep-8787=wrong"}).status_code == 401


def test_a_link_with_the_token_is_turned_into_a_cookie(locked: TestClient) -> None:
    answer = locked.get(f"/t/trip-to-oslo?tab=state&token={TOKEN}")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/t/trip-to-oslo?tab=state"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"everstep-8787={TOKEN};")
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert locked.get(INFO).status_code == 200


def test_over_tls_the_cookie_is_for_tls_only(path: Path) -> None:
    with TestClient(app(path, token=TOKEN), base_url="https://127.0.0.1:8787", follow_redirects=False) as found:
        assert "; Secure" in found.get(f"/?token={TOKEN}").headers["set-cookie"]


def test_a_token_is_compared_in_the_same_time_however_much_of_it_is_right(
    locked: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[bytes] = []

    def compare(given: bytes, wanted: bytes) -> bool:
        assert wanted == TOKEN.encode()
        compared.append(given)
        return False

    # If anything but this decided, the right token would open the page.
    monkeypatch.setattr("hmac.compare_digest", compare)
    for headers in ({"Authorization": f"Bearer {TOKEN}"}, {"Cookie": f"everstep-8787={TOKEN}"}):
        assert locked.get(INFO, headers=headers).status_code == 401
    assert locked.get(f"/?token={TOKEN}").status_code == 401
    assert compared.count(TOKEN.encode()) == 3


def test_a_mounted_page_is_guarded_like_any_other(path: Path) -> None:
    inside = Starlette(routes=[Mount("/tools/everstep", app(path, token=TOKEN))])
    with TestClient(inside, base_url=ORIGIN, follow_redirects=False) as found:
        for place in (INFO, "/", "/static/page.js", "/api/v1/events", "/t/x.json"):
            where = f"/tools/everstep{place}"
            shown = {"Authorization": f"Bearer {TOKEN}"}
            assert found.get(where).status_code == 401
            assert found.get(where, headers={**shown, "Host": "evil.com"}).status_code == 421
            assert found.get(where, headers={**shown, "Sec-Fetch-Site": "cross-site"}).status_code == 403
        answer = found.post(f"/tools/everstep{UNDO}", json={"thread": "x"}, headers=shown)
        assert answer.status_code == 403
        assert found.get(f"/tools/everstep/?token={TOKEN}").headers["location"] == "/tools/everstep/"


def test_who_has_no_token_sees_a_form_and_its_looks(locked: TestClient) -> None:
    form = locked.get("/t/trip-to-oslo")
    assert form.status_code == 401
    assert '<input name="token" type="password"' in form.text
    assert "not the token" not in form.text
    assert "not the token" in locked.get("/?token=wrong").text
    assert '<link rel="stylesheet" href="/static/page.css">' in form.text
    assert locked.get("/static/page.css").headers["content-type"].startswith("text/css")
    for other in ("/static/page.css.js", "/static/PAGE.css", "/static//page.css", "/static/page.css/"):
        assert locked.get(other).status_code == 401


def test_a_program_shows_the_token_in_a_header(locked: TestClient) -> None:
    assert locked.get(INFO, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert locked.get(f"{INFO}?token={TOKEN}").status_code == 401  # addresses are logged


def test_a_token_does_not_replace_the_origin(locked: TestClient) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Origin": "http://evil.com"}
    assert locked.post(UNDO, json={"thread": "trip-to-oslo"}, headers=headers).status_code == 403


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "agents.example", ""])
def test_other_addresses_need_a_token(host: str) -> None:
    with pytest.raises(InvalidInput, match="token"):
        serve("memory://", host=host, open_browser=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_addresses_of_this_machine_do_not(host: str) -> None:
    assert is_loopback(host)


def test_on_other_addresses_a_token_cannot_be_guessed(path: Path) -> None:
    with pytest.raises(InvalidInput, match="at least 16 characters"):
        serve(path, host="0.0.0.0", token="a" * 15, open_browser=False)  # it is refused


@pytest.mark.parametrize("token", ["", "\n", "schlüssel"])
def test_a_token_is_plain_text(path: Path, token: str) -> None:
    with pytest.raises(InvalidInput):
        app(path, token=token)


def test_a_server_for_all_addresses_answers_to_numbers_only(path: Path) -> None:
    with TestClient(app(path, token=TOKEN, any_address=True), base_url=ORIGIN) as found:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert found.get(INFO, headers={**headers, "Host": "192.168.1.4:8787"}).status_code == 200
        assert found.get(INFO, headers={**headers, "Host": "evil.com"}).status_code == 421


# -- what is read


def test_read_only_changes_nothing(path: Path) -> None:
    with TestClient(app(path, read_only=True), base_url=ORIGIN, headers=PAGE_HEADERS) as found:
        assert found.get(INFO).json()["read_only"] is True
        for name in ("undo", "redo", "rewind", "fork", "merge", "pin", "collect"):
            answer = found.post(f"/api/v1/{name}", json={"thread": "trip-to-oslo"})
            if name != "collect":  # which only tells what would go, unless it is asked for more
                assert (answer.status_code, answer.json()["error"]["code"]) == (403, "read_only")


def test_read_only_tells_what_retention_would_remove(path: Path) -> None:
    asked = {"thread": "trip-to-oslo", "policy": "keep_last_n", "param": 2}
    with TestClient(app(path, read_only=True), base_url=ORIGIN, headers=PAGE_HEADERS) as found:
        before = found.get("/api/v1/history", params={"thread": "trip-to-oslo"}).json()
        for body in (asked, {**asked, "dry_run": True}):
            answer = found.post("/api/v1/collect", json=body)
            assert answer.status_code == 200
            assert answer.json()["checkpoints"] > 0
            assert answer.json()["dry_run"] is True
        refused = found.post("/api/v1/collect", json={**asked, "dry_run": False})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "read_only")
        assert found.get("/api/v1/history", params={"thread": "trip-to-oslo"}).json() == before


def test_a_large_body_is_refused_before_it_is_read(client: TestClient) -> None:
    headers = {"Content-Length": str(1 << 30), "Content-Type": "application/json"}
    answer = client.post(UNDO, content=b"0123456789", headers=headers)
    assert answer.status_code == 413


def test_a_large_body_is_refused_while_it_comes(client: TestClient) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(20):
            yield b" " * (1 << 20)

    answer = client.post(UNDO, content=chunks(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"thread": NaN}',
        b'{"thread": 1}',
        b"\xff\xfe",
        b'{"thread": "' + b"a" * 5000 + b'"}',
        b"[" * 100_000 + b"]" * 100_000,
        b'{"thread": ' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"thread": ' + b"1" * 5000 + b"}",
        b'{"thread": "t", "__proto__": 1}',
    ],
)
def test_bodies_that_make_no_sense_are_refused(client: TestClient, body: bytes) -> None:
    answer = client.post(UNDO, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_input"


def test_very_many_parameters_are_refused(client: TestClient) -> None:
    assert client.get("/api/v1/threads?" + "&".join(["a="] * 20_000)).status_code == 400


@pytest.mark.parametrize(
    "place",
    [
        "/static/../guard.py",
        "/static/..%2fguard.py",
        "/static/%2e%2e/guard.py",
        "/static/..%5cguard.py",
        "/static//etc/passwd",
        "/static/%00",
        "/static/vendor/..%2f..%2fguard.py",
    ],
)
def test_files_outside_are_not_served(client: TestClient, place: str) -> None:
    assert client.get(place).status_code in (400, 404)


@pytest.mark.parametrize("text", ["a b", "//x", "x:y:z", "[::1", "a@b", "a/b", "a?b", "a#b", ""])
def test_what_is_no_host(text: str) -> None:
    assert parse_host(text) is None
