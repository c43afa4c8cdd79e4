"""What an endpoint may be told: declared once, read by the server and written into the OpenAPI document."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from everstep.errors import InvalidInput

TEXT_CHARS_MAX = 4096
QUERY_FIELDS_MAX = 300
MANY_MAX = 250
# Deeper values cannot be stored; and what reads them may call itself for each level.
BODY_DEPTH_MAX = 400
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One thing that an endpoint may be told, in its query or as a field of its JSON body."""

    name: str
    about: str
    required: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """Return what the OpenAPI document says of it."""
        raise NotImplementedError

    @property
    def default(self) -> Any:
        """Return what it is where it was left out."""
        return None

    def from_query(self, given: Sequence[str]) -> Any:
        """Return the value of a query in which it stands once."""
        if len(given) != 1:
            raise InvalidInput(f"{self.name} is given {len(given)} times; give it once")
        return self.from_text(given[0])

    def from_text(self, text: str) -> Any:
        """Return the value that a text stands for."""
        raise NotImplementedError

    def from_json(self, value: Any) -> Any:
        """Return the value of a field of a body."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Text(Parameter):
    """A text, perhaps one of a few."""

    choices: tuple[str, ...] = ()
    can_be_empty: bool = True
    chars_max: int = TEXT_CHARS_MAX

    @property
    def schema(self) -> dict[str, Any]:
        if self.choices:
            return {"type": "string", "enum": list(self.choices)}
        shortest = 0 if self.can_be_empty else 1
        return {"type": "string", "minLength": shortest, "maxLength": self.chars_max}

    def from_text(self, text: str) -> str:
        if self.choices and text not in self.choices:
            raise InvalidInput(f"{self.name} is one of {', '.join(self.choices)}")
        if not text and not self.can_be_empty:
            raise InvalidInput(f"{self.name} is empty")
        if len(text) > self.chars_max:
            raise InvalidInput(f"{self.name} has {len(text):,} characters; at most {self.chars_max:,} are read")
        return text

    def from_json(self, value: Any) -> str:
        if not isinstance(value, str):
            raise InvalidInput(f"{self.name} is a text")
        return self.from_text(value)


@dataclass(frozen=True, kw_only=True)
class Whole(Parameter):
    """A whole number in a range."""

    least: int = 0
    most: int = 2**53 - 1
    unless_given: int | None = None

    @property
    def schema(self) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "integer", "minimum": self.least, "maximum": self.most}
        if self.unless_given is not None:
            found["default"] = self.unless_given
        return found

    @property
    def default(self) -> int | None:
        return self.unless_given

    def from_text(self, text: str) -> int:
        if not _WHOLE.fullmatch(text):
            raise InvalidInput(f"{self.name} is a whole number")
        return self.from_json(int(text))

    def from_json(self, value: Any) -> int:
        # True is a number to Python, and a mistake here.
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidInput(f"{self.name} is a whole number")
        if not self.least <= value <= self.most:
            raise InvalidInput(f"{self.name} is between {self.least:,} and {self.most:,}")
        return value


@dataclass(frozen=True, kw_only=True)
class Flag(Parameter):
    """Yes or no."""

    unless_given: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "boolean", "default": self.unless_given}

    @property
    def default(self) -> bool:
        return self.unless_given

    def from_text(self, text: str) -> bool:
        if text not in _FLAGS:
            raise InvalidInput(f"{self.name} is true or false")
        return _FLAGS[text]

    def from_json(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise InvalidInput(f"{self.name} is true or false")
        return value


@dataclass(frozen=True, kw_only=True)
class Many(Parameter):
    """Several texts: the parameter may be repeated."""

    choices: tuple[str, ...] = ()
    most: int = MANY_MAX

    @property
    def one(self) -> Text:
        """Return what each of them is."""
        return Text(name=self.name, about="", choices=self.choices, can_be_empty=False)

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.one.schema, "maxItems": self.most, "minItems": int(self.required)}

    @property
    def default(self) -> tuple[str, ...]:
        return ()

    def from_query(self, given: Sequence[str]) -> tuple[str, ...]:
        if len(given) > self.most:
            raise InvalidInput(f"{self.name} is given {len(given)} times; at most {self.most} are read")
        return tuple([self.one.from_text(text) for text in given])

    def from_json(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise InvalidInput(f"{self.name} is a list")
        return self.from_query([self.one.from_json(item) for item in value])


@dataclass(frozen=True, kw_only=True)
class Json(Parameter):
    """Any JSON of the given type; only in a body."""

    type: str | None = None
    more: dict[str, Any] | None = None
    """Further words of its schema."""

    @property
    def schema(self) -> dict[str, Any]:
        found: dict[str, Any] = {} if self.type is None else {"type": self.type}
        return found | (self.more or {})

    def from_json(self, value: Any) -> Any:
        kind: Any = {"object": dict, "array": list, None: object}[self.type]
        if not isinstance(value, kind):
            raise InvalidInput(f"{self.name} is a JSON {self.type}")
        return value


def read_query(parameters: Sequence[Parameter], query: bytes) -> dict[str, Any]:
    """Return the values of a query by name, with defaults where they were left out."""
    try:
        text = query.decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX, errors="strict")
    except ValueError as exc:
        raise InvalidInput(f"this query cannot be read, or has more than {QUERY_FIELDS_MAX} fields") from exc
    given: dict[str, list[str]] = {}
    for name, value in pairs:
        given.setdefault(name, []).append(value)
    return _values(parameters, given, lambda parameter, texts: parameter.from_query(texts))


def read_body(parameters: Sequence[Parameter], body: bytes) -> dict[str, Any]:
    """Return the fields of a JSON body by name, with defaults where they were left out."""
    try:
        # NaN and Infinity are no JSON, though Python reads them.
        given = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise InvalidInput("the body is not JSON") from exc
    if not isinstance(given, dict):
        raise InvalidInput("the body is a JSON object")
    if _is_deeper(given, BODY_DEPTH_MAX):
        raise InvalidInput(f"the body is nested more than {BODY_DEPTH_MAX} levels deep")
    return _values(parameters, given, lambda parameter, value: parameter.from_json(value))


def _values(
    parameters: Sequence[Parameter], given: Mapping[str, Any], read: Callable[[Parameter, Any], Any]
) -> dict[str, Any]:
    """Return what each parameter is, by its name."""
    _refuse_unknown(parameters, given)
    values: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.name in given:
            values[parameter.name] = read(parameter, given[parameter.name])
        elif parameter.required:
            raise InvalidInput(f"{parameter.name} is missing: {parameter.about}")
        else:
            values[parameter.name] = parameter.default
    return values


def _refuse_unknown(parameters: Sequence[Parameter], given: Mapping[str, Any]) -> None:
    known = [parameter.name for parameter in parameters]
    for name in given:
        if name not in known:
            raise InvalidInput(f"{name[:80]!r} is not known here; known are {', '.join(known) or 'no parameters'}")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _is_deeper(value: Any, depth: int) -> bool:
    level = [value]
    # Level by level and not by recursion, which a deep body could exhaust.
    for _ in range(depth):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        if not below:
            return False
        level = below
    return True
