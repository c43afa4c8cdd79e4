"""The files of the page: what is in them, where they may reach, how much they weigh."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from everstep.web.application import STATIC

FILES = sorted(file for file in STATIC.rglob("*") if file.is_file())
VENDOR = STATIC / "vendor"
NAMESPACES = ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml", "http://www.w3.org/1998/Math/MathML")
"""Names of XML that look like addresses; nobody ever asks there."""


def test_what_comes_from_others_is_what_it_says() -> None:
    about = json.loads((VENDOR / "VENDOR.json").read_text())
    data = (VENDOR / about["file"]).read_bytes()
    assert hashlib.sha256(data).hexdigest() == about["sha256"]
    licences = (VENDOR / "LICENCES.txt").read_text()
    for package in about["packages"]:
        assert re.fullmatch(r"\d+\.\d+\.\d+", package["version"])
        assert package["licence"] in ("MIT", "Apache-2.0")
        assert f"{package['name']} {package['version']} ({package['licence']})".encode() in data
        assert package["name"] in licences


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_file_names_another_host(file: Path) -> None:
    text = file.read_text()
    for name in NAMESPACES:
        text = text.replace(name, "")
    assert re.findall(r"https?:\\?/\\?/[\w.]", text) == []
    assert re.findall(r"""["'(]//[\w.]""", text) == []


@pytest.mark.parametrize("file", [file for file in FILES if file.suffix == ".js"], ids=lambda file: file.name)
def test_no_script_runs_text(file: Path) -> None:
    """Nothing that a model wrote can become markup or code; the only markup is that of the icons."""
    text = file.read_text()
    assert re.findall(r"\beval\(|new Function|document\.write|insertAdjacentHTML|outerHTML", text) == []
    if file.parent == STATIC:
        assert "innerHTML" not in text.replace("dangerouslySetInnerHTML=${{ __html: PATHS[", "")


def test_the_page_has_no_inline_script_or_style() -> None:
    text = (STATIC / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)", text) == []
    assert "<style" not in text
    assert re.findall(r"\s(style|on\w+)=", text) == []


def test_every_module_is_loaded_ahead() -> None:
    """Else one waits for another: each import would be seen only when the file before has come."""
    text = (STATIC / "index.html").read_text()
    for file in STATIC.glob("*.js"):
        assert f'"static/{file.name}"' in text, file.name


def test_the_page_is_small() -> None:
    """All that a browser may ask for, before it is compressed."""
    assert sum(file.stat().st_size for file in FILES if file.name != "LICENCES.txt") < 295_000


def test_files_are_served_with_their_types(client: TestClient) -> None:
    kinds = {".js": "javascript", ".css": "text/css", ".svg": "image/svg+xml", ".json": "application/json"}
    for file in FILES:
        if file.suffix in kinds:
            answer = client.get(f"/static/{file.relative_to(STATIC).as_posix()}")
            assert answer.status_code == 200
            assert kinds[file.suffix] in answer.headers["content-type"]
            assert answer.headers["cache-control"] == "no-cache"
