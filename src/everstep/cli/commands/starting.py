"""To begin with: the page, demo data, which store is used, completion."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import click

from everstep.cli import text
from everstep.cli.group import command, root
from everstep.cli.session import Common, complete_files, show_warnings
from everstep.cli.settings import find_files, profiles_of, user_file
from everstep.cli.start import COMPLETE_VARIABLE
from everstep.config import SnapshotConfig
from everstep.errors import InvalidInput, MissingDependency
from everstep.opening.addresses import place_of, without_password


@command("ui")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", default=8787, show_default=True, type=click.IntRange(0, 65535), help="The port; 0 takes any.")
@click.option("--open/--no-open", "open_browser", default=True, help="Open a browser.")
@click.option("--read-only", is_flag=True, help="Let nobody change anything.")
@click.option(
    "--token",
    metavar="TEXT",
    envvar="EVERSTEP_TOKEN",
    help="What visitors must know (or EVERSTEP_TOKEN); `auto` makes one.",
)
@click.option("--redact", is_flag=True, help="Leave out keys, tokens and passwords; nothing can be changed then.")
@click.option("--demo", is_flag=True, help="Show demo data instead of a store.")
@click.option(
    "--langgraph",
    metavar="URL",
    shell_complete=complete_files,
    help="Show what LangGraph's own saver keeps there, without changing it.",
)
@click.pass_obj
def ui(
    common: Common,
    host: str,
    port: int,
    open_browser: bool,
    read_only: bool,
    token: str | None,
    redact: bool,
    demo: bool,
    langgraph: str | None,
) -> None:
    """It runs until Ctrl-C, on this machine only unless --host says otherwise."""
    try:
        # It needs the extra `ui`.
        web = import_module("everstep.web")
        serve = web.serve
    except ImportError as exc:
        raise MissingDependency(exc.name or "starlette", "ui") from exc
    if demo and langgraph is not None:
        raise InvalidInput("--demo and --langgraph each say what to show; give one of them")
    settings = None
    if not demo and langgraph is None:
        settings = common.settings
    serve(
        settings.store if settings is not None else None,
        host=host,
        port=port,
        read_only=read_only,
        token=token,
        open_browser=open_browser,
        demo=demo,
        langgraph=langgraph,
        options=settings.options if settings is not None else None,
        redact=web.redact_secrets if redact else None,
    )


@command("demo")
@click.argument("path", default="demo.db", type=click.Path(dir_okay=False, path_type=Path))
@click.pass_obj
def demo(common: Common, path: Path) -> None:
    """Writes a long chat, an agent run with an error, a story with branches and merges, and a LangGraph workflow
    that waits for an answer, into a new file (demo.db unless you name one).
    """
    from everstep.cli.session import Session
    from everstep.factory import open as open_engine
    from everstep.views import demo as demo_data

    if path.exists():
        raise InvalidInput(f"{path} is there already; name another file, or remove it first")
    # Nothing is lost with a demo: it need not wait for the disk.
    engine = open_engine(path, SnapshotConfig(gc_policy="keep_all"), synchronous="off")
    with show_warnings(), engine.sync:
        told = Session(engine, common.output).run(demo_data.fill)
    output = common.output
    if output.is_json:
        output.document({"store": str(path), **told})
        return
    output.line(f"{path}: {text.describe_count(len(told['threads']), 'thread')}")
    for words in told["left_out"]:
        output.note(f"left out: {words}")
    store = text.as_argument(path)
    output.hint(f"everstep ui --store {store}    or    everstep log --store {store} --graph {demo_data.STORY}")


@command("config")
@click.pass_obj
def config(common: Common) -> None:
    """The store is named by --store, else by EVERSTEP_STORE, else by `store` in everstep.toml or [tool.everstep] of
    pyproject.toml in this folder or above, else by the user's own file. No password is printed.
    """
    settings = common.settings
    files = list(find_files(Path.cwd()))
    profiles = sorted(profiles_of(files))
    fields = {
        "store": without_password(settings.store),
        "kind": place_of(settings.store).kind,
        "source": settings.source,
        "options": sorted(settings.options),
        "retention": dict(settings.retention),
        "files": [str(file.path) for file in files],
        "user_file": str(user_file()),
        "profiles": profiles,
    }
    output = common.output
    if output.is_json:
        output.document(fields)
        return
    listed = {
        "store": fields["store"],
        "named by": settings.source,
        "options": ", ".join(sorted(settings.options)) or "none",
        "retention": ", ".join(f"{name} {value}" for name, value in settings.retention.items()) or "not set",
        "files": ", ".join(str(file.path) for file in files) or "none",
        "profiles": ", ".join(profiles) or "none",
    }
    output.table(("setting", "value"), [(name, text.clean(value)) for name, value in listed.items()], wide="value")


@command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_obj
def completion(common: Common, shell: str) -> None:
    """Names of commands, options and threads are completed. To switch it on:

    \b
    bash    eval "$(everstep completion bash)"       in ~/.bashrc
    zsh     eval "$(everstep completion zsh)"        in ~/.zshrc
    fish    everstep completion fish | source        in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    from everstep.cli.shells import register

    register()
    found = get_completion_class(shell)
    if found is None:
        raise InvalidInput(f"there is no completion for {shell}")
    maker = found(root, {}, "everstep", COMPLETE_VARIABLE)
    script = maker.source_template % maker.source_vars()
    if common.output.is_json:
        common.output.document({"shell": shell, "script": script})
    else:
        common.output.line(script)


COMMANDS = {"ui": ui, "demo": demo, "config": config, "completion": completion}
