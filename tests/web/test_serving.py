"""The page as a process of its own: how it starts, and how it ends."""

from __future__ import annotations

import asyncio
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
serve(sys.argv[1], port=0, open_browser=False, token=sys.argv[2] or None)
"""


@contextmanager
def started(path: Path, token: str = "") -> Iterator[tuple[subprocess.Popen[str], int, str]]:
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
