"""The page as a process of its own: how it starts, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from everstep import InvalidInput, StoreUnavailable
from everstep.opening.addresses import without_password
from everstep.views import threads, transcript
from everstep.web import serve
from everstep.web.serving import _langgraph_service

PROGRAM = """
import sys
from everstep.web import serve
serve(sys.argv[1], port=0, open_browser=False, token=sys.argv[2] or None, demo=sys.argv[1] == "demo")
"""


@contextmanager
def started(path: Path | str, token: str = "") -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    command = [sys.executable, "-c", PROGRAM, str(path), token]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.fullmatch(r"Everstep is at http://127\.0\.0\.1:(\d+)/(.*)\n", line)
        assert found is not None, line
        try:
            yield process, int(found[1]), found[2]
        finally:
            process.kill()


def test_ctrl_c_ends_it_quietly_while_somebody_looks(path: Path) -> None:
    with started(path) as (process, port, _), closing(connected(port)) as connection:
        connection.request("GET", "/api/v1/events")
        with connection.getresponse() as answer:
            assert answer.readline() == b"retry: 1000\n"
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            assert process.stderr.read() == ""
            assert process.wait(30) == 0


def connected(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=30)


def test_a_token_is_made_and_is_in_the_link(path: Path) -> None:
    with started(path, "auto") as (_, port, rest):
        assert re.fullmatch(r"\?token=[\w-]{32}", rest)
        with closing(connected(port)) as connection:
            connection.request("GET", "/" + rest)
            with connection.getresponse() as answer:
                answer.read()
                assert answer.status == 303
                cookie = answer.headers["set-cookie"].partition(";")[0]
            connection.request("GET", "/api/v1/info", headers={"Cookie": cookie})
            with connection.getresponse() as answer:
                assert answer.status == 200


def test_the_demo_opens_with_a_history() -> None:
    with started("demo") as (_, port, rest):
        assert rest == "t/trip-to-oslo"
        with closing(connected(port)) as connection:
            connection.request("GET", f"/{rest}.json")
            with connection.getresponse() as answer:
                assert answer.status == 200


def sent_raw(port: int, request: bytes) -> bytes:
    """Send bytes as they are, and return all that comes back."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        found = b""
        # A server that has read enough may close before all is sent.
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                found += part
    return found


ASKED = b"GET /api/v1/info HTTP/1.1\r\n"
HOST = b"Host: 127.0.0.1\r\n"


def test_what_no_browser_would_send_is_refused(path: Path) -> None:
    """Among them requests that a proxy and the server could read differently."""
    smuggled = b"GET /api/v1/threads HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    refused = {
        "no host": ASKED + b"\r\n",
        "two hosts": ASKED + HOST + b"Host: evil.com\r\n\r\n",
        "two hosts in a line": ASKED + b"Host: 127.0.0.1, evil.com\r\n\r\n",
        "an absolute address": b"GET http://evil.com/api/v1/info HTTP/1.1\r\nHost: evil.com\r\n\r\n",
        "no version": b"GET /api/v1/info\r\n\r\n",
        "two lengths": ASKED + HOST + b"Content-Length: 3\r\nContent-Length: 9\r\n\r\nabc" + smuggled,
        "a length that is none": ASKED + HOST + b"Content-Length: +3\r\n\r\nabc",
        "an encoding that is none": ASKED + HOST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "a space before the colon": ASKED + b"Host : 127.0.0.1\r\n\r\n",
        "a folded line": ASKED + b"Host: 127.0.0.1\r\n evil.com\r\n\r\n",
        "a bare line feed in a header": ASKED + HOST + b"X: a\x00b\r\n\r\n",
        "long headers": ASKED + HOST + b"X: " + b"a" * 200_000 + b"\r\n\r\n",
        "very many headers": ASKED + HOST + b"".join(b"X-%d: a\r\n" % n for n in range(20_000)) + b"\r\n",
    }
    with started(path) as (_, port, _):
        for what, request in refused.items():
            answer = sent_raw(port, request)
            assert answer[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 421", b"HTTP/1.1 431", b""), (what, answer[:200])
            assert answer.count(b"HTTP/1.1 ") <= 1, (what, answer)
        assert sent_raw(port, ASKED + HOST + b"\r\n").startswith(b"HTTP/1.1 200")


def test_a_length_beside_chunks_smuggles_nothing(path: Path) -> None:
    """The connection ends before what follows the last chunk is taken for a request of its own."""
    body = b"0\r\n\r\n"
    hidden = b"POST /api/v1/undo HTTP/1.1\r\n" + HOST + b"Origin: http://127.0.0.1\r\n"
    hidden += b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    both = HOST + b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n" % len(body + hidden)
    with started(path) as (_, port, _):
        answer = sent_raw(port, ASKED + both + body + hidden)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1 ") == 1, answer


def test_those_who_never_finish_a_request_keep_nobody_out(path: Path) -> None:
    with started(path) as (_, port, _):
        slow = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(200)]
        try:
            for connection in slow:
                connection.sendall(ASKED + b"X-Slow: ")
            assert sent_raw(port, ASKED + HOST + b"\r\n").startswith(b"HTTP/1.1 200")
        finally:
            for connection in slow:
                connection.close()


def test_there_are_no_web_sockets(path: Path) -> None:
    upgrade = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n"
    with started(path) as (_, port, _):
        for place in (b"/", b"/api/v1/events"):
            answer = sent_raw(port, b"GET " + place + b" HTTP/1.1\r\nHost: evil.com\r\n" + upgrade + b"\r\n")
            assert answer.startswith(b"HTTP/1.1 421")


def test_the_store_is_opened_with_its_options(path: Path) -> None:
    with pytest.raises(InvalidInput, match="synchronous is 'full', 'normal' or 'off', not 'sometimes'"):
        serve(path, port=0, open_browser=False, options={"synchronous": "sometimes"})


def test_a_port_that_is_taken(path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(StoreUnavailable, match="is taken"):
            serve(path, port=other.getsockname()[1], open_browser=False)


def test_what_langgraphs_own_saver_keeps_is_shown_and_not_changed(tmp_path: Path) -> None:
    source = tmp_path / "langgraph.db"
    with SqliteSaver.from_conn_string(str(source)) as saver:
        graph = StateGraph(MessagesState).add_node("answer", lambda _: {"messages": [("ai", "With pleasure.")]})
        graph.add_edge(START, "answer")
        app: Any = graph.compile(checkpointer=saver)
        app.invoke({"messages": [("user", "Oslo?")]}, {"configurable": {"thread_id": "trip"}})
    before = source.read_bytes()

    service = _langgraph_service(f"sqlite:///{source}")

    assert service.read_only
    assert service.address == f"LangGraph, sqlite:///{source}"
    found = asyncio.run(threads.page(service.engine))["threads"]
    assert [(thread["thread_id"], thread["kind"]) for thread in found] == [("trip", "langgraph")]
    told = asyncio.run(transcript.page(service.engine, "trip"))["messages"]
    assert [message["text"] for message in told] == ["Oslo?", "With pleasure."]
    assert source.read_bytes() == before


def test_no_password_of_langgraphs_store_is_shown() -> None:
    assert without_password("postgresql://ada:secret@db.example/agents") == "postgresql://db.example/agents"
