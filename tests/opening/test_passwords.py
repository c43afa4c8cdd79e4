"""No message, log line or text of an object shows a password, however the address that holds it is mistyped."""

from __future__ import annotations

import logging
import pathlib
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

import everstep
from everstep import EverstepError, InvalidInput
from everstep.langgraph import CheckpointerConfig, HarnessCheckpointer, import_langgraph
from tests.tools import servers

PASSWORD = "s3cret"
REST = "m0re"
"""What stands behind a character that ends a password which should have been written as %XX."""

MISTYPED = [
    "{scheme}:/u:{pw}@db", "{scheme}:u:{pw}@db", "{scheme}//u:{pw}@db/x", "{scheme}/u:{pw}@db", "{scheme}:///u:{pw}@db",
    "{scheme};//u:{pw}@db", "{scheme}: //u:{pw}@db", "{scheme} ://u:{pw}@db", " {scheme}:/u:{pw}@db",
    "u:{pw}@{scheme}://db", "u:{pw}@db/x", "//u:{pw}@db/x", "u:{pw}@db", "{scheme}+x://u:{pw}@db", "x{scheme}://u:{pw}@db",
    "http://u:{pw}@db", "jdbc:{scheme}://u:{pw}@db", "sqlite://u:{pw}@db", "sqlite:///u:{pw}@db",
    "sqlite:/u:{pw}@db", "memory://u:{pw}@db", "memory:u:{pw}@db", "{scheme}:/db?password={pw}", "?password={pw}",
    "{scheme}:db?sslpassword={pw}", "host=x password={pw}", "host=x password='{pw}", "host=x;passwd={pw}",
    "password={pw}", "password = {pw} {scheme}:", "sslpassword={pw} host=x", "{scheme}://u:{pw}@m0re@db/x y",
    "{scheme}://u:{pw}/m0re@db",
    "{scheme}://u:{pw}#m0re@db", "{scheme}://u:{pw}?m0re@db", "{scheme}://u:{pw}%zz@[db", "{scheme}://u:{pw}@db:port/x",
    "{scheme}://:{pw}/m0re@db", "{scheme}://:{pw}@[::1/0", "{scheme}://u:{pw}@db:99999999/0", "{scheme}://db?{pw}=1@x",
    "{scheme}://db/0?{pw}", "{scheme}://db/0?m0re={pw}", "{scheme}://db/{pw}/m0re@x",
]  # fmt: skip
SCHEMES = ["postgresql", "postgres", "redis", "rediss", "redis+cluster", "valkey"]

OPENERS: dict[str, Callable[[str], Any]] = {
    "open": everstep.open,
    "saver": HarnessCheckpointer.from_url,
    "source": lambda url: import_langgraph(url, HarnessCheckpointer()),
    "backend": everstep.create_checkpointer,
    "dsn": lambda url: everstep.create_checkpointer("postgres", dsn=url),
    "url": lambda url: everstep.create_checkpointer("redis", url=url),
}


def shown_by(error: BaseException) -> list[str]:
    """Return all that an error and those behind it show."""
    texts = ["".join(traceback.format_exception(error))]
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        found = pending.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        texts += [str(found), repr(found), repr(found.args)]
        pending += [found.__cause__, found.__context__]
    return texts


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("opener", OPENERS)
def test_a_mistyped_address_is_an_error_that_does_not_quote_it(
    opener: str, scheme: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.DEBUG)
    for form in MISTYPED:
        url = form.format(scheme=scheme, pw=PASSWORD)
        try:
            made = OPENERS[opener](url)
        except EverstepError as error:
            texts = shown_by(error)
        else:  # it can be read after all, by the rules of that driver: nothing is connected yet
            texts = [repr(made), str(made), repr(vars(made))]
        for text in texts:
            assert PASSWORD not in text, url
            assert REST not in text, url
    assert PASSWORD not in caplog.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url", ["{scheme}:/u:s3cret@db", "{scheme}:u:s3cret@db", "host=x password=s3cret", "u:s3cret@db"]
)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("opener", ["saver", "source"])
def test_where_a_path_is_taken_a_mistyped_server_is_none(opener: str, scheme: str, url: str) -> None:
    """A file of that name would be made, with the password in its name."""
    with pytest.raises(InvalidInput, match=r"mistyped.*\./"):
        OPENERS[opener](url.format(scheme=scheme))


@pytest.mark.parametrize(
    "name", ["agent.db", "a b/c.db", "C:notes.db", "12:30.db", "me@home.db", "./u:pw@db.db", "x=y.db", "password.db"]
)
def test_ordinary_paths_are_taken(name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b").mkdir()
    with HarnessCheckpointer.from_url(name) as saver:
        saver.delete_thread("t")
    assert (tmp_path / name).is_file()


def test_a_server_that_is_not_there_is_said_without_the_password() -> None:
    port = servers.free_port()
    for url in (
        f"postgresql://u:s3cret@127.0.0.1:{port}/x", f"postgresql://u@127.0.0.1:{port}/x?password=s3cret",
        f"redis://:s3cret@127.0.0.1:{port}/0", f"redis://u:s3cret@127.0.0.1:{port}/0",
    ):  # fmt: skip
        engine = everstep.open(url, timeout_seconds=1)
        with pytest.raises(EverstepError) as caught:
            engine.sync.get_latest("t")
        for text in (*shown_by(caught.value), repr(engine), repr(engine.checkpointer)):
            assert PASSWORD not in text


def test_a_configuration_does_not_show_its_addresses() -> None:
    config = CheckpointerConfig(
        redis_url="redis://:s3cret@db", postgres_dsn="password=s3cret", options={"password": "s3cret"}
    )
    assert PASSWORD not in repr(config) + str(config)
    assert config.redis_url == "redis://:s3cret@db"
    for wrong in ({"postgres_url": "postgresql://u:s3cret@db"}, {"redis_url": b"\xffs3cret"}, {"options": "s3cret"}):
        with pytest.raises(ValidationError) as caught:
            CheckpointerConfig(**wrong)
        assert PASSWORD not in str(caught.value)
