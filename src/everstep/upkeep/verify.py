"""Looks at all that a store holds: `engine.verify`.

First the store looks at its own tables, if it can (`stores/inspection.py`). Then every thread is read through the
methods that readers use, family by family, and what was read must fit together (`relations`). Last come the objects:
each is fetched once, its bytes must give its hash, and its children must be there.

A finding does not end anything. Others may write meanwhile, so a family with findings is looked at again, and only what
is found each time is told.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from itertools import chain
from typing import TypeAlias

from everstep.errors import CheckpointCorrupted, HeadRegressed
from everstep.reports import Finding, UpkeepProgress, VerifyReport
from everstep.stores.inspection import Checking, ReadsEntries, finding_about, not_found_by
from everstep.stores.protocol import Hit, Object, Position, Query, RawThread, Search, Store
from everstep.upkeep.looking import DAMAGE, Look, finding_of, look_at
from everstep.upkeep.relations import family_findings, thread_findings
from everstep.values import compress, tree

Progress: TypeAlias = Callable[[UpkeepProgress], None]
# How often a family with findings is looked at before they are told: others may be writing.
_LOOKS = 3
# How often a thread is read that others write to, until it stays the same meanwhile.
_STEADY_TRIES = 4
_OBJECTS_AT_ONCE = 500


async def verify(store: Store, thread_id: str | None, progress: Progress | None = None) -> VerifyReport:
    """Return what is wrong with a thread and its objects, or (None) with the whole store."""
    return await _Verifier(store, thread_id, progress).run()


class _Verifier:
    def __init__(self, store: Store, thread_id: str | None, progress: Progress | None) -> None:
        self._store = store
        self._only = thread_id
        self._progress = progress
        self._report = VerifyReport()
        self._total = 0

    async def run(self) -> VerifyReport:
        self._tell("tables")
        # First of all: some stores put indexes right when they are asked.
        tables = await self._table_findings()
        names = await self._names()
        self._total = len(names)
        seen: set[str] = set()
        for name in names:
            if name not in seen:
                seen |= await self._verify_family(name, seen)
        if self._only is None:
            self._add(await self._unlisted(names))
        self._add(tables)
        if not self._report.ok:
            # Where threads could not be read, this was not found on the way.
            unfound = await self._unfound()
            self._add([finding for finding in unfound if finding not in self._report.findings])
        self._tell("threads")
        return self._report

    def _add(self, findings: Collection[Finding]) -> None:
        known = set(map(_subject, self._report.findings))
        # What is in the way of every checkpoint of a thread is met at each of them.
        for finding in dict.fromkeys(findings):
            is_of_others = bool(finding.threads) and self._only not in finding.threads
            if self._only is not None and is_of_others:
                continue
            # One thing may be met in several ways, and is told once. Each index is a thing of its own.
            if finding.kind == "index" or _subject(finding) not in known:
                self._report.findings.append(finding)

    async def _names(self) -> list[str]:
        if self._only is not None:
            return [self._only]
        found: dict[str, None] = {}
        if isinstance(self._store, Checking):
            try:
                found |= dict.fromkeys(await self._store.thread_names())
            except DAMAGE as exc:
                self._add([finding_of(exc, "thread", None)])
        position: int | None = 0
        while position is not None:
            try:
                page, position = await self._store.outlines(position)
            except DAMAGE as exc:
                self._add([finding_of(exc, "thread", None)])
                break
            for outline in page:
                found[outline.thread_id] = None
        return list(found)

    async def _table_findings(self) -> list[Finding]:
        if not isinstance(self._store, Checking):
            return []
        try:
            return await self._store.check_tables()
        except (CheckpointCorrupted, HeadRegressed) as exc:
            return [finding_of(exc, "file", None)]

    async def _unfound(self) -> list[Finding]:
        if not isinstance(self._store, ReadsEntries):
            return []
        try:
            return await self._store.check_found_by()
        except DAMAGE:
            # It is told already.
            return []

    # -- a family

    async def _verify_family(self, name: str, seen: Collection[str]) -> set[str]:
        """Look at the family of a thread, and return the threads that were looked at."""
        family = await Family.read(self._store, name, seen)
        findings = await family.findings()
        for _ in range(_LOOKS - 1):
            if not findings:
                break
            again = await Family.read(self._store, name, seen)
            found = set(map(_identity, await again.findings()))
            findings = [finding for finding in findings if _identity(finding) in found]
        self._report.threads += len(family.looks)
        self._report.objects += family.objects
        self._report.bytes += family.bytes
        for look in family.looks.values():
            self._report.checkpoints += len(look.entries)
            self._report.bytes += look.bytes
        self._add(findings)
        self._tell("threads")
        return set(family.looks)

    async def _unlisted(self, names: Sequence[str]) -> list[Finding]:
        """Threads that are there must be found by those who look for any, and those that are found must be there."""
        found: list[Finding] = []
        known = set(self._report.damaged_threads)
        listed: set[str] = set()
        try:
            async for hit in self._hits():
                name = hit.position.thread_id
                listed.add(name)
                if hit.damage is not None and name not in known:
                    found.append(finding_of(hit.damage, "thread", None))
        except DAMAGE as exc:
            damaged = finding_of(exc, "thread", None)
            if damaged.thread_id not in known:
                found.append(damaged)
            # The rest cannot be listed, so nothing is known about it.
            return found
        for name in names:
            if name not in listed and await self._is_unlisted(name):
                found.append(finding_about("index", "it is not listed among the threads", name))
        for name in sorted(listed - set(names), key=str):
            if await self._is_empty(name):
                found.append(finding_about("index", "it is listed, and is not there", name))
        return found

    async def _hits(self) -> AsyncIterator[Hit]:
        """Yield all threads as those see them who look for any."""
        after: Position | None = None
        while page := await self._store.search(Search(limit=_OBJECTS_AT_ONCE, after=after)):
            for hit in page:
                yield hit
            after = page[-1].position

    async def _is_unlisted(self, name: str) -> bool:
        """Look again: whether a thread with a head is not found by its name."""
        try:
            thread = await self._store.thread(name, brief=True)
            return bool(thread is not None and thread.heads) and name not in await self._listed_like(name)
        except DAMAGE:
            # It is told already.
            return False

    async def _listed_like(self, name: str) -> set[str]:
        found = await self._store.search(Search(prefix=name, limit=100))
        return {hit.position.thread_id for hit in found}

    async def _is_empty(self, name: str) -> bool:
        """Look again: whether nothing is there of a thread that is listed."""
        try:
            count = await self._store.count(Query(thread_id=name, namespace=None, hidden="also"))
            return count == 0 and name in await self._listed_like(name)
        except DAMAGE:
            # It is told already: the tables hold what is no name.
            return False

    def _tell(self, doing: str) -> None:
        if self._progress is not None:
            report = self._report
            total = max(self._total, report.threads)
            self._progress(UpkeepProgress(doing, report.threads, total, report.checkpoints, report.bytes))


def _identity(finding: Finding) -> tuple[str, str, str | None, str | None]:
    return finding.kind, finding.what, finding.thread_id, finding.checkpoint_id


def _subject(finding: Finding) -> tuple[str, str | None, str | None]:
    """Return what a finding is about, whatever it says of it."""
    return finding.kind, finding.thread_id, finding.checkpoint_id


class Family:
    """The threads of a family as they were read."""

    def __init__(self, store: Store, looks: dict[str, Look]) -> None:
        self._store = store
        self.looks = looks
        self.objects = self.bytes = 0
        self.tainted: set[bytes] = set()
        """Objects that are damaged or missing, and all that lead to them."""

    def raws(self) -> dict[str, RawThread]:
        """Return its threads, as far as they can be read."""
        return {name: look.raw for name, look in self.looks.items() if look.raw is not None}

    @classmethod
    async def read(cls, store: Store, name: str, seen: Collection[str]) -> Family:
        looks: dict[str, Look] = {}
        pending = [name]
        while pending:
            each = pending.pop()
            if each in looks or each in seen:
                continue
            look = await _steady(store, each)
            if look.raw is None and not look.findings:
                # It is gone.
                continue
            looks[each] = look
            if look.raw is not None:
                pending += [other for other in look.raw.family_threads if other not in looks]
        return cls(store, looks)

    async def findings(self) -> list[Finding]:
        found: list[Finding] = []
        by_family: dict[str, list[Look]] = {}
        for look in self.looks.values():
            found += look.findings
            found += map(not_found_by, look.not_found_by)
            if look.family is not None:
                by_family.setdefault(look.family, []).append(look)
        for look in self.looks.values():
            found += thread_findings(look)
            found += await self._count_findings(look)
        found += family_findings(self.looks)
        # One family, unless damage has torn it apart: then each part has objects of its own.
        for family, looks in by_family.items():
            walk = _Walk(self._store, family, looks)
            found += await walk.findings()
            self.objects += walk.objects
            self.bytes += walk.bytes
            self.tainted |= walk.tainted()
        return found

    async def _count_findings(self, look: Look) -> list[Finding]:
        if look.raw is None or not look.is_steady or look.findings:
            return []
        name = look.thread_id
        try:
            count = await self._store.count(Query(thread_id=name, namespace=None, hidden="also"))
        except DAMAGE as exc:
            return [finding_of(exc, "thread", name)]
        if count == len(look.entries):
            return []
        what = f"{len(look.entries)} checkpoints are listed, and {count} are counted"
        return [finding_about("index", what, name)]


async def _steady(store: Store, name: str) -> Look:
    """Return a thread as of one moment, if others let us."""
    look = await look_at(store, name)
    for _ in range(_STEADY_TRIES - 1):
        if look.is_steady or look.raw is None or look.thread is None:
            break
        look = await look_at(store, name)
    return look


class _Walk:
    """Goes through the objects of a family from the roots that its threads have."""

    def __init__(self, store: Store, family: str, looks: Sequence[Look]) -> None:
        self._store = store
        self._family = family
        self._looks = looks
        self._children: dict[bytes, bytes] = {}
        self._bad: dict[bytes, str] = {}
        self.objects = self.bytes = 0

    async def findings(self) -> list[Finding]:
        met: set[bytes] = set()
        for look in self._looks:
            met.update(tree.hashes(_together(roots_of(look))))
        pending = list(met)
        while pending:
            batch = pending[-_OBJECTS_AT_ONCE:]
            del pending[-_OBJECTS_AT_ONCE:]
            for key, children in await self._look_at(batch):
                self._children[key] = children
                fresh = [child for child in tree.hashes(children) if child not in met]
                met.update(fresh)
                pending += dict.fromkeys(fresh)
        found: list[Finding] = []
        for key, what in self._bad.items():
            found += self._touched(key, what)
        return found

    async def _look_at(self, batch: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        try:
            found = await self._store.fetch(self._family, batch, below=False)
        except DAMAGE:
            found = await self._fetch_one_by_one(batch)
        self._check(found)
        if len(found) < len(batch):
            there = {obj.hash for obj in found}
            for key in batch:
                if key not in there:
                    self._bad.setdefault(key, "is missing")
        return [(obj.hash, obj.children) for obj in found if obj.children and obj.hash not in self._bad]

    async def _fetch_one_by_one(self, batch: Sequence[bytes]) -> list[Object]:
        found: list[Object] = []
        for key in batch:
            try:
                found += await self._store.fetch(self._family, [key], below=False)
            except DAMAGE as exc:
                self._bad[key] = getattr(exc, "reason", str(exc))
        return found

    def _check(self, found: Sequence[Object]) -> None:
        """Count objects, and take note of those that are not what their hash says."""
        self.objects += len(found)
        # One flipped bit of a row makes a number or a text of bytes.
        if not set(map(type, chain.from_iterable(found))) <= {bytes}:
            found = self._without_other_types(found)
        self.bytes += sum([len(children) + len(body) for _, children, body in found])
        self._check_hashes(found)

    def _without_other_types(self, found: Sequence[Object]) -> list[Object]:
        """Return the objects that are stored as bytes, and take note of the others."""
        of_bytes: list[Object] = []
        for obj in found:
            if type(obj.children) is type(obj.body) is bytes:
                of_bytes.append(obj)
            else:
                self._bad[obj.hash] = "is stored as something else than bytes"
        return of_bytes

    def _check_hashes(self, found: Sequence[Object]) -> None:
        try:
            bodies = compress.expand_all([obj.body for obj in found])
        except CheckpointCorrupted:
            if len(found) == 1:
                self._bad[found[0].hash] = "cannot be unpacked"
                return
            # One of them spoils the answer about all, so each is looked at by itself.
            for obj in found:
                self._check_hashes([obj])
            return
        contents = {obj.hash: (obj.children, body) for obj, body in zip(found, bodies, strict=True)}
        for key in tree.mismatched(contents):
            self._bad[key] = "does not match its hash"

    def tainted(self) -> set[bytes]:
        """Return the objects that are damaged or missing, and all that lead to them."""
        if not self._bad:
            return set()
        return tainted(self._bad, self._children)

    def _touched(self, bad: bytes, what: str) -> list[Finding]:
        """Return the finding about an object, with the threads that need it."""
        reaching = tainted([bad], self._children)
        touched: dict[str, str | None] = {}
        for look in self._looks:
            for entry in look.entries:
                if needs(entry.children, reaching):
                    touched.setdefault(look.thread_id, entry.key.checkpoint_id)
            # No checkpoint of it, but a pending write or a common state.
            if any(needs(children, reaching) for children in roots_of(look)):
                touched.setdefault(look.thread_id, None)
        threads = tuple(sorted(touched))
        if not threads:
            return []
        sentence = f"the object {bad.hex()} {what}"
        return [Finding("object", sentence, threads[0], touched[threads[0]], threads)]


def roots_of(look: Look) -> list[bytes]:
    """Return what a thread refers to: its checkpoints, pending writes, and the states it has in common with others."""
    found = [entry.children for entry in look.entries]
    if look.raw is not None:
        found += look.raw.roots()
    return list(filter(None, found))


def _together(roots: Iterable[bytes]) -> bytes:
    """Return the hashes that roots refer to, most of them once."""
    found: list[bytes] = []
    before = b""
    for children in roots:
        # A conversation grows at its end: mostly a root refers to all that the one before it does, and to more.
        if children.startswith(before):
            found.append(children[len(before) :])
        else:
            found.append(children)
        before = children
    return b"".join(found)


def needs(children: bytes, objects: Collection[bytes]) -> bool:
    """Whether one of these objects is among some children."""
    return any(key in objects for key in tree.hashes(children))


def tainted(bad: Collection[bytes], children: dict[bytes, bytes]) -> set[bytes]:
    """Return these objects and all that lead to them."""
    leading: dict[bytes, list[bytes]] = {}
    for key, below in children.items():
        for child in tree.hashes(below):
            leading.setdefault(child, []).append(key)
    found = set(bad)
    pending = list(bad)
    while pending:
        for key in leading.get(pending.pop(), ()):
            if key not in found:
                found.add(key)
                pending.append(key)
    return found
