"""What LangGraph passes in, checked at the door: configs, metadata, and what of them must not be kept."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from everstep.errors import InvalidInput
from everstep.runtime import checks

REQUEST_ID = "everstep_request_id"
"""Under this name the checkpoints of a turn have the name that the caller of `send` gave to it."""

# Of LangGraph's own: they say where a checkpoint is, not what it is about.
_PLACES = frozenset(
    (
        "thread_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map", "langgraph_step", "langgraph_node",
        "langgraph_triggers", "langgraph_path", "langgraph_checkpoint_ns",
    )
)  # fmt: skip

# What is a secret is told by the words of its name, never by a part of a word: `secretary` and `tokenizer` are none.
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\dA-Za-z_]+")
_ALWAYS = frozenset(
    (
        "secret", "secrets", "password", "passwords", "passwd", "passphrase", "passcode", "pwd", "credential",
        "credentials", "authorization", "bearer", "jwt", "apikey", "apikeys", "accesskey", "privatekey", "dsn",
        "connectionstring", "connstring", "connstr", "webhook",
    )
)  # fmt: skip
"""A name with one of these words is that of a secret."""
_ENDINGS = ("password", "passwd", "passphrase", "secret", "apikey", "accesskey", "privatekey")
"""Words that are written together with others: `dbpassword`."""
_LAST = frozenset(
    ("token", "key", "auth", "oauth", "cookie", "cookies", "pass", "pw", "pat", "otp", "pem")
)  # fmt: skip
"""A name that ends with one of these is that of a secret, unless the word before says otherwise."""
_HARMLESS_BEFORE = {
    "key": frozenset(
        (
            "primary", "foreign", "public", "partition", "sort", "cache", "thread", "session", "row", "group",
            "unique", "hash", "idempotency", "routing", "lookup", "map", "dict", "object", "index", "state",
            "message", "messages", "input", "output", "result", "results", "store", "memory", "config", "checkpoint",
            "channel", "node", "feature", "translation", "shard", "order", "join", "search", "query", "context",
            "document", "item", "tenant", "customer", "project", "issue", "natural", "composite", "metadata",
            "bucket",
        )
    ),
    "token": frozenset(
        ("eos", "bos", "pad", "stop", "unk", "mask", "sep", "cls", "start", "end", "first", "last", "per")
    ),
    "pass": frozenset(("first", "second", "single", "multi", "one", "two", "is", "did", "test", "tests", "forward")),
}  # fmt: skip
_KEYS = frozenset(("api", "access", "private", "secret", "encryption", "signing", "ssh", "master", "service"))
"""Before `key` and `keys` anywhere: `aws_access_key_id`, `api_keys`."""
_TOKENS = frozenset(("api", "access", "refresh", "auth", "bearer", "session", "id"))
"""Before `tokens`, which are counted elsewhere: `max_tokens`."""
_STORES = frozenset(
    (
        "db", "database", "postgres", "postgresql", "pg", "redis", "valkey", "mongo", "mongodb", "mysql", "mariadb",
        "sqlalchemy", "broker", "amqp", "rabbitmq", "celery", "jdbc", "odbc", "store", "connection", "conn",
    )
)  # fmt: skip
"""Before `url`, `uri` and `string`: an address with a login in it."""
_ADDRESSES = frozenset(("url", "uri", "string", "str"))
_TRAILING = frozenset(("value", "plaintext", "raw"))


COUNTERS = "counters_since_delta_snapshot"
"""The key under which LangGraph counts the updates of delta channels in the metadata."""


@functools.lru_cache(256)  # the same few names come with every checkpoint
def is_secret(name: str) -> bool:
    """Whether a name in `configurable` looks like that of a secret: it is not kept with the metadata."""
    words = [word.lower() for word in _WORDS.findall(name)]
    while len(words) > 1 and words[-1] in _TRAILING:
        words.pop()
    for word in words:
        if word in _ALWAYS or word.endswith(_ENDINGS):
            return True
    if any(_is_secret_pair(*pair) for pair in itertools.pairwise(words)):
        return True
    return _has_secret_ending(words)


def _has_secret_ending(words: Sequence[str]) -> bool:
    # A bare `key` does not say what it opens: most are keys of dictionaries.
    if not words or words == ["key"]:
        return False
    last = words[-1]
    # `accesstoken` is written as one word.
    if last.endswith("token"):
        last = "token"
    if last not in _LAST:
        return False
    return len(words) == 1 or words[-2] not in _HARMLESS_BEFORE.get(last, ())


def _is_secret_pair(first: str, second: str) -> bool:
    if second in ("key", "keys"):
        return first in _KEYS
    if second == "tokens":
        return first in _TOKENS
    if second in ("header", "headers"):
        return first in ("auth", "oauth")
    return second in _ADDRESSES and first in _STORES


def configurable(config: object, what: str = "config") -> Mapping[str, Any]:
    """Return the part of a config that names checkpoints."""
    inner = config.get("configurable") if isinstance(config, (dict, Mapping)) else None
    if not isinstance(inner, (dict, Mapping)):
        raise InvalidInput(
            f'{what} is a dict like {{"configurable": {{"thread_id": "..."}}}}, not {checks.shown(config)}'
        )
    return inner


def thread_id(inner: Mapping[str, Any]) -> str:
    """Return the thread a config names; numbers and UUIDs are taken as text."""
    value = inner.get("thread_id")
    if value is None:
        raise InvalidInput('the config names no thread; pass {"configurable": {"thread_id": "..."}}')
    return checks.thread_id(_as_text(value))


def namespace(inner: Mapping[str, Any]) -> str:
    """Return the namespace a config names; the graph's own is ""."""
    value = inner.get("checkpoint_ns")
    if value is None:
        return ""
    return checks.namespace(value)


def checkpoint_id(inner: Mapping[str, Any]) -> str | None:
    """Return the checkpoint a config names, if it names one."""
    value = inner.get("checkpoint_id")
    if value is None or value == "":
        return None
    return checks.checkpoint_id(_as_text(value))


def _as_text(value: Any) -> str:
    # A subclass of str stays as it is: the check that follows has its own say on it.
    if isinstance(value, str):
        return value
    return str(value)


def place_of(config: object) -> tuple[str, str, str | None]:
    """Return the thread, the namespace and the checkpoint (None: the head) that a config names."""
    inner = config.get("configurable") if type(config) is dict else None
    if type(inner) is not dict:
        inner = configurable(config)
    thread = inner.get("thread_id")
    ns = inner.get("checkpoint_ns")
    checkpoint = inner.get("checkpoint_id")
    if not (type(thread) is str and thread.isascii() and 0 < len(thread) <= checks.THREAD_ID_BYTES_MAX):
        thread = thread_id(inner)
    if ns is None:
        ns = ""
    elif ns or type(ns) is not str:
        ns = checks.namespace(ns)
    if not (type(checkpoint) is str and checkpoint.isascii() and 0 < len(checkpoint) <= checks.CHECKPOINT_ID_BYTES_MAX):
        checkpoint = checkpoint_id(inner)
    return thread, ns, checkpoint


def config_of(thread: str, ns: str, checkpoint: str) -> dict[str, Any]:
    """Return the config that names a checkpoint."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint}}


def check_mappings(**given: object) -> None:
    """Refuse what is neither a mapping nor None, by its name."""
    for name, value in given.items():
        if value is not None and type(value) is not dict and not isinstance(value, Mapping):
            raise InvalidInput(f"{name} is a dict, not {type(value).__name__}")


def pairs(writes: object) -> list[tuple[str, Any]]:
    """Return a task's writes, each a channel and a value."""
    found: list[Any] = [writes]
    # Strings and mappings can be iterated over, too, but are no lists of writes.
    if type(writes) is list or (isinstance(writes, Iterable) and not isinstance(writes, (str, Mapping))):
        found = list(writes)
    for pair in found:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InvalidInput(f"writes is a list of (channel, value), not {checks.shown(writes)}")
    return [(checks.text(channel, "the name of a channel"), value) for channel, value in found]


def metadata_of(config: Mapping[str, Any], metadata: Any, hides: Callable[[str], bool]) -> dict[str, Any]:
    """Return the metadata to keep: what was given, and the scalars of the config, but for secrets."""
    if type(metadata) is not dict:
        if hasattr(metadata, "model_dump"):
            # Its fields as they are, so that objects in them are refused as in a dict.
            metadata = dict(metadata)
        check_mappings(metadata=metadata)
    kept: dict[str, Any] = {}
    for key, value in (metadata or {}).items():
        if not isinstance(key, str):
            raise InvalidInput("the keys of metadata are strings")
        # Most values need no cleaning, and this runs for every checkpoint.
        is_clean = type(value) in _AS_THEY_ARE or (type(value) is str and "\x00" not in value)
        kept[key] = value if is_clean else _clean(value)
    counters = kept.get(COUNTERS)
    if counters is not None and isinstance(counters, Mapping):
        kept[COUNTERS] = _with_lists(counters)
    for part in (config.get("metadata"), config.get("configurable")):
        # One that says nothing but where a checkpoint is has nothing to add.
        if part is not None and not (type(part) is dict and _PLACES.issuperset(part)):
            _add_scalars(kept, part, hides)
    return kept


def _with_lists(counters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counters of delta channels as LangGraph's own savers give them back: its pairs as lists."""
    found: dict[str, Any] = {}
    for name, pair in counters.items():
        if type(pair) is tuple:
            pair = list(pair)
        found[name] = pair
    return found


def _add_scalars(kept: dict[str, Any], part: Any, hides: Callable[[str], bool]) -> None:
    """Add what a part of a config says of a run. What `kept` has already wins."""
    if not isinstance(part, (dict, Mapping)):
        return
    for key in part:
        if key in _PLACES or key in kept:
            continue
        # Looked up for few only: LangGraph's is a chain of mappings, which takes long.
        value = part[key]
        if isinstance(value, (str, int, float)) and _is_kept(key, hides):
            kept[key] = _clean(value)


def _is_kept(key: Any, hides: Callable[[str], bool]) -> bool:
    """Whether an entry of a config belongs to the metadata: not if it is LangGraph's own, or a secret."""
    if not isinstance(key, str) or key.startswith("__"):
        return False
    return key == REQUEST_ID or not hides(key)


_AS_THEY_ARE = (int, float, bool, type(None), dict, list)
"""Exactly these: `_clean` changes nothing of them."""


def _clean(value: Any) -> Any:
    # Without NUL, as with LangGraph's own savers; and without a subclass of a plain type.
    if isinstance(value, str):
        return str.__str__(value).replace("\x00", "")
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return value
