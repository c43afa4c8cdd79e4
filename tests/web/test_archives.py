"""Threads as files over HTTP: exports that another store takes, imports that may come from anybody."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import everstep
from everstep.web import app, archives
from tests.web.conftest import ORIGIN, PAGE_HEADERS

STORY = "trip-to-oslo"
IMPORT = "/api/v1/import"
FILE_HEADERS = {**PAGE_HEADERS, "Content-Type": "application/octet-stream"}


@pytest.fixture
def exported(client: TestClient) -> bytes:
    return client.get("/api/v1/export", params={"thread": STORY}).content


@pytest.fixture
def other(tmp_path: Path) -> Iterator[TestClient]:
    """An empty store."""
    with TestClient(app(tmp_path / "other.db"), base_url=ORIGIN, headers=FILE_HEADERS) as found:
        yield found


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where uploaded files are kept. In the end none is left, whatever has happened."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def names(client: TestClient) -> list[str]:
    return [thread["thread_id"] for thread in client.get("/api/v1/threads").json()["threads"]]


def test_a_thread_is_exported_as_a_file(client: TestClient, tmp_path: Path) -> None:
    answer = client.get("/api/v1/export", params={"thread": STORY})
    assert answer.headers["content-disposition"] == f'attachment; filename="{STORY}.everstep"'
    file = tmp_path / "story.everstep"
    file.write_bytes(answer.content)
    everstep.import_threads(file, tmp_path / "other.db")
    with everstep.open(tmp_path / "other.db").sync as engine:
        assert engine.list_time_travel_points(STORY, 1)[0].step == 9


def test_a_file_is_imported(exported: bytes, other: TestClient) -> None:
    told = other.post(IMPORT, content=exported).json()
    assert (told["threads"], told["checkpoints"], told["skipped"], told["verified"]) == (4, 42, 0, 42)
    assert sorted(told["thread_ids"]) == sorted(names(other))
    assert other.get("/api/v1/export", params={"thread": STORY}).status_code == 200
    again = other.post(IMPORT, content=exported).json()
    assert (again["threads"], again["checkpoints"], again["skipped"]) == (4, 0, 42)


@pytest.mark.parametrize(
    ("damage", "status", "code"),
    [
        (lambda _: b"", 400, "invalid_input"),
        (lambda data: b"PK\x03\x04" + data, 400, "invalid_input"),
        (lambda data: data[: len(data) // 2], 422, "file_damaged"),
        (lambda data: data[:500] + bytes([data[500] ^ 1]) + data[501:], 422, "file_damaged"),
        (lambda data: data + b"more", 422, "file_damaged"),
    ],
    ids=["empty", "another file", "cut off", "one bit", "too long"],
)
def test_what_is_no_whole_file_is_told(
    exported: bytes, other: TestClient, damage: Callable[[bytes], bytes], status: int, code: str
) -> None:
    answer = other.post(IMPORT, content=damage(exported))
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.json()["error"]["message"]
    assert other.post(IMPORT, content=exported).status_code == 200


def test_a_thread_that_is_another_one_is_left_as_it_is(exported: bytes, tmp_path: Path) -> None:
    with everstep.open(tmp_path / "taken.db").sync as engine:
        engine.append(STORY, [{"role": "user", "content": "mine"}])
    with TestClient(app(tmp_path / "taken.db"), base_url=ORIGIN, headers=FILE_HEADERS) as client:
        answer = client.post(IMPORT, content=exported)
        assert answer.status_code == 400
        assert STORY in answer.json()["error"]["message"]
        assert names(client) == [STORY]


def test_a_file_that_is_too_large_is_not_taken(
    exported: bytes, other: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "IMPORT_BYTES_MAX", 100)
    answer = other.post(IMPORT, content=exported)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "file_too_large")
    # One that does not say how large it is.
    answer = other.post(IMPORT, content=iter([exported[:90], exported[90:]]))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "file_too_large")
    assert names(other) == []


def test_nothing_is_imported_where_one_only_looks(exported: bytes, tmp_path: Path) -> None:
    with TestClient(app(tmp_path / "shown.db", read_only=True), base_url=ORIGIN, headers=FILE_HEADERS) as client:
        answer = client.post(IMPORT, content=exported)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "read_only")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://evil.com"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Content-Type": "application/json"}, 415),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({"Content-Type": ""}, 415),
        ({"Host": "evil.com"}, 421),
    ],
)
def test_no_other_site_and_no_form_imports(
    exported: bytes, other: TestClient, headers: dict[str, str], status: int
) -> None:
    assert other.post(IMPORT, content=exported, headers=headers).status_code == status
    assert names(other) == []


def test_only_an_import_takes_a_file(other: TestClient) -> None:
    assert other.post("/api/v1/undo", content=b'{"thread": "x"}').status_code == 415
