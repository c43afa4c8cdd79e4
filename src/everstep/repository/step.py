"""One save: its arguments checked, and the record they make once the parent is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from everstep.config import SnapshotTrigger, as_trigger
from everstep.errors import InvalidInput
from everstep.repository.new_names import new_token
from everstep.repository.repository import copied
from everstep.runtime import checks
from everstep.stores.protocol import Key, Record, Stored
from everstep.types import RUN_KIND, RUN_METADATA, CheckpointMetadata, utc_now


class Step:
    """The checked arguments of one snapshot or append."""

    def __init__(
        self,
        thread_id: str,
        namespace: str,
        trigger: SnapshotTrigger | str,
        next_node: str | None,
        tags: Iterable[str],
        summary: str | None,
        metadata: dict[str, Any] | None,
        messages: Sequence[Any],
        state: dict[str, Any],
        kind: str = "",
        metadata_after: Callable[[str | None], Mapping[str, Any]] | None = None,
    ) -> None:
        """`metadata_after` returns what is added to the metadata, given the id of the parent once that is known."""
        self._kind = kind
        self._metadata_after = metadata_after
        self.thread_id = checks.thread_id(thread_id)
        self.namespace = checks.namespace(namespace)
        self.trigger = as_trigger(trigger)
        if isinstance(tags, str) or not isinstance(tags, Iterable):
            raise InvalidInput("tags is a collection of strings; put the one you mean in a list")
        named = [checks.text(tag, "tag") for tag in tags]
        self._tags = tuple(dict.fromkeys([*named, self.trigger.value]))
        self._summary = checks.text(summary, "summary") if summary is not None else _summary(messages, state)
        self._next_node = checks.text(next_node, "next_node") if next_node is not None else None
        self._metadata = copied(checks.kind(metadata, dict, "metadata"), "metadata") if metadata is not None else {}
        self._created_at = utc_now()
        self._token = new_token()

    def make_new_id(self) -> None:
        """Take another id, since the one that was made is in use already."""
        self._token = new_token()

    def named(self, checkpoint_id: str) -> bool:
        """Whether a checkpoint has the name of this step, whichever number it got."""
        return checkpoint_id.rpartition("-")[2] == self._token

    def go_on_with(self, next_node: str) -> None:
        """Let execution continue there."""
        self._next_node = next_node

    def next_node(self, before: str) -> str:
        """Return where execution continues; None was given: where it did `before`."""
        return self._next_node if self._next_node is not None else before

    def record(self, parent: Stored | None) -> Record:
        """Return the record, without values, of the step that follows `parent`."""
        step = parent.record.step + 1 if parent is not None else 1
        return new_record(
            Key(self.thread_id, self.namespace, checkpoint_id(self.thread_id, step, self._token)),
            step,
            (parent.record.key,) if parent is not None else (),
            created_at=self._created_at,
            tags=self._tags,
            summary=self._summary,
            next_node=self.next_node(parent.record.next_node if parent is not None else ""),
            trigger=self.trigger.value,
            **self._kind_and_metadata(parent),
        )

    def _kind_and_metadata(self, parent: Stored | None) -> dict[str, Any]:
        if self._kind:
            return {"kind": self._kind, "metadata": self._metadata | self._added_after(parent)}
        carried = run_fields(parent.record) if parent is not None else {}
        return carried | {"metadata": carried.get("metadata", {}) | self._metadata}

    def _added_after(self, parent: Stored | None) -> dict[str, Any]:
        if self._metadata_after is None:
            return {}
        return dict(self._metadata_after(parent.record.key.checkpoint_id if parent is not None else None))

    def metadata(self, parent: CheckpointMetadata | None) -> CheckpointMetadata:
        """Return the same for a backend that takes whole checkpoints."""
        step = parent.step + 1 if parent is not None else 1
        return CheckpointMetadata(
            thread_id=self.thread_id,
            checkpoint_id=checkpoint_id(self.thread_id, step, self._token),
            step=step,
            parent_checkpoint_id=parent.checkpoint_id if parent is not None else None,
            created_at=self._created_at,
            tags=list(self._tags),
            summary=self._summary,
            namespace=self.namespace,
            trigger=self.trigger.value,
            metadata=dict(self._metadata),
        )


def checkpoint_id(thread_id: str, step: int, token: str | None = None) -> str:
    """Return a new id for a checkpoint of that step."""
    return f"ckpt-{thread_id}-{step}-{token or new_token()}"


def run_fields(before: Record) -> dict[str, Any]:
    """Return what a checkpoint takes over from the one before if that belongs to a durable run: that it does, too.

    Whoever writes it: retention then keeps it, and the run is found by the metadata of the thread's head.
    """
    if before.kind != RUN_KIND:
        return {"kind": before.kind} if before.kind else {}
    carried = {name: before.metadata[name] for name in RUN_METADATA if name in before.metadata}
    return {"kind": RUN_KIND, "metadata": carried}


def new_record(key: Key, step: int, parents: tuple[Key, ...], **fields: Any) -> Record:
    """Return a record whose values are still to be filled in."""
    if "created_at" not in fields:
        fields["created_at"] = utc_now()
    return Record(key=key, step=step, parents=parents, children=b"", body=b"", sizes=(), **fields)


def check_values(messages: object, state: object, tools_result: object) -> None:
    """Refuse what cannot be the values of a checkpoint."""
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence):
        raise InvalidInput(f"messages is a list, not {type(messages).__name__}")
    check_messages(messages)
    checks.kind(state, dict, "state")
    checks.kind(tools_result, dict, "tools_result")


def check_messages(messages: Sequence[object]) -> None:
    """Refuse a conversation with something in it that is no message: a message is a mapping."""
    if set(map(type, messages)) <= {dict}:  # quick, as a conversation may be long
        return
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            advice = ""
            if hasattr(message, "model_dump"):
                advice = "; an object of a framework becomes one by its model_dump()"
            raise InvalidInput(
                f"messages[{index}] is a dict, such as {{'role': 'user', 'content': 'hello'}}, not "
                f"{type(message).__name__}{advice}"
            )


def _summary(messages: Sequence[Any], state: dict[str, Any]) -> str:
    """Return `[role] first 100 characters` of the last message, or `State: N keys`."""
    last = messages[-1] if messages else None
    if not isinstance(last, dict):
        return f"State: {len(state)} keys"
    content = last.get("content", "")
    role = last.get("role", "?")
    text = content if isinstance(content, str) else _plain_text(content)
    role = role if isinstance(role, str) else checks.shown(role)
    # A lone surrogate is fine in a value, but a summary is text that every store can hold.
    return f"[{role[:40]}] {text[:100]}".encode("utf-8", "replace").decode()


def _plain_text(content: Any) -> str:
    """Return the text of content that comes in blocks."""
    if not isinstance(content, (list, tuple)):
        return "" if content is None else checks.shown(content)
    texts: list[str] = []
    for block in content:
        text = block.get("text") if isinstance(block, dict) else block
        if isinstance(text, str) and text:
            texts.append(text)
    return " ".join(texts)
