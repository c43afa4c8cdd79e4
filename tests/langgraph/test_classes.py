"""Classes of saved objects: whatever LangGraph's own savers keep is kept, and comes back as it was, or as data."""

import dataclasses
import enum
import gc
import importlib
import json
import operator
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import numpy as np
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from pydantic import BaseModel, Field, PrivateAttr

import everstep
from everstep import CheckpointCorrupted, UnknownClassWarning, UnregisteredType, UnstorableValue
from everstep.langgraph import HarnessCheckpointer, local_classes, plain_classes
from everstep.values import class_forms, registry
from tests.langgraph import kinds


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was saved in this process, and nobody was warned."""
    monkeypatch.setattr(plain_classes, "_warned", set())
    monkeypatch.setattr(local_classes.IN_PROCESS, "_entries", {})


@pytest.fixture
def saver() -> Iterator[HarnessCheckpointer]:
    with HarnessCheckpointer() as saver:
        yield saver


def put(saver: HarnessCheckpointer, value: Any, thread: str = "t") -> None:
    checkpoint = {"channel_values": {"value": value}, "channel_versions": {"value": 1}}
    saver.put({"configurable": {"thread_id": thread}}, checkpoint)


def get(saver: HarnessCheckpointer, thread: str = "t") -> Any:
    return saver.get({"configurable": {"thread_id": thread}})["channel_values"]["value"]


def other(saver: HarnessCheckpointer, **options: Any) -> HarnessCheckpointer:
    """Return a saver of the same store that remembers nothing."""
    return HarnessCheckpointer(backend=saver.backend, **options)


def stock(value: Any) -> Any:
    serde = JsonPlusSerializer()
    return serde.loads_typed(serde.dumps_typed(value))


def forget_classes() -> None:
    """Be another process."""
    local_classes.IN_PROCESS._entries.clear()


def made(city: str = "Oslo", **more: Any) -> Any:
    """Return an object of a class that each call defines anew."""

    class Place(BaseModel, extra="allow"):
        city: str

    return Place(city=city, **more)


# -- beside LangGraph's own savers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", kinds.local_values())
def test_objects_of_local_classes_come_back_as_they_were(saver: HarnessCheckpointer, name: str) -> None:
    value = kinds.local_values()[name]
    put(saver, value)

    for reader in (saver, other(saver)):
        found = get(reader)
        assert type(found) is type(value)
        assert found == value
        assert repr(found) == repr(value)


@pytest.mark.parametrize("name", kinds.local_values())
@pytest.mark.filterwarnings("ignore::everstep.UnknownClassWarning")
def test_where_a_local_class_is_not_known_its_data_are_those_of_the_stock_savers(
    saver: HarnessCheckpointer, name: str
) -> None:
    value = kinds.local_values()[name]
    put(saver, value)
    forget_classes()

    assert get(other(saver)) == stock(value)


@pytest.mark.parametrize("name", kinds.data_values())
@pytest.mark.filterwarnings("ignore::everstep.UnknownClassWarning")
def test_what_only_its_own_code_can_rebuild_comes_back_as_data(saver: HarnessCheckpointer, name: str) -> None:
    value = kinds.data_values()[name]
    put(saver, value)

    assert get(saver) == get(other(saver)) == stock(value)


@pytest.mark.parametrize("name", kinds.plain_values())
def test_subclasses_of_plain_types_come_back_as_the_plain_type(saver: HarnessCheckpointer, name: str) -> None:
    value, plain = kinds.plain_values()[name]
    stock(value)
    put(saver, {"a": [value]})

    (found,) = get(saver)["a"]
    assert type(found) is type(plain)
    assert np.array_equal(found, plain) if isinstance(plain, np.ndarray) else found == plain


def test_another_process_gets_what_it_can_and_is_told_once_for_each_class(tmp_path: Path) -> None:
    local, known = kinds.local_values(), kinds.module_values()
    path = tmp_path / "store.db"
    with HarnessCheckpointer.from_url(str(path)) as saver:
        for name, value in local.items():
            put(saver, value, f"local {name}")
        for name, value in known.items():
            put(saver, value, f"known {name}")
            assert get(saver, f"known {name}") == value

    command = [sys.executable, "-m", "tests.langgraph.kinds", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(ran.stdout)

    assert found["values"] == {
        **{f"local {name}": repr(stock(value)) for name, value in local.items()},
        **{f"known {name}": repr(value) for name, value in known.items()},
    }
    told = found["warnings"]
    assert all(text.startswith("UnknownClassWarning: a stored 'tests.langgraph.kinds:") for text in told)
    assert sum("local_values.<locals>.Plan'" in text for text in told) == 1
    assert sum("local_values.<locals>.Spot'" in text for text in told) == 1
    assert len(set(told)) == len(told)


def test_a_message_of_a_local_class(saver: HarnessCheckpointer) -> None:
    class Said(AIMessage):
        mood: str = ""

    messages = [HumanMessage("hello", id="1"), Said(content="hi", mood="good", id="2")]
    put(saver, messages)
    assert get(saver) == get(other(saver)) == messages

    forget_classes()
    for _ in range(3):
        reader = other(saver)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnknownClassWarning)
            first, second = get(reader)
        assert first == messages[0]
        assert second == messages[1].model_dump()


# -- which class -------------------------------------------------------------------------------------------------------


def test_the_warning_names_the_class_and_what_to_do(saver: HarnessCheckpointer) -> None:
    put(saver, [made()] * 3)
    forget_classes()
    reader = other(saver)

    with pytest.warns(UnknownClassWarning, match=r"made\.<locals>\.Place.*in a module.*allow=") as told:
        assert [get(reader), get(reader)] == [[{"city": "Oslo"}] * 3] * 2
    assert len(told) == 1


def test_where_warnings_are_errors_the_warning_is_raised(saver: HarnessCheckpointer) -> None:
    put(saver, made())
    forget_classes()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UnknownClassWarning, match="Place"):
            get(other(saver))


def test_a_local_class_that_is_allowed_is_known(saver: HarnessCheckpointer) -> None:
    value = made()
    put(saver, value)
    forget_classes()

    assert get(other(saver, allow=[type(value)])) == value


@pytest.mark.filterwarnings("ignore::everstep.UnknownClassWarning")
@pytest.mark.parametrize("order", ["both saved", "second not saved", "second first"])
def test_of_two_classes_of_one_name_none_is_taken_for_the_other(saver: HarnessCheckpointer, order: str) -> None:
    first = made()
    put(saver, first, "a")
    assert get(saver, "a") == first
    second = made(country="Norway")
    if order != "second not saved":
        put(saver, second, "b")
        assert get(saver, "b") == {"city": "Oslo", "country": "Norway"}

    readers = [saver, other(saver)]
    for reader in reversed(readers) if order == "second first" else readers:
        assert get(reader, "a") == {"city": "Oslo"}
    assert get(other(saver, allow=[type(first)]), "a") == first


@pytest.mark.filterwarnings("ignore::everstep.UnknownClassWarning")
def test_a_class_whose_base_was_defined_again_is_not_certain_either(saver: HarnessCheckpointer) -> None:
    def define() -> Any:
        class BaseRef(BaseModel):
            a: int = 1

        class Derived(BaseRef):
            b: int = 2

        return Derived()

    value = define()
    put(saver, value)
    assert get(saver) == value
    later = define()
    assert get(saver) == {"a": 1, "b": 2}
    assert type(later) is not type(value)


def test_a_saver_of_its_own_for_each_class_of_a_name() -> None:
    for _ in range(3):
        with HarnessCheckpointer() as saver:
            value = made()
            put(saver, value)
            assert get(saver) == value


@pytest.mark.filterwarnings("ignore::everstep.UnknownClassWarning")
def test_classes_that_are_defined_for_every_request_do_not_pile_up(saver: HarnessCheckpointer) -> None:
    alive: weakref.WeakSet[type] = weakref.WeakSet()

    def serve(thread: str) -> None:
        @dataclasses.dataclass
        class Row:
            a: int

        class Text(str):
            pass

        values = [Row(1), made(), Text("x")]
        alive.update([Row, type(values[1]), Text])
        clone = saver.with_allowlist([Row])
        put(clone, values, thread)
        get(clone, thread)
        put(saver, values, thread)
        get(saver, thread)

    for number in range(300):
        serve(f"thread {number % 3}")
    gc.collect()

    assert len(alive) < 300  # of 900


@pytest.mark.filterwarnings("ignore::everstep.UnknownClassWarning")
def test_classes_of_messages_do_not_pile_up(saver: HarnessCheckpointer) -> None:
    """LangChain itself keeps such classes alive, so the saver's own memory is looked at."""
    for _ in range(300):

        class Said(AIMessage):
            pass

        put(saver, [Said(content="x")])
        get(saver)
    assert len(saver.channels._messages._classes) <= 256


def test_names_that_never_come_again_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_classes, "_NAMES_MAX", 10)
    known = local_classes.LocalClasses()
    for number in range(50):
        cls = dataclasses.make_dataclass(f"Row{number}", ["a"])
        known.add(registry.Registered(cls, f"m:Row{number}", *class_forms.known_ways(cls)))
    assert [number for number in range(50) if f"m:Row{number}" in known] == list(range(40, 50))


# -- graphs ------------------------------------------------------------------------------------------------------------


def built(saver: Any) -> Any:
    """Return a graph whose classes are defined in here, as a factory of agents does it."""

    class Stop(BaseModel):
        city: str

    class State(BaseModel):
        stops: Annotated[list[Stop], lambda old, new: old + new] = []
        last: Stop | None = None

    def drive(state: State) -> dict[str, Any]:
        assert all(type(stop) is Stop for stop in state.stops)
        stop = Stop(city=f"city {len(state.stops) + 1}")
        return {"stops": [stop], "last": stop}

    return StateGraph(State).add_node(drive).add_edge(START, "drive").compile(checkpointer=saver)


@pytest.mark.filterwarnings("ignore::everstep.UnknownClassWarning")
def test_graphs_that_are_built_for_every_request_go_on_with_what_others_saved(saver: HarnessCheckpointer) -> None:
    config: Any = {"configurable": {"thread_id": "trip"}}
    for _ in range(3):
        built(saver).invoke({}, config)
    first, second = built(saver), built(other(saver))
    for graph in (first, second, first, second, first):
        graph.invoke({}, config)

    stops = first.get_state(config).values["stops"]
    assert [stop["city"] for stop in stops] == [f"city {number}" for number in range(1, 9)]


def test_one_graph_gets_its_own_classes_back(saver: HarnessCheckpointer) -> None:
    graph = built(saver)
    config: Any = {"configurable": {"thread_id": "trip"}}
    for _ in range(2):
        graph.invoke({}, config)

    values = graph.get_state(config).values
    assert type(values["last"]).__name__ == "Stop"
    assert [stop.city for stop in values["stops"]] == ["city 1", "city 2"]


def test_a_strict_saver_knows_the_local_classes_that_a_graph_declares() -> None:
    """LangGraph names them by module and `__name__`."""
    value = made()
    with HarnessCheckpointer(strict=True) as strict:
        with pytest.raises(UnstorableValue, match="Place"):
            put(strict, value)
        declared = strict.with_allowlist([(__name__, "Place")])
        put(declared, value)
        assert get(declared) == value
        with pytest.raises(UnregisteredType, match="Place"):
            get(strict)
        forget_classes()
        with pytest.raises(UnregisteredType, match="Place"):
            get(other(strict, strict=True, allow=[(__name__, "Place")]))


# -- classes that were moved, renamed or registered --------------------------------------------------------------------


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module with classes, which can be taken away."""
    monkeypatch.syspath_prepend(tmp_path)
    source = "import dataclasses, enum, typing\n"
    source += "@dataclasses.dataclass\nclass Plan:\n    city: str\n"
    source += "class Color(enum.Enum):\n    RED = 'r'\n    BLUE = 'b'\n"
    source += "class Pair(typing.NamedTuple):\n    a: int\n    b: int = 2\n"
    (tmp_path / "of_then.py").write_text(source)
    found = importlib.import_module("of_then")
    yield found
    sys.modules.pop("of_then", None)


def test_a_class_that_was_renamed_is_read_as_data(saver: HarnessCheckpointer, module: Any) -> None:
    put(saver, [module.Plan("Oslo"), module.Color.RED, module.Pair(1)])
    module.Route, module.Paint, module.Two = module.Plan, module.Color, module.Pair
    del module.Plan, module.Color, module.Pair

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert get(other(saver)) == [{"city": "Oslo"}, "r", {"a": 1, "b": 2}]
    texts = [str(warned.message) for warned in told]
    assert all(warned.category is UnknownClassWarning for warned in told)
    assert ["of_then:Plan" in texts[0], "of_then:Color" in texts[1], "of_then:Pair" in texts[2]] == [True] * 3
    assert "register(cls, name='of_then:Plan')" in texts[0]


def test_a_class_that_was_moved_can_be_registered_under_its_old_name(
    saver: HarnessCheckpointer, module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_by_type", dict(registry._by_type))
    monkeypatch.setattr(registry, "_by_name", dict(registry._by_name))
    values = [module.Plan("Oslo"), module.Color.RED, module.Pair(1)]
    put(saver, values)
    monkeypatch.delitem(sys.modules, "of_then")
    (tmp_path / "of_then.py").unlink()
    importlib.invalidate_caches()
    for name in ("Plan", "Color", "Pair"):
        everstep.register(getattr(module, name), name=f"of_then:{name}")

    assert get(other(saver)) == values


def test_a_module_that_only_has_to_be_imported_is_an_error_that_says_so(
    saver: HarnessCheckpointer, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = module.Plan("Oslo")
    put(saver, value)
    monkeypatch.delitem(sys.modules, "of_then")
    reader = other(saver)

    with pytest.raises(UnregisteredType, match="import its module"):
        get(reader)
    assert "of_then" not in sys.modules
    assert dataclasses.asdict(value) == {"city": "Oslo"}


MODEL = "class Thing(pydantic.BaseModel{}):\n    a: int\n    {}\n"
DATA = "@dataclasses.dataclass{}\nclass Thing:\n    a: int\n    {}\n"
TUPLE = "class Thing(typing.NamedTuple):\n    a: int\n    {}\n"
V1 = "class Thing(pydantic.v1.BaseModel):\n    a: int\n    {}\n"
OPEN = ", extra='allow'"

CHANGES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "a field more": (MODEL.format("", ""), "Thing(a=1)", MODEL.format("", "b: int = 2"), {"a": 1, "b": 2}),
    "a list more": (
        MODEL.format("", ""), "Thing(a=1)", MODEL.format("", "b: list = pydantic.Field(default_factory=list)"),
        {"a": 1, "b": []},
    ),
    "a model more": (
        MODEL.format("", ""), "Thing(a=1)",
        "class Part(pydantic.BaseModel):\n    c: list = [1]\n" + MODEL.format("", "b: Part = Part()"),
        {"a": 1, "b": {"c": [1]}},
    ),
    "a required field more": (MODEL.format("", ""), "Thing(a=1)", MODEL.format("", "b: int"), {"a": 1}),
    "a field less": (MODEL.format("", "b: int = 2"), "Thing(a=1)", MODEL.format("", ""), {"a": 1}),
    "a field less, which is extra now": (
        MODEL.format("", "b: int = 2"), "Thing(a=1)", MODEL.format(OPEN, ""), {"a": 1, "b": 2},
    ),
    "a field that was extra": (
        MODEL.format(OPEN, ""), "Thing(a=1, b=3)", MODEL.format(OPEN, "b: int = 2"), {"a": 1, "b": 3},
    ),
    "extra values are taken": (MODEL.format("", ""), "Thing(a=1)", MODEL.format(OPEN, ""), {"a": 1}),
    "a private attribute more": (
        MODEL.format("", ""), "Thing(a=1)", MODEL.format("", "_b: int = pydantic.PrivateAttr(2)"), {"a": 1, "_b": 2},
    ),
    "one more private attribute": (
        MODEL.format("", "_b: int = 2"), "Thing(a=1)", MODEL.format("", "_b: int = 3\n    _c: list = []"),
        {"a": 1, "_b": 2, "_c": []},
    ),
    "a field of version 1 more": (V1.format(""), "Thing(a=1)", V1.format("b: int = 2"), {"a": 1, "b": 2}),
    "a dataclass becomes a model": (
        DATA.format("", ""), "Thing(a=1)", MODEL.format("", "b: int = 2"), {"a": 1, "b": 2},
    ),
    "a model becomes a dataclass": (
        MODEL.format("", ""), "Thing(a=1)", DATA.format("", "b: int = 2"), {"a": 1, "b": 2},
    ),
    "a named tuple becomes a model": (TUPLE.format(""), "Thing(1)", MODEL.format("", ""), {"a": 1}),
    "version 1 becomes version 2": (V1.format(""), "Thing(a=1)", MODEL.format("", "b: int = 2"), {"a": 1, "b": 2}),
    "a slot less": (DATA.format("", "b: int = 2"), "Thing(1)", DATA.format("(slots=True)", ""), {"a": 1}),
    "an item less": (TUPLE.format("b: int = 2"), "Thing(1)", TUPLE.format(""), {"a": 1}),
}  # fmt: skip
"""A class, an object of it, the class as it is later, and what the object holds then."""


@pytest.mark.parametrize("change", CHANGES)
def test_objects_of_a_class_that_has_changed(saver: HarnessCheckpointer, module: Any, change: str) -> None:
    """A program that is deployed anew goes on with what the one before has saved."""
    before, made, after, expected = CHANGES[change]
    exec(f"import pydantic, pydantic.v1\n{before}", vars(module))
    put(saver, eval(made, vars(module)))
    exec(after, vars(module))

    for _ in range(2):
        thing = get(other(saver))
        assert type(thing) is module.Thing
        assert held_by(thing) == expected
        if hasattr(thing, "b") and hasattr(thing.b, "c"):
            thing.b.c.append("what the class has must not change")
    if hasattr(thing, "__pydantic_extra__"):
        assert (thing.__pydantic_extra__ is None) == (thing.model_config.get("extra") != "allow")
    # What is saved again is as good as new.
    put(saver, get(other(saver)))
    assert held_by(get(other(saver))) == expected


def held_by(thing: Any) -> Any:
    """Return what an object holds: its fields, and private attributes of a model."""
    if hasattr(thing, "model_dump"):
        return {**thing.model_dump(), **(thing.__pydantic_private__ or {})}
    if hasattr(thing, "dict"):
        return thing.dict()
    return dataclasses.asdict(thing) if dataclasses.is_dataclass(thing) else thing._asdict()  # type: ignore[arg-type]


def test_a_model_that_lacked_a_field_when_it_was_saved_lacks_it_still(saver: HarnessCheckpointer, module: Any) -> None:
    exec("import pydantic\n" + MODEL.format("", "b: int = 2"), vars(module))
    thing = module.Thing(a=1)
    del thing.__dict__["b"]
    put(saver, thing)

    assert vars(get(other(saver))) == {"a": 1}
    shown = saver.engine.sync.get_latest("t")
    assert shown is not None
    assert shown.state["value"] == {"a": 1}
    del module.Thing
    with pytest.warns(UnknownClassWarning):
        assert get(other(saver)) == {"a": 1}


def test_a_new_field_that_only_a_function_can_fill_is_an_error_that_says_so(
    saver: HarnessCheckpointer, module: Any
) -> None:
    exec("import pydantic\n" + MODEL.format("", ""), vars(module))
    put(saver, module.Thing(a=1))
    later = "b: object = pydantic.Field(default_factory=lambda: 1/0{})"
    exec(MODEL.format("", later.format("")), vars(module))
    with pytest.raises(CheckpointCorrupted, match=r"Thing\.b.*function.*default") as caught:
        get(other(saver))
    assert not caught.value.is_damage
    assert "everstep repair" not in str(caught.value)
    # It is not missed where it may have been left out because it cannot be stored.
    exec(MODEL.format("", later.format(", exclude=True")), vars(module))
    assert not hasattr(get(other(saver)), "b")


def test_a_class_that_was_defined_again_is_the_new_one(saver: HarnessCheckpointer, module: Any) -> None:
    """A notebook defines a class anew whenever its cell runs, and goes on with the same saver."""
    values = [module.Plan("Oslo"), module.Color.RED, module.Pair(1)]
    put(saver, values)
    assert get(saver) == values

    importlib.reload(module)
    for value, cls in zip(get(saver), (module.Plan, module.Color, module.Pair), strict=True):
        assert type(value) is cls
    put(saver, [module.Plan("Rome"), module.Color.BLUE])
    assert get(saver) == [module.Plan("Rome"), module.Color.BLUE]
    # An object of before is still what its user holds.
    put(saver, values)
    assert get(saver) == [module.Plan("Oslo"), module.Color.RED, module.Pair(1)]


def test_a_message_class_that_was_defined_again_is_the_new_one(
    saver: HarnessCheckpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = sys.modules["__main__"]

    def define() -> Any:
        cls: Any = type("Said", (AIMessage,), {"__module__": "__main__", "__qualname__": "Said"})
        monkeypatch.setattr(main, "Said", cls, raising=False)
        return cls

    put(saver, [HumanMessage("hello", id="1"), define()(content="hi", id="2")])
    for _ in range(3):
        assert type(get(saver)[1]) is vars(main)["Said"]
    newer = define()
    for _ in range(3):
        assert type(get(saver)[1]) is newer


def test_a_class_whose_name_is_gone_is_still_known_to_its_saver(saver: HarnessCheckpointer, module: Any) -> None:
    value = module.Plan("Oslo")
    put(saver, value)
    assert get(saver) == value
    del module.Plan
    assert get(saver) == value


def test_members_of_an_enum_that_are_gone_are_their_values(saver: HarnessCheckpointer, module: Any) -> None:
    put(saver, [module.Color.RED, module.Color.BLUE])
    module.Color = enum.Enum("Color", {"RED": "r"}, module="of_then")  # type: ignore[misc]  # a class like any other

    with pytest.warns(UnknownClassWarning, match="no such member"):
        assert get(other(saver)) == [module.Color.RED, "b"]


def test_a_named_tuple_gets_the_defaults_of_new_fields(saver: HarnessCheckpointer, module: Any) -> None:
    put(saver, module.Pair(1))

    class Pair(NamedTuple):
        c: int = 3
        a: int = 0
        b: int = 0

    Pair.__module__, Pair.__qualname__ = "of_then", "Pair"
    module.Pair = Pair
    assert get(other(saver)) == Pair(3, 1, 2)


@pytest.mark.parametrize("strict", [False, True])
def test_what_was_saved_before_a_class_was_registered_is_read(
    module: Any, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    monkeypatch.setattr(registry, "_by_type", dict(registry._by_type))
    monkeypatch.setattr(registry, "_by_name", dict(registry._by_name))
    values = [module.Plan("Oslo"), module.Color.RED, module.Pair(1)]
    with HarnessCheckpointer(allow=[module.Plan, module.Color, module.Pair], strict=strict) as saver:
        put(saver, values, "before")
        everstep.register(module.Plan, to_state=lambda plan: plan.city, from_state=module.Plan)
        everstep.register(module.Color)
        everstep.register(module.Pair)
        reader = other(saver, strict=strict)
        put(reader, values, "after")

        for each in (reader, saver):
            assert get(each, "before") == get(each, "after") == values


# -- what cannot be stored inside --------------------------------------------------------------------------------------


def test_what_is_no_field_is_left_out_if_it_cannot_be_stored(saver: HarnessCheckpointer) -> None:
    class Model(BaseModel):
        a: int
        client: Any = Field(default=None, exclude=True)
        note: str = Field(default="", exclude=True)
        _lock: Any = PrivateAttr(default_factory=threading.Lock)
        _count: int = PrivateAttr(3)

    @dataclasses.dataclass
    class Row:
        a: int

        def __post_init__(self) -> None:
            self.lock = threading.Lock()
            self.more = 5

    class Said(HumanMessage):
        _lock: Any = PrivateAttr(default_factory=threading.Lock)
        _count: int = PrivateAttr(3)

    put(saver, {"m": Model(a=1, client=threading.Lock(), note="n"), "r": Row(2), "s": Said(content="x")})
    found = get(saver)

    model, row, said = found["m"], found["r"], found["s"]
    assert (model.a, model.note, model._count, model.client, hasattr(model, "_lock")) == (1, "n", 3, None, False)
    assert (row.a, row.more, hasattr(row, "lock")) == (2, 5, False)
    assert (said.content, said._count, hasattr(said, "_lock")) == ("x", 3, False)
    with pytest.raises(UnstorableValue, match=r"value\.a.*lock"):
        put(saver, Row(threading.Lock()))  # type: ignore[arg-type]
    with HarnessCheckpointer(strict=True, allow=[Row]) as strict, pytest.raises(UnstorableValue, match="lock"):
        put(strict, Row(2))


def test_keys_of_a_class_that_is_not_known_are_an_error(saver: HarnessCheckpointer) -> None:
    @dataclasses.dataclass(frozen=True)
    class Spot:
        x: int

    put(saver, {Spot(1): "a"})
    assert get(saver) == {Spot(1): "a"}
    forget_classes()
    with (
        pytest.warns(UnknownClassWarning),
        pytest.raises(UnregisteredType, match=r"Spot.*a key of a dict"),
    ):
        get(other(saver))


# -- merging -----------------------------------------------------------------------------------------------------------


def test_a_merge_does_not_turn_objects_of_unknown_classes_into_data(saver: HarnessCheckpointer) -> None:
    graph = built(saver)
    config: Any = {"configurable": {"thread_id": "trip"}}
    graph.invoke({}, config)
    engine = saver.engine.sync
    branch = engine.branch(graph.get_state(config).config["configurable"]["checkpoint_id"], "other")
    graph.invoke({}, {"configurable": {"thread_id": branch}})
    graph.invoke({}, config)
    forget_classes()

    class Plain(TypedDict):
        stops: Annotated[list[Any], operator.add]

    without_saver = StateGraph(Plain).add_node("drive", lambda state: state).add_edge(START, "drive").compile()
    with pytest.raises(UnregisteredType, match=r"built\.<locals>\.Stop.*in a module"):
        engine.merge_branch(branch, "trip", graph=without_saver)
    engine.merge_branch(branch, "trip", graph=graph)
    stops = graph.get_state(config).values["stops"]
    assert [(type(stop).__name__, stop.city) for stop in stops] == [
        ("Stop", "city 1"),
        ("Stop", "city 2"),
        ("Stop", "city 2"),
    ]


def test_a_merge_follows_the_rules_of_the_graphs_saver() -> None:
    class Notes(BaseModel):
        text: str

    class State(BaseModel):
        notes: Annotated[list[Any], lambda old, new: old + new] = []

    def note(state: State) -> dict[str, Any]:
        return {"notes": [Notes(text=str(len(state.notes)))]}

    with HarnessCheckpointer(strict=True, allow=[Notes, State]) as allowed:
        builder = StateGraph(State).add_node(note).add_edge(START, "note")
        graph: Any = builder.compile(checkpointer=allowed)
        config: Any = {"configurable": {"thread_id": "t"}}
        graph.invoke({}, config)
        engine = allowed.engine.sync
        branch = engine.branch(graph.get_state(config).config["configurable"]["checkpoint_id"], "other")
        graph.invoke({}, {"configurable": {"thread_id": branch}})
        graph.invoke({}, config)

        strict = builder.compile(checkpointer=other(allowed, strict=True))
        with pytest.raises(UnregisteredType, match="Notes"):
            engine.merge_branch(branch, "t", graph=strict)
        engine.merge_branch(branch, "t", graph=graph)
        assert [item.text for item in graph.get_state(config).values["notes"]] == ["0", "1", "1"]


# -- the rest of what LangGraph expects --------------------------------------------------------------------------------


def test_counters_of_delta_channels_are_lists_as_with_the_stock_savers(saver: HarnessCheckpointer) -> None:
    config: Any = {"configurable": {"thread_id": "t"}}
    metadata = {"counters_since_delta_snapshot": {"messages": (2, 4)}, "pair": (1, 2)}
    saver.put(config, {"channel_values": {}}, metadata)

    found: Any = saver.get_tuple(config)
    assert found.metadata["counters_since_delta_snapshot"] == {"messages": [2, 4]}
    assert found.metadata["pair"] == (1, 2)


def test_the_error_of_a_serializer_can_be_caught_as_a_value_error() -> None:
    class Faulty(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            raise ValueError("faulty serializer")

    with HarnessCheckpointer(serde=Faulty()) as saver, pytest.raises(ValueError, match="faulty serializer"):
        put(saver, 1)
