"""The documents are true: their code runs, their files exist, and they are as short as they promise."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/**/*.md"))]


def blocks() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        codes = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        found += [(f"{page.name} {n}", code) for n, code in enumerate(codes, 1)]
    return found


def files() -> dict[str, str]:
    """The blocks that begin with a file's name: later ones import them."""
    return {found[1]: code for _, code in blocks() if (found := re.match(r"# (\w+\.py)\n", code))}


def run(code: str, folder: Path) -> str:
    for name, text in files().items():
        (folder / name).write_text(text)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def promised(code: str) -> list[str]:
    """Return the lines that a block says it prints: in a comment beside `print`, or in those right below it."""
    found, after_print = [], False
    for line in code.splitlines():
        comment = re.search(r"(?:^|  )# (.*)$", line)
        prints = "print(" in line
        if comment is not None and (prints or (after_print and line.strip().startswith("# "))):
            found.append(comment[1])
            after_print = True
        else:
            after_print = prints
    return found


TELLING = ("tutorial.md", "durable.md")
"""Pages that say what each of their blocks prints."""
TUTORIAL = [(name, code) for name, code in blocks() if name.startswith(TELLING)]
OTHERS = [(name, code) for name, code in blocks() if not name.startswith(TELLING)]


@pytest.mark.parametrize("code", [code for _, code in OTHERS], ids=[name for name, _ in OTHERS])
def test_the_code_in_the_documents_runs(code: str, tmp_path: Path) -> None:
    run(code, tmp_path)


@pytest.mark.parametrize("code", [code for _, code in TUTORIAL], ids=[name for name, _ in TUTORIAL])
def test_the_tutorial_prints_what_it_says(code: str, tmp_path: Path) -> None:
    printed = run(code, tmp_path).splitlines()

    patterns = [re.escape(line).replace(r"\.\.\.", ".*") for line in promised(code)]
    assert len(printed) == len(patterns), printed
    for line, pattern in zip(printed, patterns, strict=True):
        assert re.fullmatch(pattern, line), (line, pattern)


def test_the_readme_prints_what_it_says(tmp_path: Path) -> None:
    code = next(code for name, code in blocks() if name == "README.md 1")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["2 tool:weather", "2"]


def test_there_are_blocks_to_run() -> None:
    assert len(blocks()) >= 7


def test_the_readme_is_short_and_begins_with_code() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 700
    assert len(text.split("```python")[0].split()) <= 100


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https://)([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_readme_reads_on_a_package_index() -> None:
    """There, nothing stands beside it: every link and picture is absolute, and leads to a file of the project."""
    text = (ROOT / "README.md").read_text()
    home = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Homepage"]
    pictures = home.replace("https://github.com", "https://raw.githubusercontent.com") + "/main/"
    for target in re.findall(r'(?:src|srcset)="([^"]+)"', text):
        assert (ROOT / target.removeprefix(pictures)).is_file(), target
    for target in re.findall(r"\]\(([^)]+)\)", text):
        place = re.sub(rf"^{re.escape(home)}/(blob|tree)/main/", "", target)
        assert place != target, target
        assert (ROOT / place).exists(), target


def test_every_module_is_in_the_architecture_page() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    for module in (ROOT / "src/everstep").rglob("*.py"):
        name = str(module.relative_to(ROOT / "src/everstep"))
        assert name.endswith("__init__.py") or f"`{name}`" in text, name


def test_the_demo_tells_its_story() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/demo.py")], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "kill -9" in done.stdout
    assert "resumed: 6 messages, next is 'tool:hotels'" in done.stdout
    assert "rewind  to step 7: 23 later ones are hidden" in done.stdout
    assert "both changed state.hotel: 'Hostel' here, 'Lighthouse' there" in done.stdout
    assert "undo    merge: hotel Hostel, travel bus\n" in done.stdout
    assert "redo    merge: hotel Lighthouse, travel bus, sunday islands\n" in done.stdout
    assert done.stdout.count("(HEAD ") == 3
    stored, full = (int(number.replace(",", "")) for number in re.findall(r"([\d,]+) bytes", done.stdout)[-2:])
    assert stored < full
