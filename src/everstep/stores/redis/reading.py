"""What the store reads, each as one method: checkpoints, objects, lists, threads."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar

from everstep.errors import CheckpointCorrupted, EverstepError
from everstep.stores.facts import Wanted, prefix_end
from everstep.stores.heads import SeenHead
from everstep.stores.newest import NewestLine, newest, visible
from everstep.stores.protocol import (
    Hidden,
    Hit,
    Key,
    Loaded,
    Newest,
    Object,
    Operation,
    Outline,
    Place,
    Position,
    Query,
    RawLine,
    RawThread,
    Search,
    Stored,
    Thread,
    Write,
)
from everstep.stores.records import packed_filter, unpack_origin
from everstep.stores.redis.calls import Calls, KnownHead, bucket_of_family
from everstep.stores.redis.items import (
    line_name,
    line_of,
    pairs,
    raw_writes,
    unpack_hidden,
    unpack_item,
    unpack_log,
    unpack_objects,
    unpack_segment,
    unpack_shared_states,
    unpack_writes,
)
from everstep.stores.redis.lists import ListRow, is_asked_for, listed, number, page_rows, range_of
from everstep.stores.redis.plan import LineState

T = TypeVar("T")

_PAGE = 200
# Buckets that are asked for threads first, and how many more each time.
_ASKED_MIN, _ASKED_GROWTH = 64, 8
# How the number of threads grows that are looked at once, and up to what.
_FOUND_GROWTH, _FOUND_MAX = 4, 1000
_SCORE_MAX = 1 << 53


class Reading(Calls):
    """What is read, blocking."""

    def load(
        self, thread_id: str, namespace: str, checkpoint_id: str | None, objects: bool, writes: bool
    ) -> Loaded | None:
        line = thread_id, namespace
        since = self._heads.get(line)
        which = ("head", "")
        if checkpoint_id is not None:
            which = ("id", checkpoint_id)
        found = self._ask("load", thread_id, namespace, *which, int(objects), int(writes))
        if found is None:
            self._check_absent(line, since)
            return None
        return self._read(line, *found, since, is_head=checkpoint_id is None)

    def _read(
        self,
        line: tuple[str, str],
        bucket: int,
        reply: Sequence[Any],
        since: SeenHead[KnownHead] | None,
        *,
        is_head: bool,
    ) -> Loaded | None:
        """Return a checkpoint that the script gave, and note it if it is the head."""
        loaded = next(self._loaded(line, reply, since), None)
        if loaded is None:
            return None
        if is_head:
            raw = reply[2]
            head = loaded.stored._replace(hidden=False)
            known = KnownHead(bucket, raw, head) if not LineState(raw).head_was_moved else None
            self._heads.note(line, head.family, loaded.generation, known, since, head.seq)
        return loaded._replace(objects=unpack_objects(reply[4]))

    def load_many(self, keys: Sequence[Key], writes: bool) -> list[Loaded]:
        since = {key[:2]: self._heads.get(key[:2]) for key in keys}
        calls = list(_by_line(keys, int(writes)))
        found: dict[Key, Loaded] = {}
        for call, reply in zip(calls, self._ask_many("load_many", calls), strict=True):
            line = call[0], call[1]
            if reply is None:
                self._check_absent(line, since[line])
            else:
                for loaded in self._loaded(line, reply, since[line]):
                    found[loaded.stored.record.key] = loaded
        return [found[key] for key in keys if key in found]

    def _loaded(
        self, line: tuple[str, str], reply: Sequence[Any], since: SeenHead[KnownHead] | None
    ) -> Iterator[Loaded]:
        """Yield the checkpoints of a line that a script gave, their objects left aside."""
        if len(reply) == 1:
            self._check_absent(line, since)
            return
        family = reply[1].decode()
        state = LineState(reply[2])
        self._check_seen(line, family, state.generation, since)
        for name, seq, item, pinned, attached, hidden, hidden_writes in reply[3]:
            key = Key(*line, name.decode())
            stored = unpack_item(item, key, number(seq), family, pinned=pinned == b"1", hidden=hidden == b"1")
            if key.checkpoint_id == state.checkpoint_id:
                state.check(stored)
            writes = unpack_writes(key.checkpoint_id, attached, hidden_writes)
            yield Loaded(stored, state.generation, (), writes)

    # -- what was seen and is not there any more

    def about_thread(self, thread_id: str | None, work: Callable[[Self], T]) -> T:
        """Read something about a thread. If there is nothing, and there was something before, look for a loss."""
        seen = self._heads.any_of(thread_id) if thread_id is not None else None
        try:
            found = work(self)
        except (ValueError, TypeError, LookupError) as exc:
            if isinstance(exc, EverstepError) or thread_id is None:
                raise
            # No number, no text, no pair: whatever was written there was something else.
            raise CheckpointCorrupted(
                f"what the server keeps of it cannot be read: {exc}", thread_id=thread_id
            ) from exc
        if found or thread_id is None or seen is None:
            return found
        namespace, since = seen
        line = thread_id, namespace
        fields: dict[bytes, bytes] = {}
        looked = self._ask("look", *line)
        if looked is not None:
            fields = dict(pairs(looked[1][1]))
        raw = fields.get(b"@" + namespace.encode())
        if raw is None:
            self._check_absent(line, since)
        else:
            self._check_seen(line, fields[b"family"].decode(), LineState(raw).generation, since)
        return found

    def _check_absent(self, line: tuple[str, str], since: SeenHead[KnownHead] | None) -> None:
        self._check_seen(line, None, 0, since)
        self._heads.forget(line)

    def _check_seen(
        self, line: tuple[str, str], family: str | None, generation: int, since: SeenHead[KnownHead] | None
    ) -> None:
        """Raise HeadRegressed if the server lost what was seen of a line; without a family the line is not there."""

        def was_deleted(seen: SeenHead[KnownHead]) -> bool:
            asked = line[0], seen.family, seen.generation, seen.seq
            return bool(self._call(bucket_of_family(seen.family), "vanished", *asked) != b"lost")

        self._heads.check(line, family, generation, since, was_deleted)

    def find(self, checkpoint_id: str) -> list[Key]:
        keys = []
        for _, found in self._everywhere("find", checkpoint_id):
            for line, item in pairs(found):
                keys.append(Key(*line_of(line), checkpoint_id))
                # A damaged one is not passed over: this raises.
                unpack_item(item, keys[-1], 0, "", whole=False)
        if not keys:
            for _, names in self._everywhere("search", checkpoint_id):
                for name in names:
                    raise CheckpointCorrupted(
                        "the index of ids does not have a checkpoint that its thread has",
                        thread_id=name.decode(), checkpoint_id=checkpoint_id,
                    )  # fmt: skip
        return keys

    def below(self, family: str, hashes: Collection[bytes]) -> list[Object]:
        return self._fetch(family, hashes, is_below_wanted=True)

    def shallow(self, family: str, hashes: Collection[bytes]) -> list[Object]:
        return self._fetch(family, hashes, is_below_wanted=False)

    def _fetch(self, family: str, hashes: Collection[bytes], *, is_below_wanted: bool) -> list[Object]:
        bucket = bucket_of_family(family)
        return unpack_objects(self._call(bucket, "fetch", family, int(is_below_wanted), len(hashes), *hashes))

    def fetch_many(self, wanted: Mapping[str, Collection[bytes]]) -> list[Object]:
        calls: list[tuple[int, tuple[Any, ...]]] = []
        for family, keys in wanted.items():
            calls.append((bucket_of_family(family), (family, 1, len(keys), *keys)))
        found: list[Object] = []
        for reply in self._call_many("fetch", calls):
            found += unpack_objects(reply)
        return found

    def present(self, thread_ids: Sequence[str]) -> set[str]:
        calls = [(name, "") for name in thread_ids]
        replies = self._ask_many("look", calls)
        return {name for name, reply in zip(thread_ids, replies, strict=True) if reply is not None}

    def heads(self, lines: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        calls = [(name, namespace, "head", "", 0, 0) for name, namespace in lines]
        found: dict[tuple[str, str], str] = {}
        for line, reply in zip(lines, self._ask_many("load", calls), strict=True):
            if reply is not None and reply[0] == b"found":
                found[line] = reply[3][0][0].decode()
        return found

    def list_checkpoints(self, query: Query) -> list[Stored]:
        return list(map(listed, self._rows(query)))

    def clock(self) -> float:
        """Return the time of the server; of a cluster, of one of them."""
        seconds: bytes = self._call(0, "clock")[1]
        return float(seconds)

    def count(self, query: Query) -> int:
        # What the server can count by itself; everything else has to be looked at row by row.
        simple = Query(
            thread_id=query.thread_id, namespace=query.namespace, before_seq=query.before_seq,
            after_seq=query.after_seq, order=query.order, hidden=query.hidden,
        )  # fmt: skip
        counted: int | None = None
        if query == simple and query.thread_id is not None and query.hidden != "only":
            counted = self._counted(query, query.thread_id)
        if counted is None:
            counted = len(self._rows(query))
        return counted

    def _counted(self, query: Query, thread_id: str) -> int | None:
        """Return the count of the server; None: it does not count where segments are hidden as a whole."""
        total = 0
        for name in self._namespaces(query, thread_id):
            found = self._ask("count", thread_id, name, *range_of(query), int(query.hidden == "no"))
            if found is None:
                continue
            _, reply = found
            if reply[0] != b"found":
                return None
            total += int(reply[1])
        return total

    def _namespaces(self, query: Query, thread_id: str) -> Collection[str]:
        if query.namespace is not None:
            return [query.namespace]
        thread = self.thread(thread_id, branches=False, ancestry=False, brief=False)
        if thread is None:
            return ()
        return thread.newest

    def _rows(self, query: Query) -> list[ListRow]:
        """Return what a query asks for."""
        wanted = packed_filter(query.filter)
        limit = query.limit + query.offset if query.limit is not None else None
        if limit == 0:
            return []
        chosen: list[ListRow] = []
        for row in self._ordered(query):
            if is_asked_for(query, row, wanted):
                chosen.append(row)
                if len(chosen) == limit:
                    break
        return chosen[query.offset :]

    def _ordered(self, query: Query) -> Iterator[ListRow]:
        """Yield the checkpoints of a query's threads and namespaces in its order, a page at a time."""
        if query.checkpoint_id is not None:
            yield from self._of_id(query, query.checkpoint_id)
            return
        if query.thread_id is not None and query.order != "id":
            names = self._namespaces(query, query.thread_id)
            pages = [self._paged(query, query.thread_id, name) for name in names]
            # Each namespace comes in order, so that they can be merged page by page.
            yield from heapq.merge(*pages, key=lambda row: row.seq, reverse=query.order != "oldest")
            return
        # No index has the order of ids, and none has several threads: all names are read, then the rows page by page.
        every = self._sorted_keys(query)
        first = 0
        size = _first_page(query)
        while first < len(every):
            keys = every[first : first + size]
            rows = {row.key: row for row in self._items(keys)}
            yield from (rows[key] for key in keys if key in rows)
            first = first + size
            size = _PAGE

    def _sorted_keys(self, query: Query) -> list[Key]:
        """Return the names of all checkpoints of a query's threads and namespaces, in its order."""
        if query.thread_id is None:
            names = self._names()
        else:
            names = [query.thread_id]
        found: list[tuple[str, int, Key]] = []
        for thread_id, reply in zip(names, self._ask_many("index", [(name,) for name in names]), strict=True):
            if reply is None:
                continue
            for key, seq in _indexed(thread_id, reply[1]):
                if query.namespace is not None and key.namespace != query.namespace:
                    continue
                if query.before_id is not None and key.checkpoint_id >= query.before_id:
                    continue
                order_id = key.checkpoint_id if query.order == "id" else ""
                found.append((order_id, seq, key))
        found.sort(reverse=query.order != "oldest")
        return [key for _, _, key in found]

    def _of_id(self, query: Query, checkpoint_id: str) -> list[ListRow]:
        """Return the checkpoints of that id in a query's threads and namespaces, in its order."""
        if query.thread_id is None:
            keys = [key for key in self.find(checkpoint_id) if query.namespace in (None, key.namespace)]
        else:
            names = self._namespaces(query, query.thread_id)
            keys = [Key(query.thread_id, name, checkpoint_id) for name in names]
        return sorted(self._items(keys), key=lambda row: row.seq, reverse=query.order != "oldest")

    def _paged(self, query: Query, thread_id: str, namespace: str) -> Iterator[ListRow]:
        low, high = range_of(query)
        size = _first_page(query)
        while True:
            is_visible = int(query.hidden == "no")
            found = self._ask("page", thread_id, namespace, query.order, low, high, size, is_visible)
            if found is None:
                return
            rows = page_rows(thread_id, namespace, found[1])
            yield from rows
            if len(rows) < size:
                return
            size = _PAGE
            if query.order == "oldest":
                low = f"({rows[-1].seq}"
            else:
                high = f"({rows[-1].seq}"

    def _items(self, keys: Sequence[Key]) -> Iterator[ListRow]:
        calls = list(_by_line(keys))
        for call, reply in zip(calls, self._ask_many("items", calls), strict=True):
            if reply is not None:
                yield from page_rows(call[0], call[1], reply)

    def _names(self) -> list[str]:
        found: list[str] = []
        for _, names in self._everywhere("names"):
            found += [name.decode() for name in names]
        return found

    def list_threads(self, limit: int, offset: int, headless: bool) -> list[Stored]:
        if not limit:
            return []
        found: list[Any] = []
        for _, rows in self._everywhere("threads", limit + offset, int(headless)):
            found += rows
        newest = heapq.nlargest(limit + offset, found, key=lambda row: float(row[0]))[offset:]
        return [_listed_thread(row) for row in newest]

    def search(self, search: Search) -> list[Hit]:
        wanted = Wanted.of(search)
        found: list[Hit] = []
        after = search.after
        count = search.limit
        while len(found) < search.limit:
            places, after = self._places(search, wanted, after, count)
            for start in range(0, len(places), search.limit):
                found += self._shown(places[start : start + search.limit], wanted)
                if len(found) >= search.limit:
                    break
            if after is None:
                break
            count = min(count * _FOUND_GROWTH, _FOUND_MAX)
        return found[: search.limit]

    def _places(
        self, search: Search, wanted: Wanted, after: Position | None, count: int
    ) -> tuple[list[tuple[int, Position]], Position | None]:
        """Return the next threads that a search may be about, each with its bucket, and where to go on, if anywhere.

        Each bucket gives its first one. As many as are wanted come no later than the last of the best of these, so
        only the buckets that these are in are asked for more, up to there.
        """
        first, is_all = self._first_places(search, wanted, after, count)
        end: Position | None = None
        buckets = list(first)
        active_min = 0
        if len(first) > count or not is_all:
            end = sorted(first.values(), reverse=True)[:count][-1]
            buckets = [bucket for bucket, position in first.items() if position >= end]
            active_min = end.active
        arguments = _found_arguments(search, wanted, after, count, active_min)
        found: list[tuple[int, Position]] = []
        for bucket, flat in self._in_each(buckets, "found", *arguments):
            own = _positions(flat)
            found += [(bucket, position) for position in own]
            # A bucket that may have more: threads that come after its last one cannot be put in order yet.
            if len(own) == count and (end is None or own[-1] > end):
                end = own[-1]
        found.sort(key=lambda each: each[1], reverse=True)
        if end is None:
            return found, None
        return [each for each in found if each[1] >= end], end

    def _first_places(
        self, search: Search, wanted: Wanted, after: Position | None, count: int
    ) -> tuple[dict[int, Position], bool]:
        """Return the first thread of each bucket that a search may be about, and whether all buckets were asked.

        Those with the latest activity are asked first: as soon as enough threads are found that were active later than
        any of the other buckets, these have nothing that comes before them.
        """
        arguments = _found_arguments(search, wanted, after, 1, 0)
        last: dict[int, int] = {}
        for bucket, time_of_last in self._in_each(self._buckets(), "last", *arguments):
            if time_of_last:
                last[bucket] = int(float(time_of_last))
        order = sorted(last, key=last.__getitem__, reverse=True)
        first: dict[int, Position] = {}
        start = 0
        size = max(count, _ASKED_MIN)
        while start < len(order):
            for bucket, flat in self._in_each(order[start : start + size], "found", *arguments):
                for position in _positions(flat):
                    first[bucket] = position
            start += size
            size *= _ASKED_GROWTH
            if len(first) >= count and start < len(order):
                worst = sorted(first.values(), reverse=True)[count - 1]
                if worst.active > last[order[start]]:
                    return first, False
        return first, True

    def _shown(self, places: Sequence[tuple[int, Position]], wanted: Wanted) -> list[Hit]:
        """Return those of these threads that fit, as they are listed."""
        names: dict[int, list[str]] = {}
        for bucket, position in places:
            names.setdefault(bucket, []).append(position.thread_id)
        rows = self._shown_rows(names)
        found: list[Hit] = []
        for _, position in places:
            row = rows.get(position.thread_id)
            # It has writes only, is hidden, or has gone meanwhile.
            if row is None:
                continue
            try:
                stored = _listed_thread(row)
            except CheckpointCorrupted as exc:
                found.append(Hit(None, position, exc.located(position.thread_id, None)))
                continue
            if wanted.fits(stored.record):
                found.append(Hit(stored, position))
        return found

    def _shown_rows(self, names: Mapping[int, Sequence[str]]) -> dict[str, Any]:
        """Return what threads are listed by, whose names are given by bucket."""
        try:
            calls = [(bucket, (len(some), *some)) for bucket, some in names.items()]
            replies = list(self._call_many("shown", calls))
        except CheckpointCorrupted:
            # One of them is damaged, and has spoiled the answer about all: each is asked for by itself.
            replies = []
            for bucket, some in names.items():
                replies += [self._shown_alone(bucket, name) for name in some]
        rows: dict[str, Any] = {}
        for reply in replies:
            for row in reply:
                rows[row[1].decode()] = row
        return rows

    def _shown_alone(self, bucket: int, name: str) -> Any:
        """Return what `shown` answers for one thread; that it is damaged, if it cannot answer for that."""
        try:
            return self._call(bucket, "shown", 1, name)
        except CheckpointCorrupted as exc:
            return [(b"0", name.encode(), b"", (b"damaged", exc.reason.encode()))]

    def started(self, thread_id: str, namespace: str, after: int) -> list[int]:
        found = self._ask("line_segments", thread_id, namespace, after)
        return sorted(map(int, found[1][1])) if found is not None else []

    def thread(self, thread_id: str, branches: bool, ancestry: bool, brief: bool) -> Thread | None:
        found = self._ask("thread", thread_id, int(branches), int(brief))
        if found is None:
            return None
        flat, newest, stretches, segments, shared_states, protected, born, live, doomed = found[1][1:]
        fields = dict(pairs(flat))
        hidden: dict[int, list[Hidden]] = {}
        for stretch in map(unpack_hidden, stretches):
            hidden.setdefault(stretch.operation, []).append(stretch)
        prefix = line_name(thread_id, "").encode()
        own_segments: dict[int, tuple[Place, ...]] = {}
        all_segments: dict[int, tuple[Place, ...]] = {}
        for segment, line, follows in _segments_in(segments):
            if line.startswith(prefix):
                own_segments[segment] = follows
            if ancestry:
                all_segments[segment] = follows
        return Thread(
            thread_id,
            fields[b"family"].decode(),
            _origin_of(fields, thread_id),
            _heads_of(fields),
            {name.decode(): number(seq) for name, seq in pairs(newest)},
            hidden,
            own_segments,
            all_segments,
            _branches_of(thread_id, born),
            unpack_shared_states(shared_states, thread_id),
            frozenset(map(number, protected)),
            int(doomed) / max(int(live), 1),
        )

    def segments(self, family: str, segments: Collection[int], older: int) -> dict[int, tuple[Place, ...]]:
        if not segments:
            return {}
        flat = self._call(bucket_of_family(family), "segments", family, older, len(segments), *segments)
        return {segment: follows for segment, _, follows in _segments_in(flat)}

    def newest(self, thread_id: str, limit: int, branches: bool, without: str | None) -> Newest | None:
        found = self._ask("family_lines", thread_id, int(branches))
        if found is None:
            return None
        born: dict[str, list[str]] = {}
        lines: list[NewestLine] = []
        for name, origin, is_hiding, flat in found[1][1]:
            own = name.decode()
            if origin:
                born.setdefault(unpack_origin(origin, own).thread_id, []).append(own)
            for line in flat:
                lines.append(_newest_line(own, line, is_hiding=is_hiding == 1))
        return newest(thread_id, limit, without, born, lines, self._newest_rows, partial(visible, self.count))

    def _newest_rows(self, lines: Sequence[NewestLine], after: int, limit: int) -> list[Stored]:
        plain = [line for line in lines if not line.is_hiding]
        calls = [(line.thread_id, line.namespace, "seq", f"({after}", "+inf", limit, 0) for line in plain]
        found: list[Stored] = []
        for line, reply in zip(plain, self._ask_many("page", calls), strict=True):
            if reply is not None:
                found += map(listed, page_rows(line.thread_id, line.namespace, reply))
        for line in lines:
            if line.is_hiding:
                query = Query(thread_id=line.thread_id, namespace=line.namespace, after_seq=after, limit=limit)
                found += self.list_checkpoints(query)
        return found

    def outlines(self, _position: int) -> tuple[list[Outline], int | None]:
        # All at once.
        found = []
        for _, rows in self._everywhere("outlines"):
            for name, family, most, has_log, is_swept in rows:
                found.append(Outline(name.decode(), family.decode(), most, bool(has_log), is_swept == b"2"))
        return found, None

    def operations(self, thread_id: str, limit: int) -> list[Operation]:
        found = self._ask("log", thread_id, limit)
        if found is None:
            return []
        return _operations_in(found[1][1])

    def logs(self, thread_ids: Sequence[str], limit: int) -> dict[str, list[Operation]]:
        found: dict[str, list[Operation]] = {}
        replies = self._ask_many("log", [(name, limit) for name in thread_ids])
        for name, reply in zip(thread_ids, replies, strict=True):
            found[name] = _operations_in(reply[1]) if reply is not None else []
        return found

    def origins(self, thread_id: str) -> dict[str, Key]:
        found = self._ask("thread", thread_id, 1, 1)
        if found is None:
            return {}
        born = found[1][1:][6]
        return _origins_of(born)

    def raw(self, thread_id: str, family_threads: bool) -> RawThread | None:
        found = self._ask("raw", thread_id, int(family_threads))
        if found is None:
            return None
        flat, newest, stretches, log, attached, segments, shared_states, pins, began, active, names = found[1][1:]
        fields = dict(pairs(flat))
        last = dict(pairs(newest))
        owners: dict[bytes, set[int]] = {}
        for segment, line, _ in _segments_in(segments):
            owners.setdefault(line, set()).add(segment)
        lines: dict[str, RawLine] = {}
        for name, state in _states_of(fields):
            head = state.checkpoint_id if state.digest is not None else None
            own = frozenset(owners.get(line_name(thread_id, name).encode(), ()))
            highest = number(last[name.encode()])
            lines[name] = RawLine(head, state.head_was_moved, state.generation, number(active), own, highest)
        writes: list[tuple[Key, Write]] = []
        for namespace, checkpoint_id, held in attached:
            key = Key(thread_id, namespace.decode(), checkpoint_id.decode())
            for write in raw_writes(key.checkpoint_id, held):
                writes.append((key, write))
        return RawThread(
            thread_id,
            fields[b"family"].decode(),
            self._identity() + fields[b"family"],
            lines,
            _origin_of(fields, thread_id),
            number(began),
            frozenset(map(number, pins)),
            list(map(unpack_hidden, stretches)),
            sorted(_operations_in(log), key=lambda operation: operation.seq),
            sorted(writes, key=lambda each: each[1].seq),
            unpack_shared_states(shared_states, thread_id),
            fields.get(b"note", b""),
            [name.decode() for name in names],
        )

    def _identity(self) -> bytes:
        return self._send(self._prefix + b"identity", b"GET") or b""

    def _family_of(self, thread_id: str) -> bytes | None:
        found = self._ask("look", thread_id, "")
        return dict(pairs(found[1][1])).get(b"family") if found is not None else None


def _listed_thread(row: Sequence[Any]) -> Stored:
    """Return what a thread is listed by; raise if it is damaged."""
    _, name, namespace, reply = row
    if reply[0] == b"damaged":
        raise CheckpointCorrupted(reply[1].decode(errors="replace"), thread_id=name.decode())
    return listed(page_rows(name.decode(), namespace.decode(), reply)[0])


def _by_line(keys: Sequence[Key], *args: Any) -> Iterator[tuple[str, *tuple[Any, ...]]]:
    """Yield what to ask about these: thread, namespace, `args`, and ids, not too many at once."""
    lines: dict[tuple[str, str], dict[str, None]] = {}
    for key in keys:
        lines.setdefault(key[:2], {})[key.checkpoint_id] = None
    for line, names in lines.items():
        ids = list(names)
        for first in range(0, len(ids), _PAGE):
            part = ids[first : first + _PAGE]
            yield *line, *args, len(part), *part


def _first_page(query: Query) -> int:
    return min(max(query.limit + query.offset, 1), _PAGE) if query.limit is not None else _PAGE


def _found_arguments(search: Search, wanted: Wanted, after: Position | None, count: int, since: int) -> tuple[Any, ...]:
    """Return what the script takes that finds threads: those before a place, and not active before `since`."""
    place = after or Position(_SCORE_MAX, "")
    labels = itertools.chain(*wanted.labels)
    end = prefix_end(search.prefix) or ""
    since = max(search.since or 0, since)
    return search.prefix, end, since, *place, count, len(wanted.labels), *labels


def _segments_in(flat: Sequence[bytes]) -> Iterator[tuple[int, bytes, tuple[Place, ...]]]:
    """Yield the segments that the script found, each with its line and with what it follows."""
    for text, value in pairs(flat):
        segment = int(text)
        line, follows = unpack_segment(segment, value)
        yield segment, line, follows


def _operations_in(flat: Sequence[bytes]) -> list[Operation]:
    """Return the entries of a log that the script found."""
    return [unpack_log(value, int(seq)) for seq, value in pairs(flat)]


def _positions(flat: Sequence[bytes]) -> list[Position]:
    """Return the places of threads that the script found."""
    return [Position(int(float(active)), name.decode()) for active, name in pairs(flat)]


def _indexed(thread_id: str, flat: Sequence[Any]) -> Iterator[tuple[Key, int]]:
    """Yield the checkpoints of a thread that the script found, each with its number."""
    for namespace, held in pairs(flat):
        for checkpoint_id, seq in pairs(held):
            yield Key(thread_id, namespace.decode(), checkpoint_id.decode()), number(seq)


def _states_of(fields: Mapping[bytes, bytes]) -> Iterator[tuple[str, LineState]]:
    """Yield the namespaces that the fields of a thread tell of, each with its state."""
    for field, raw in fields.items():
        if field.startswith(b"@"):
            yield field[1:].decode(), LineState(raw)


def _heads_of(fields: Mapping[bytes, bytes]) -> dict[str, tuple[str, int]]:
    """Return by namespace the head and the generation; one without a digest has no head."""
    found: dict[str, tuple[str, int]] = {}
    for namespace, state in _states_of(fields):
        if state.digest is not None:
            found[namespace] = state.checkpoint_id, state.generation
    return found


def _origin_of(fields: Mapping[bytes, bytes], thread_id: str) -> Key | None:
    origin = fields.get(b"origin")
    return unpack_origin(origin, thread_id) if origin is not None else None


def _branches_of(thread_id: str, born: Iterable[Any]) -> list[str]:
    """Return the threads that began in a thread, the oldest first; `born` has the branches of the whole family."""
    return [name for name, origin in _origins_of(born).items() if origin.thread_id == thread_id]


def _origins_of(born: Iterable[Any]) -> dict[str, Key]:
    """Return where branches began, the oldest first."""
    found: dict[str, Key] = {}
    for _, name, origin in sorted(born, key=lambda row: int(row[0])):
        found[name.decode()] = unpack_origin(origin, name.decode())
    return found


def _newest_line(thread_id: str, row: Sequence[Any], *, is_hiding: bool) -> NewestLine:
    name, raw, last, total = row
    namespace = name.decode()
    state = LineState(raw)
    head = Key(thread_id, namespace, state.checkpoint_id) if state.digest is not None else None
    return NewestLine(thread_id, namespace, head, number(last or b"0"), total, is_hiding)
