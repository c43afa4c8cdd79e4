"""What holds for every command: help, options in any place, which store, clean output, errors and exit codes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import click
import pytest

import everstep
import everstep.web
from everstep.cli import catalog, group, output, text
from tests.cli.conftest import Run, start_process


def test_help_names_every_command_and_is_printed_without_click() -> None:
    code = "import sys; from everstep.cli.start import main; main(['--help']); print('click' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    for name in catalog.names():
        assert f"\n  {name} " in done.stdout
    assert done.stdout.endswith("False\n")


@pytest.mark.parametrize("words", [["gc", "--help"], ["threads", "--nonsense"], ["doktor"], ["completion", "fish"]])
def test_help_and_mistakes_do_not_load_the_engine(words: list[str]) -> None:
    code = f"import sys; from everstep.cli.start import main; main({words!r}); print('everstep.engine' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.endswith("False\n")


def test_help_and_version_in_a_process() -> None:
    assert start_process("--help").out == catalog.help_text()
    assert start_process("--version").out.startswith("everstep 0.")
    assert start_process().code == 0


def test_without_click_one_line_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise ImportError('no module named click')")
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])

    done = start_process("threads", env={"PYTHONPATH": path})

    assert done.code == 1
    assert done.err.splitlines() == ["everstep: the command line is not installed; run: pip install 'everstep[cli]'"]


@pytest.mark.parametrize("name", catalog.names())
def test_every_command_has_help(name: str, run: Run) -> None:
    done = run(name, "--help")

    assert done.code == 0
    assert catalog.summary_of(name).split(".")[0] in " ".join(done.out.split())
    assert "--store" in done.out


@pytest.mark.parametrize("name", catalog.names())
def test_every_command_takes_json(name: str) -> None:
    with click.Context(group.root) as ctx:
        found = group.root.get_command(ctx, name)
    assert found is not None
    leaves = found.commands.values() if isinstance(found, click.Group) else [found]
    for leaf in leaves:
        options = {option for parameter in leaf.params for option in parameter.opts}
        assert {"--json", "--jsonl", "--store", "--profile", "--color"} <= options


@pytest.mark.parametrize(
    "words",
    [
        ["--store", "{}", "--json", "retention", "plan"],
        ["retention", "--store", "{}", "plan", "--json"],
        ["retention", "--json", "plan", "--store={}"],
        ["retention", "plan", "-o", "json", "--store", "{}"],
    ],
)
def test_options_stand_anywhere(words: list[str], run: Run, demo_file: Path) -> None:
    done = run(*[word.format(demo_file) for word in words])

    assert done.code == 0
    assert done.json["schema"] == "everstep/v1"


# -- which store


def store_of(run: Run, *arguments: str) -> tuple[str, str]:
    found = run("config", "--json", *arguments).json
    return found["store"], found["source"]


def test_the_store_is_named_by_option_environment_project_user_in_this_order(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store_of(run) == ("sqlite:///checkpoints.db", "default")

    user = tmp_path / "config/everstep/config.toml"
    user.parent.mkdir(parents=True)
    user.write_text('store = "sqlite:////srv/user.db"\n[profiles.prod]\nstore = "redis://:secret@db:6379/1"\n')
    assert store_of(run) == ("sqlite:////srv/user.db", str(user))

    (tmp_path / "pyproject.toml").write_text('[tool.everstep]\nstore = "agent.db"\n')
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert store_of(run) == (f"sqlite:///{tmp_path}/agent.db", str(tmp_path / "pyproject.toml"))

    (tmp_path / "below/everstep.toml").write_text('store = "near.db"\n')
    assert store_of(run)[0] == f"sqlite:///{tmp_path}/below/near.db"

    monkeypatch.setenv("EVERSTEP_STORE", "env.db")
    assert store_of(run) == ("sqlite:///env.db", "EVERSTEP_STORE")
    assert store_of(run, "--store", "option.db") == ("sqlite:///option.db", "--store")

    store, source = store_of(run, "--profile", "prod")
    assert store == "redis://db:6379/1"
    assert source.startswith("profile prod of ")


def test_an_unknown_profile_lists_the_known_ones(run: Run, tmp_path: Path) -> None:
    (tmp_path / "everstep.toml").write_text('[profiles.staging]\nstore = "s.db"\n')

    done = run("config", "--profile", "prod")

    assert done.code == 2
    assert "known are: staging" in done.err


def test_a_misspelt_entry_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "everstep.toml").write_text('stroe = "s.db"\n')

    done = run("threads")

    assert done.code == 2
    assert "there is no entry 'stroe'; the entries are store, retention, options, profiles" in done.err


def test_a_store_that_is_not_there_is_not_made(run: Run, tmp_path: Path) -> None:
    done = run("gc", "--store", tmp_path / "new.db", "--json")

    assert done.code == 5
    assert done.out == ""
    assert done.error["code"] == "store_not_there"
    assert not (tmp_path / "new.db").exists()


def test_a_server_that_does_not_answer_ends_with_5(run: Run) -> None:
    done = run("gc", "--store", "redis://:hunter2@127.0.0.1:1/0")

    assert done.code == 5
    assert "hunter2" not in done.err
    assert "\n" not in done.err.split("hint:")[0].strip()


# -- the shell


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("everstep lo", "plain,log"),
        ("everstep log tri", "plain,trip-to-oslo"),
        ("everstep gc --dr", "plain,--dry-run"),
        ("everstep copy c", "file,c"),
        ("everstep copy c.db d", "file,d"),
        ("everstep import-langgraph c", "file,c"),
    ],
)
def test_a_shell_completes_commands_options_and_threads(words: str, found: str, demo_file: Path) -> None:
    environment = {
        "_EVERSTEP_COMPLETE": "bash_complete",
        "COMP_TYPED": words,
        "COMP_BREAKS": ":=@",
        "EVERSTEP_STORE": str(demo_file),
    }
    done = start_process(env=environment)
    assert found in done.out.splitlines()


NAMES = ["plain", "with space", "with:colon", "user:42:chat", "it's", "$HOME", 'a"b', "mail@home", "ünï, b"]


@pytest.fixture(scope="module")
def odd_names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose threads have names that shells take apart."""
    path = tmp_path_factory.mktemp("odd") / "odd.db"
    with everstep.open(path, synchronous="off").sync as engine:
        for name in NAMES:
            engine.append(name, [])
        begin = engine.append("trunk", [])
        for name in ("cheap one", "dear"):
            engine.branch(begin, name)
        engine.tag(begin, "good")
    return path


@pytest.mark.parametrize(
    ("typed", "inserted"),
    [
        ("log pl", ["plain"]),
        ("log with", ["with:colon", "with\\ space"]),
        ("log with\\ ", ["with\\ space"]),
        ('log "with ', ["with space"]),
        ("log user:", ["42:chat"]),
        ("log user:42:c", ["chat"]),
        ('log "user:4', ["user:42:chat"]),
        ("log mail@", ["@home"]),
        ("log mail@h", ["@home"]),
        ("log trunk@", ["@cheap\\ one", "@dear", "@good", "@manual"]),
        ("log trunk@c", ["@cheap\\ one"]),
        ("log it", ["it\\'s"]),
        ("log \\$", ["\\$HOME"]),
        ('log "\\$', ["\\$HOME"]),
        ("log a", ['a\\"b']),
        ("log ün", ["ünï,\\ b"]),
        ("diff plain user:", ["42:chat"]),
        ("log nothing", []),
    ],
)
def test_bash_inserts_names_so_that_they_stay_one_word(
    typed: str, inserted: list[str], odd_names: Path, tmp_path: Path
) -> None:
    command = tmp_path / "everstep"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m everstep "$@"\n')
    command.chmod(0o755)
    script = """
        source <(everstep completion bash)
        COMP_LINE="everstep $TYPED" COMP_POINT=10000
        _everstep_completion everstep
        for reply in "${COMPREPLY[@]}"; do printf '%s\\n' "$reply"; done
    """
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "EVERSTEP_STORE": str(odd_names),
        "TYPED": typed,
        "LC_ALL": "C.UTF-8",
    }
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert sorted(done.stdout.splitlines()) == inserted


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_command(shell: str, run: Run) -> None:
    assert "_EVERSTEP_COMPLETE=" in run("completion", shell).out


def test_ui_serves_the_store_that_was_named(run: Run, demo_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, dict[str, object]]] = []
    monkeypatch.setattr("everstep.web.serve", lambda store, **options: calls.append((store, options)), raising=False)

    assert run("ui", "--store", demo_file, "--port", "0", "--no-open", "--read-only").code == 0
    assert run("ui", "--demo", "--token", "auto").code == 0
    assert run("ui", "--langgraph", "sqlite:///graph.db").code == 0
    assert run("ui", "--demo", "--langgraph", "sqlite:///graph.db").code == 2

    assert calls[0] == (
        str(demo_file),
        {
            "host": "127.0.0.1",
            "port": 0,
            "read_only": True,
            "token": None,
            "open_browser": False,
            "demo": False,
            "langgraph": None,
            "options": {},
            "redact": None,
        },
    )
    monkeypatch.setenv("EVERSTEP_TOKEN", "from outside")
    assert run("ui", "--demo", "--redact").code == 0
    assert calls[3][1]["token"] == "from outside"
    assert calls[3][1]["redact"] is everstep.web.redact_secrets
    assert calls[1][0] is None
    assert calls[1][1]["demo"] is True
    assert calls[1][1]["token"] == "auto"
    assert calls[2][0] is None
    assert calls[2][1]["langgraph"] == "sqlite:///graph.db"
    assert len(calls) == 4


def test_ui_opens_the_store_with_the_options_of_the_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, object]] = []
    monkeypatch.setattr("everstep.web.serve", lambda _, **options: calls.append(options), raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "everstep.toml").write_text('store = "agent.db"\noptions = { synchronous = "normal" }\n')

    assert run("ui").code == 0

    assert calls[0]["options"] == {"synchronous": "normal"}


def test_ui_serves_the_page_until_it_is_interrupted(demo_file: Path) -> None:
    command = [sys.executable, "-m", "everstep", "ui", "--no-open", "--port", "0", "--store", str(demo_file)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            link = process.stderr.readline().split()[-1]
            found = read_when_ready(f"{link}api/v1/threads")
            process.send_signal(signal.SIGINT)
            printed, _ = process.communicate(timeout=60)
        finally:
            process.kill()

    assert "trip-to-oslo" in [thread["thread_id"] for thread in found["threads"]]
    assert process.returncode in (0, 130)
    assert printed == ""


def read_when_ready(link: str) -> Any:
    """Return the JSON at a link, once the server listens."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(link, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


# -- mistakes


def test_a_wrong_command_is_guessed(run: Run) -> None:
    done = run("doktor")

    assert done.code == 2
    assert "did you mean doctor?" in done.err
    assert done.out == ""


def test_a_wrong_option_is_guessed_and_told_as_json(run: Run) -> None:
    done = run("gc", "--json", "--dry-rum")

    assert done.code == 2
    assert done.error["code"] == "usage"
    assert "--dry-run" in done.error["message"]


def test_an_unknown_thread_ends_with_3_and_is_guessed(run: Run, demo_file: Path) -> None:
    done = run("pin", "trip-to-oslo-brunch", "--store", demo_file)

    assert done.code == 3
    assert "did you mean" in done.err


def test_a_program_error_is_one_line_unless_it_is_debugged(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("everstep.cli.settings.find_files", fail)
    done = run("config", "--json")

    assert done.code == 1
    assert len(done.err.splitlines()) == 1
    assert done.error["code"] == "internal_error"


def test_ctrl_c_ends_with_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("everstep.cli.settings.find_files", interrupted)
    assert run("config").code == 130


def test_ctrl_c_at_a_question_ends_its_line(run: Run, own_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> bool:
        raise click.Abort

    monkeypatch.setattr(click, "confirm", interrupt)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    done = run("rm", "trip-to-oslo", "--store", own_file)

    assert done.code == 130
    assert done.err == "trip-to-oslo: 32 checkpoints\n\n"


def test_an_error_without_arguments_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the script of another version asks for completions."""
    monkeypatch.setenv("_EVERSTEP_COMPLETE", "bash_complete")

    assert run().code == 1


def test_ctrl_c_while_it_is_still_importing_ends_with_130() -> None:
    script = (
        "import sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'everstep.cli.session':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "from everstep.cli.start import main\n"
        "sys.exit(main(['threads']))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_where_few_characters_can_be_written_others_are_escaped(odd_names: Path) -> None:
    surroundings = {"PYTHONIOENCODING": "ascii"}
    columns = start_process("threads", "--store", odd_names, env=surroundings)
    assert columns.code == 0
    assert "\\u00fcn\\u00ef, b" in columns.out
    found = start_process("threads", "--json", "--store", odd_names, env=surroundings).json
    assert {thread["thread_id"] for thread in found["threads"]} >= set(NAMES)
    missing = start_process("show", "grün\U0001f600", "--json", "--store", odd_names, env=surroundings)
    assert missing.code == 3
    assert "grün\U0001f600" in missing.error["message"]


def test_a_reader_that_leaves_is_no_error(demo_file: Path) -> None:
    command = (
        f"{sys.executable} -m everstep --help-me | true; {sys.executable} -m everstep tag support-4711 | head -n 1"
    )
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        env={**os.environ, "EVERSTEP_STORE": str(demo_file)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.parametrize("form", ["table", "json", "jsonl"])
def test_a_command_whose_reader_has_left_ends_with_0(demo_file: Path, form: str) -> None:
    words = ["log", "support-4711", "-n", "1000", "-o", form, "--store", str(demo_file)]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "everstep", *words], stdout=pipe, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (0, b"")


# -- harmless text

HOSTILE = "\x1b[31mred\x1b]0;title\x07 \u202egnp.exe \u2066x\u2069 \x9b2J\u200f \ufeff end\nnext\r\x00 \ud800"


def test_text_for_a_terminal_has_no_controls() -> None:
    cleaned = text.clean(HOSTILE)

    assert not set(cleaned) & set("\x1b\x07\x9b\n\r\x00\u202e\u2066\u2069\u200f\ufeff\ud800")
    assert "red" in cleaned
    assert [line.strip() for line in text.clean_lines("a\n  b\x1b[2J\n")] == ["a", "b [2J", ""]


def test_json_is_exact_and_holds_no_controls() -> None:
    made = output.to_json({"text": HOSTILE, "città": "Malmö"})

    assert json.loads(made) == {"text": HOSTILE, "città": "Malmö"}
    assert "Malmö" in made
    assert not set(made) & set("\x1b\x07\x9b\r\x00\u202e\u2066\u2069\u200f\ufeff\ud800")


def test_sizes_and_ages_read_well() -> None:
    sizes = (0, 999, 1000, 1234567, 10**13)
    assert [text.describe_bytes(n) for n in sizes] == ["0 B", "999 B", "1.0 kB", "1.2 MB", "10.0 TB"]
    now = text.parse_time("2026-11-16T12:00:00+00:00")
    ages = ("2026-11-16T11:59:30", "2026-11-16T09:00:00+00:00", "2026-01-01", "2026-11-17", "no time")
    expected = ["30 s ago", "3 h ago", "2026-01-01", "2026-11-17 00:00", "no time"]
    assert [text.describe_age(when, now) for when in ages] == expected
