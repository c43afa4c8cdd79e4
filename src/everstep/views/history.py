"""The history of a thread as rows with their lines: pages, filters, and what changed in each."""

from __future__ import annotations

import base64
import binascii
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from everstep.errors import CheckpointCorrupted, CheckpointNotFound, InvalidInput
from everstep.history.adapter import is_own
from everstep.history.ancestry import Ancestry, ancestry_of
from everstep.history.checkpoint_tree import Segments
from everstep.history.given_tags import NO_CHANGES
from everstep.history.labels import NO_LABELS
from everstep.repository.around_damage import readable
from everstep.repository.repository import Repository
from everstep.runtime import checks
from everstep.stores.protocol import Key, Loaded, Record, Stored
from everstep.timeline.labels import said_around
from everstep.views import rows as rows_of
from everstep.views import run_steps
from everstep.views.differences import Changed, changed_since_parent
from everstep.views.graph import Graph, needed_segments
from everstep.views.listing import Listing
from everstep.views.reading import head_of, last_messages, repository_of, written
from everstep.views.rows import DAMAGED, KINDS, NOTHING, Seen

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

LIMIT_MAX = 1000
SCANNED_MAX = 5000
"""Rows that a page looks at for those that a filter wants, before it says how far it came."""
# Each of them has to be compared with its parent, which reads values.
_SCANNED_BY_PATH_MAX = 400
_BATCH = 500
_IDS_MAX = 1000


class _Wanted(NamedTuple):
    """Which rows are asked for."""

    kinds: frozenset[str]
    text: str
    path: str

    @property
    def is_filter(self) -> bool:
        return bool(self.kinds or self.text or self.path)

    @property
    def scanned_max(self) -> int:
        """How many checkpoints are looked at for a page. To find out what changed takes longer."""
        if self.path:
            return _SCANNED_BY_PATH_MAX
        return SCANNED_MAX

    def admits(self, row: Mapping[str, Any], summary: str) -> bool:
        """Whether a row is one of them, as far as can be told without its changes."""
        if self.kinds and row["kind"] not in self.kinds:
            return False
        if not self.text:
            return True
        holders = (row["title"], summary, *row["tags"], row["id"], row["next_node"])
        return any(self.text in holder.casefold() for holder in holders)


async def page(
    engine: CheckpointEngine,
    thread_id: str,
    *,
    limit: int = 200,
    cursor: str | None = None,
    kinds: Iterable[str] = (),
    errors: bool = False,
    user_turns: bool = False,
    path: str | None = None,
    text: str | None = None,
    hidden: bool = False,
    branches: bool = True,
) -> dict[str, Any]:
    """Return the next rows of a thread and of its branches, newest first; `cursor` is that of the page before.

    `kinds`, `errors` (only those), `user_turns` (only those), `text` and `path` (`/plan`, `/plan/*` or `state.plan`:
    only where it changed) filter; a page with a filter may have few rows and still a cursor, if it looked at many.
    """
    thread_id = checks.thread_id(thread_id)
    limit = min(max(1, checks.count(limit, "limit")), LIMIT_MAX)
    wanted = _wanted(kinds, text, path, errors=errors, user_turns=user_turns)
    repository = repository_of(engine)
    begin = _unpack_cursor(cursor, wanted) if cursor is not None else None
    reader = await _opened(engine, repository, thread_id, begin, limit, hidden=hidden, branches=branches)
    return await _filled(reader, wanted, limit)


class Begin(NamedTuple):
    """Where a page begins: below which row, and with which lines."""

    seq: int
    lines: Any


async def page_from(
    engine: CheckpointEngine,
    thread_id: str,
    begin: Begin | None,
    passed: int,
    limit: int,
    *,
    hidden: bool = False,
    branches: bool = True,
) -> dict[str, Any]:
    """Return the rows that come so many rows after a place, without a filter; None is the top."""
    repository = repository_of(engine)
    count = passed + limit
    reader = await _opened(engine, repository, thread_id, begin, count, hidden=hidden, branches=branches)
    await reader.pass_over(passed)
    return await _filled(reader, _Wanted(frozenset(), "", ""), limit)


async def _opened(
    engine: CheckpointEngine,
    repository: Repository,
    thread_id: str,
    begin: Begin | None,
    count: int,
    *,
    hidden: bool,
    branches: bool,
) -> _Reader:
    listing = Listing(repository.store, thread_id, hidden=hidden, branches=branches)
    await listing.open(count, begin.seq if begin is not None else None)
    if not listing.exists:
        # This says that there is none, and which may be meant.
        await engine.resolve("@", thread_id=thread_id)
        raise CheckpointNotFound("@", thread_id)
    reader = _Reader(repository, thread_id, listing, Graph(listing.threads))
    if begin is None:
        await reader.keep_lane()
    else:
        reader.graph.restore(begin.lines)
    return reader


class _Reader:
    """Turns what is listed into rows."""

    def __init__(self, repository: Repository, thread_id: str, listing: Listing, graph: Graph) -> None:
        self.repository = repository
        self.thread_id = thread_id
        self.listing = listing
        self.graph = graph
        self._ancestry: Ancestry | None = None

    async def keep_lane(self) -> None:
        """Keep the first lane for the head of the thread that is looked at."""
        head = await head_of(self.repository.store, self.thread_id)
        if head is not None:
            self.graph.keep(head)

    async def pass_over(self, count: int) -> None:
        """Go past rows that are not asked for: only their lines count."""
        while count > 0:
            listed = await self.listing.take(min(count, _BATCH))
            segments = await self._segments(listed)
            for stored in listed:
                self.graph.place(stored, segments)
            if len(listed) < min(count, _BATCH):
                return
            count -= len(listed)

    async def described(self, listed: Sequence[Stored]) -> list[dict[str, Any]]:
        """Return rows without their place in the graph."""
        damage = self.listing.damage
        seen, trouble = await look(self.repository, [stored for stored in listed if stored.seq not in damage])
        self.listing.trouble = self.listing.trouble or trouble
        rows: list[dict[str, Any]] = []
        for stored in listed:
            known = seen.get(stored.record.key, NOTHING)
            if stored.seq in damage:
                row = rows_of.damaged_row(stored, damage[stored.seq], self.listing.heads, self.thread_id)
            else:
                row = rows_of.row_of(stored, known, self.listing.heads, self.thread_id)
            rows.append(row)
        return rows

    async def placed(self, listed: Sequence[Stored], rows: Sequence[dict[str, Any]]) -> None:
        """Give rows their lanes and edges."""
        segments = await self._segments(listed)
        for stored, row in zip(listed, rows, strict=True):
            row["lane"], row["edges"] = self.graph.place(stored, segments)
            for chip in row["chips"]:
                chip["lane"] = row["lane"]

    async def _segments(self, listed: Sequence[Stored]) -> Segments:
        """Return what the segments of these rows, and of the lines above them, follow."""
        # What cannot be read does not tell its family where it stands alone.
        families = [stored.family for stored in listed if stored.family]
        if self._ancestry is None and families:
            self._ancestry = ancestry_of(self.repository.store, families[0])
        if self._ancestry is None:
            return {}
        try:
            return await self._ancestry.walk(needed_segments(listed, self.graph.segments))
        except CheckpointCorrupted as exc:
            # The lines end where nobody knows on what they lead.
            self.listing.trouble = exc
            return {}


async def _filled(reader: _Reader, wanted: _Wanted, limit: int) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    looked = 0
    last: int | None = None
    is_over = False
    while len(rows) < limit and not is_over:
        count = limit - len(rows)
        if wanted.is_filter:
            count = min(_BATCH, wanted.scanned_max - looked)
        if count <= 0:
            break
        listed = await reader.listing.take(count)
        is_over = len(listed) < count
        described_rows = await reader.described(listed)
        chosen = await _chosen(reader, listed, described_rows, wanted, limit - len(rows))
        looked_at = chosen.looked_at
        is_over = is_over and looked_at == len(listed)
        looked += looked_at
        counts.update(row["kind"] for row in described_rows[:looked_at])
        await reader.placed(chosen.listed, chosen.rows)
        rows += chosen.rows
        if looked_at:
            last = listed[looked_at - 1].seq
    if reader.listing.trouble is not None and rows and all(row["kind"] == DAMAGED for row in rows):
        # What is in the way of all of them is told once: rows that say nothing else would only be in the way, too.
        raise reader.listing.trouble
    # Rows that fill the page do not tell whether others follow. With a filter the next page may turn out empty.
    if not is_over and not wanted.is_filter:
        is_over = not await reader.listing.take(1)
    cursor = None
    if last is not None and not is_over:
        cursor = _pack_cursor(last, reader.graph, wanted)
    return {
        "thread_id": reader.thread_id,
        "rows": rows,
        "cursor": cursor,
        "total": reader.listing.total,
        "counts": {kind: counts[kind] for kind in KINDS if counts[kind]},
        "hidden_by_filter": looked - len(rows),
        "lanes": max(1, reader.graph.width),
        "damage": rows_of.damage_as_json(reader.listing.trouble),
    }


class _Chosen(NamedTuple):
    listed: list[Stored]
    rows: list[dict[str, Any]]
    looked_at: int


async def _chosen(
    reader: _Reader, listed: Sequence[Stored], rows: Sequence[dict[str, Any]], wanted: _Wanted, limit: int
) -> _Chosen:
    """Return the rows that a filter lets through, up to a limit, and how many were looked at for that."""
    if not wanted.is_filter:
        return _Chosen(list(listed), list(rows), len(listed))
    found = _Chosen([], [], 0)
    changes: Mapping[Key, Changed] = {}
    if wanted.path:
        readable_rows = [(stored, row) for stored, row in zip(listed, rows, strict=True) if row["kind"] != DAMAGED]
        admitted = [stored for stored, row in readable_rows if wanted.admits(row, "")]
        changes = await changed_since_parent(reader.repository, admitted)
    looked_at = 0
    for stored, row in zip(listed, rows, strict=True):
        if len(found.rows) == limit:
            break
        looked_at += 1
        change = changes.get(stored.record.key)
        has_changed = not wanted.path or (change is not None and change.touches(wanted.path))
        if has_changed and wanted.admits(row, stored.record.summary):
            found.listed.append(stored)
            found.rows.append(row)
    return found._replace(looked_at=looked_at)


def _wanted(kinds: Iterable[str], text: str | None, path: str | None, *, errors: bool, user_turns: bool) -> _Wanted:
    if isinstance(kinds, str):
        raise InvalidInput(f"kinds is a list of kinds; write [{kinds!r}] for the one you mean")
    chosen = set(kinds)
    unknown = [kind for kind in chosen if kind not in KINDS]
    if unknown:
        raise InvalidInput(f"a kind is one of {', '.join(KINDS)}, not {checks.shown(unknown[0])}")
    if errors:
        chosen.update(("error", DAMAGED))
    if user_turns:
        chosen.add("input")
    return _Wanted(frozenset(chosen), (text or "").casefold(), path or "")


# -- cursors


def _pack_cursor(last: int, graph: Graph, wanted: _Wanted) -> str:
    packed = json.dumps({"v": 1, "s": last, "l": graph.state, "f": wanted.is_filter}, separators=(",", ":"))
    return base64.urlsafe_b64encode(packed.encode()).decode().rstrip("=")


def _unpack_cursor(cursor: str, wanted: _Wanted) -> Begin:
    try:
        found = json.loads(base64.urlsafe_b64decode(checks.kind(cursor, str, "cursor") + "=="))
        is_ours = isinstance(found, dict) and found["v"] == 1 and isinstance(found["l"], list)
        # The lines below a filtered page are other ones, so a cursor is good only for the same kind of page.
        if not is_ours or found["f"] != wanted.is_filter:
            raise ValueError("not a cursor of this page")
        return Begin(checks.count(found["s"], "cursor"), found["l"])
    except (ValueError, KeyError, RecursionError, binascii.Error) as exc:
        raise InvalidInput("cursor is not one that a page of this history gave; begin without one") from exc


# -- what is known besides the records


class Looked(NamedTuple):
    """What is known of checkpoints besides their records: what a tool is called, which nodes ran, and so on."""

    seen: dict[Key, Seen]
    trouble: CheckpointCorrupted | None
    """Why what was said about them cannot be read: names, notes and tags that were given later."""


async def look(repository: Repository, listed: Sequence[Stored]) -> Looked:
    """Return what is known of checkpoints besides their records."""
    graphs = [stored for stored in listed if not is_own(stored.record.kind)]
    tools = [stored.record.key for stored in listed if rows_of.needs_message(stored)]
    found: dict[Key, Seen] = {}
    if tools:
        found = await _look_at_tools(repository, tools)
    found |= await _look_at_runs(repository, listed)
    if graphs:
        found |= await _look_at_graphs(repository, graphs)
    keys = {stored.record.key for stored in listed}
    # A row is of use without its note, too.
    said, trouble = await said_around(repository.store, {key.thread_id for key in keys})
    for key in keys:
        labels = said.labels.get(key.thread_id, NO_LABELS)
        if key in said.tags or key in said.notes or labels != NO_LABELS:
            found[key] = found.get(key, NOTHING)._replace(
                tag_changes=said.tags.get(key, NO_CHANGES), note=said.notes.get(key, ""), labels=labels
            )
    return Looked(found, trouble)


async def _look_at_tools(repository: Repository, keys: Sequence[Key]) -> dict[Key, Seen]:
    """Return the newest messages of checkpoints."""
    found = await readable(repository.store, keys)
    said = await _messages(repository, {key: loaded.stored for key, loaded in found.loaded.items()})
    seen = {key: Seen(damage=damage) for key, damage in {**found.damage, **said.damage}.items()}
    return seen | {key: Seen(message=message) for key, message in said.messages.items()}


class _Messages(NamedTuple):
    messages: Mapping[Key, Any]
    damage: Mapping[Key, CheckpointCorrupted]


async def _messages(repository: Repository, stored: Mapping[Key, Stored]) -> _Messages:
    """Return the newest message of each checkpoint, around those that cannot be read."""
    try:
        return _Messages(await last_messages(repository, stored), {})
    except CheckpointCorrupted:
        # One of them is damaged, and has spoiled the answer about all.
        pass
    found: dict[Key, Any] = {}
    damage: dict[Key, CheckpointCorrupted] = {}
    for key, each in stored.items():
        try:
            found |= await last_messages(repository, {key: each})
        except CheckpointCorrupted as exc:
            damage[key] = exc.located(key.thread_id, key.checkpoint_id)
    return _Messages(found, damage)


async def _look_at_runs(repository: Repository, listed: Sequence[Stored]) -> dict[Key, Seen]:
    """Return which questions of durable runs are open, and which were answered."""
    found: dict[Key, Seen] = {}
    open_keys: dict[str, set[str]] = {}
    for stored in listed:
        record = stored.record
        asked = [each for each in run_steps.entries_of(record) if each["op"] == "ask"]
        if not asked:
            continue
        thread_id = record.key.thread_id
        if thread_id not in open_keys:
            open_keys[thread_id] = await _open_keys(repository, thread_id)
        waiting = [each for each in asked if run_steps.text_of(each, "key") in open_keys[thread_id]]
        if waiting:
            found[record.key] = Seen(question=run_steps.text_of(waiting[0], "question"))
        else:
            found[record.key] = Seen(was_asked=True)
    return found


async def _open_keys(repository: Repository, thread_id: str) -> set[str]:
    """Return the keys of what a durable run waits for now."""
    head = await head_of(repository.store, thread_id)
    if head is None:
        return set()
    return {run_steps.text_of(wait, "key") for wait in run_steps.waits_of(head.record)}


async def _look_at_graphs(repository: Repository, graphs: Sequence[Stored]) -> dict[Key, Seen]:
    keys = [stored.record.key for stored in graphs]
    parents: set[Key] = set()
    for stored in graphs:
        parents.update(stored.record.parents[:1])
    # One read for all of them: what a graph did is told by the writes of the checkpoint before.
    asked = [*keys, *sorted(parents.difference(keys))]
    loaded, damage = await readable(repository.store, asked, writes=True)
    there = [key for key in keys if key in loaded]
    spoken: dict[Key, Stored] = {}
    for key in there:
        if _has_new_message(loaded[key], loaded):
            spoken[key] = loaded[key].stored
    said = await _messages(repository, spoken)
    damage = {**damage, **said.damage}
    found: dict[Key, Seen] = {}
    for key in there:
        try:
            found[key] = await _seen(repository, loaded[key], loaded, said.messages.get(key))
        except CheckpointCorrupted as exc:
            damage[key] = exc.located(key.thread_id, key.checkpoint_id)
    for key in keys:
        if key in damage:
            found[key] = found.get(key, NOTHING)._replace(damage=damage[key])
    return found


def _parent(record: Record, loaded: Mapping[Key, Loaded]) -> Loaded | None:
    """Return the first parent of a checkpoint, if it has one that is stored."""
    if not record.parents:
        return None
    return loaded.get(record.parents[0])


def _has_new_message(found: Loaded, loaded: Mapping[Key, Loaded]) -> bool:
    """Whether the conversation is not the size that it was before."""
    record = found.stored.record
    before = _parent(record, loaded)
    if before is None:
        return bool(record.sizes) and record.sizes[0] > 1
    return before.stored.record.sizes[:1] != record.sizes[:1]


async def _seen(repository: Repository, found: Loaded, loaded: Mapping[Key, Loaded], message: Any) -> Seen:
    record = found.stored.record
    before = _parent(record, loaded)
    is_merge_or_branch = bool(record.tags)
    ran: Sequence[str] = ()
    if before is not None and not is_merge_or_branch:
        ran = rows_of.nodes_of(before.writes)
    noted = record.metadata.get("writes")
    if not ran and isinstance(noted, dict):
        ran = [name for name in noted if isinstance(name, str)]
    seen = await look_at_pending(repository, found)
    return seen._replace(ran=ran, message=message)


async def look_at_pending(repository: Repository, found: Loaded) -> Seen:
    """Return what the pending writes of a graph's checkpoint tell: what it asks for, and what failed."""
    family = found.stored.family
    pending = rows_of.pending_of(found.writes)
    question: str | None = None
    if pending.question is not None:
        question = rows_of.question_text(await written(repository, family, pending.question))
    failure: str | None = None
    if pending.failure is not None:
        value = await written(repository, family, pending.failure)
        node = rows_of.nodes_of([pending.failure._replace(idx=0)])
        failure = f"{', '.join(node) or 'A step'} failed: {rows_of.failure_text(value)}"
    return Seen((), question, pending.was_asked, failure, pending.was_retried)


# -- what changed


async def changed(engine: CheckpointEngine, thread_id: str, ids: Collection[str]) -> dict[str, Any]:
    """Return what changed in each of these rows, which are named by id or reference, against its first parent."""
    thread_id = checks.thread_id(thread_id)
    if isinstance(ids, str) or len(ids) > _IDS_MAX:
        raise InvalidInput(f"ids is a list of at most {_IDS_MAX} ids of rows")
    repository = repository_of(engine)
    names = {name: _key(thread_id, checks.text(name, "id")) for name in ids}
    there = await readable(repository.store, list(dict.fromkeys(names.values())))
    stored = {key: loaded.stored for key, loaded in there.loaded.items()}
    for name, key in names.items():
        if key not in stored and key not in there.damage:
            # A name that is no exact key may still be a reference, a short id or a tag.
            names[name], stored_there = await _found(engine, repository, thread_id, name)
            if stored_there is not None:
                stored[names[name]] = stored_there
    changes = await changed_since_parent(repository, list(stored.values()))
    return {name: changes[key].as_json() for name, key in names.items() if key in changes}


def _key(thread_id: str, name: str) -> Key:
    """Return what a row's id or reference most likely names."""
    if name.startswith(f"{thread_id}@"):
        return Key(thread_id, "", name.removeprefix(f"{thread_id}@"))
    thread, sign, ident = name.rpartition("@")
    if sign and thread and ident:
        return Key(thread, "", ident)
    return Key(thread_id, "", name)


async def _found(
    engine: CheckpointEngine, repository: Repository, thread_id: str, name: str
) -> tuple[Key, Stored | None]:
    try:
        found = await engine.resolve(name, thread_id=thread_id)
    except (CheckpointNotFound, InvalidInput, CheckpointCorrupted):
        return Key(thread_id, "", name), None
    key = Key(found.thread_id, found.namespace, found.checkpoint_id)
    loaded = (await readable(repository.store, [key])).loaded.get(key)
    return key, loaded.stored if loaded is not None else None
