"""What people's code is written against."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import everstep


def test_all_is_sorted_and_complete() -> None:
    assert everstep.__all__ == sorted(everstep.__all__)
    public = {
        name for name in dir(everstep) if not name.startswith("_") and not inspect.ismodule(getattr(everstep, name))
    }
    assert public - {"TYPE_CHECKING", "names_from"} == set(everstep.__all__) | {"open", "copy"}


def test_a_name_that_is_not_there_is_not_looked_for_elsewhere() -> None:
    with pytest.raises(AttributeError, match="module 'everstep' has no attribute 'Checkpointt'"):
        _ = everstep.Checkpointt  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'sendd'"):
        exec("from everstep.langgraph import sendd")


def test_a_saver_is_imported_without_what_only_others_need() -> None:
    others = (
        "engine",
        "history.three_way",
        "langgraph.importing",
        "langgraph.sending",
        "reports",
        "stores.memory",
        "timeline.store",
        "transfer.copying",
    )
    code = f"""if True:
        import sys
        from everstep.langgraph import HarnessCheckpointer
        print([name for name in {others!r} if "everstep." + name in sys.modules])"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_alone_imports_next_to_nothing() -> None:
    """So that the command answers at once; `everstep.errors` is found all the same."""
    code = """if True:
        import sys
        import everstep
        print([name for name in ("typing", "re", "dataclasses", "everstep.errors") if name in sys.modules])
        print(everstep.errors.HeadMoved is everstep.HeadMoved)"""
    source = {"PYTHONPATH": str(Path(everstep.__file__).parents[1])}  # without `site`, which imports some of them
    done = subprocess.run([sys.executable, "-S", "-c", code], env=source, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "True"]


def test_importing_everything_takes_no_builtin_away() -> None:
    names: dict[str, object] = {}
    exec("from everstep import *", names)
    assert "open" not in names
    assert "copy" not in names


def test_every_public_name_is_documented() -> None:
    for name in everstep.__all__:
        assert (getattr(everstep, name).__doc__ or "").strip(), name


def test_every_error_has_one_base() -> None:
    named = [getattr(everstep, name) for name in everstep.__all__]
    raised = [value for value in named if inspect.isclass(value) and issubclass(value, Exception)]
    errors = [value for value in raised if not issubclass(value, Warning)]
    assert len(errors) > 10
    assert all(issubclass(error, everstep.EverstepError) for error in errors)
    assert issubclass(everstep.CheckpointNotFound, ValueError)
    assert issubclass(everstep.CheckpointNotFound, LookupError)


def test_types_ship() -> None:
    assert resources.files("everstep").joinpath("py.typed").is_file()


def test_the_signature_of_snapshot_is_as_published() -> None:
    names = list(inspect.signature(everstep.CheckpointEngine.snapshot).parameters)
    assert names[1:8] == [
        "thread_id", "messages", "state", "tools_result", "trigger", "parent_checkpoint_id", "next_node",
    ]  # fmt: skip
    assert list(inspect.signature(everstep.CheckpointEngine.append).parameters)[1:5] == names[1:5]


def test_drivers_are_imported_when_used() -> None:
    optional = {"apsw", "psycopg", "redis", "pydantic", "langgraph", "pytest"}
    code = f"import sys, everstep; print(sorted({optional} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("driver", "url", "extra"),
    [
        ("psycopg", "postgresql://h", "postgres"),
        ("redis", "redis://h", "redis"),
        ("redis", "redis+cluster://h", "redis"),
    ],
)
def test_a_missing_driver_is_named_with_what_installs_it(driver: str, url: str, extra: str) -> None:
    code = f"import sys; sys.modules[{driver!r}] = None; import everstep; everstep.open({url!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"MissingDependency: {driver} is not installed; run: pip install 'everstep[{extra}]'" in done.stderr
