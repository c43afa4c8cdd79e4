"""Who came from whom: what follows a checkpoint, common ancestors, and the tree that people see. Pure.

Ancestry is read from runs (see `stores.protocol`), never from parents alone: a parent that retention has removed would
cut the chain, and a guess across the cut would give a wrong merge base.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from everstep.adapters import described
from everstep.stores.protocol import Hidden, Key, Place, Stored, Thread, Write


def later(thread: Thread, target: Stored) -> list[Hidden]:
    """Return the stretches of what follows `target` in its namespace and is not hidden as a whole.

    One stretch over all runs if nothing else that is visible arrived later, as usual; else one for each run.
    """
    namespace, newest = target.record.key.namespace, thread.newest[target.record.key.namespace]
    hidden = [h for stretches in thread.hidden.values() for h in stretches if h.writes_of is None]
    started = [
        run for run in thread.runs if target.seq < run <= newest and not _is_hidden_whole(run, namespace, hidden)
    ]
    following = _following(thread, target)
    if all(run in following or not _is_of(thread, run, namespace) for run in started):
        return [Hidden(namespace, target.seq, newest)]
    runs = [Hidden(namespace, target.seq, newest, target.run)]
    return runs + [Hidden(namespace, run - 1, newest, run) for run in started if run in following]


def all_later(thread: Thread, target: Stored) -> list[Hidden]:
    """Return the stretches of all that follows `target`, hidden or not, run by run."""
    namespace, newest = target.record.key.namespace, thread.newest[target.record.key.namespace]
    runs = [Hidden(namespace, run - 1, newest, run) for run in sorted(_following(thread, target))]
    return [Hidden(namespace, target.seq, newest, target.run), *runs]


def _following(thread: Thread, target: Stored) -> set[int]:
    """Return the runs of the thread that came from `target` or from what followed it."""
    found: set[int] = set()
    for run in sorted(thread.runs):  # a run comes after what it follows
        for place in thread.runs[run]:
            if place.key.thread_id == thread.thread_id and (
                place.run in found or (place.run == target.run and place.seq >= target.seq)
            ):
                found.add(run)
    return found


def _is_of(thread: Thread, run: int, namespace: str) -> bool:
    """Whether a run may belong to the namespace: one that follows nothing says nothing about it."""
    own = [place for place in thread.runs[run] if place.key.thread_id == thread.thread_id]
    return not own or own[0].key.namespace == namespace


def writes(found: Iterable[Write], key: Key, thread: Thread, others: Iterable[Write] = ()) -> list[Hidden]:
    """Return the stretches of these pending writes, which are visible.

    What is hidden already is not among them, nor are the `others`, which are visible too.
    """
    gaps = [h.to for held in thread.hidden.values() for h in held if (h.namespace, h.writes_of) == key[1:]]
    gaps += [write.seq for write in others]
    stretches: list[Hidden] = []
    for seq in sorted(write.seq for write in found):
        if stretches and not any(stretches[-1].to < gap < seq for gap in gaps):
            stretches[-1] = stretches[-1]._replace(to=seq)
        else:
            stretches.append(Hidden(key.namespace, seq - 1, seq, None, key.checkpoint_id))
    return stretches


def is_hidden(stored: Stored, stretches: Iterable[Hidden]) -> bool:
    """Whether one of these stretches hides the checkpoint."""
    return any(
        h.writes_of is None
        and h.namespace == stored.record.key.namespace
        and h.run in (None, stored.run)
        and h.after < stored.seq <= h.to
        for h in stretches
    )


def is_among(write: Write, key: Key, stretches: Iterable[Hidden]) -> bool:
    """Whether one of these stretches holds a pending write of the checkpoint."""
    return any((h.namespace, h.writes_of) == key[1:] and h.after < write.seq <= h.to for h in stretches)


def _is_hidden_whole(run: int, namespace: str, hidden: Iterable[Hidden]) -> bool:
    """Whether a stretch covers the run from its first checkpoint on: then all of it, since it grew no more after."""
    return any(h.namespace == namespace and h.run in (None, run) and h.after < run <= h.to for h in hidden)


def is_unmoved(stored: Stored, bases: Sequence[Place]) -> bool:
    """Whether nothing happened since one of these places: it is that checkpoint, or the beginning of a branch there."""
    key, parents = stored.record.key, stored.record.parents
    if stored.place in bases:
        return True
    begins = len(parents) == 1 and parents[0].thread_id != key.thread_id
    # Where a branch begins under its origin's id, so does a branch of it.
    return begins and any(place.key == parents[0] or place.key[1:] == key[1:] for place in bases)


# -- ancestors ---------------------------------------------------------------------------------------------------------

Runs = Mapping[int, Sequence[Place]]
"""What each run of a family follows."""

Ancestors = dict[int, Place]
"""By run: the newest checkpoint of it that is an ancestor, or the checkpoint itself."""


def ancestors(place: Place, runs: Runs) -> Ancestors:
    """Return the ancestors of `place`, itself included."""
    found: Ancestors = {}
    pending = [place]
    while pending:
        place = pending.pop()
        if place.run in found and found[place.run].seq >= place.seq:
            continue
        found[place.run] = place
        pending.extend(runs.get(place.run, ()))
    return found


def common_ancestors(ours: Ancestors, theirs: Ancestors, runs: Runs) -> list[Place]:
    """Return the best common ancestors: those that are not ancestors of another one. Newest first."""
    shared = [min(ours[run], theirs[run], key=lambda place: place.seq) for run in ours.keys() & theirs.keys()]
    best: list[Place] = []
    covered: Ancestors = {}
    for place in sorted(shared, key=lambda place: place.seq, reverse=True):
        if place.run in covered and covered[place.run].seq >= place.seq:
            continue
        best.append(place)
        _join(covered, ancestors(place, runs))
    return best


def common_below(places: Sequence[Place], other: Place, runs: Runs) -> list[Place]:
    """Return the best common ancestors of `other` and of all `places` taken together."""
    return common_ancestors(ancestors(other, runs), all_ancestors(places, runs), runs)


def all_ancestors(places: Sequence[Place], runs: Runs) -> Ancestors:
    """Return the ancestors of all these, themselves included."""
    together: Ancestors = {}
    for place in places:
        _join(together, ancestors(place, runs))
    return together


def _join(found: Ancestors, more: Ancestors) -> None:
    for run, place in more.items():
        if run not in found or found[run].seq < place.seq:
            found[run] = place


# -- the tree ----------------------------------------------------------------------------------------------------------


def tree(
    thread_id: str, listed: Sequence[Stored], threads: Mapping[str, Thread], runs: Runs, total: int
) -> dict[str, Any]:
    """Return checkpoints (newest first) as nodes and edges. An edge over removed checkpoints says `gap`."""
    links = _Links(listed, runs)
    return {
        "thread_id": thread_id,
        "total_checkpoints": total,
        "nodes": [_node(stored, threads) for stored in listed],
        "edges": [edge for stored in listed for edge in links.edges(stored)],
    }


def _node(stored: Stored, threads: Mapping[str, Thread]) -> dict[str, Any]:
    record = stored.record
    thread = threads.get(record.key.thread_id)
    head = thread.heads.get(record.key.namespace) if thread is not None else None
    tags, summary = described(record)
    return {
        "id": record.key.checkpoint_id,
        "thread_id": record.key.thread_id,
        "namespace": record.key.namespace,
        "step": record.step,
        "tags": list(tags),
        "summary": summary,
        "created_at": record.created_at,
        "next_node": record.next_node,
        "trigger": record.trigger,
        "parents": [parent.checkpoint_id for parent in record.parents],
        "size_bytes": sum(record.sizes),
        "head": head is not None and head[0] == record.key.checkpoint_id,
        "branch": branch_name(record.tags) if record.step == 0 or record.kind else None,
        "pinned": stored.pinned,
        "hidden": stored.hidden,
    }


def branch_name(tags: Sequence[str]) -> str | None:
    """Return the name in the tags of a branch's first checkpoint."""
    return tags[1] if len(tags) >= 2 and tags[0] == "branch" else None


class _Links:
    """Finds the nearest listed ancestors of listed checkpoints."""

    def __init__(self, listed: Sequence[Stored], runs: Runs) -> None:
        self._ancestry = runs
        self._keys = {stored.record.key for stored in listed}
        self._runs: dict[int, list[tuple[int, Key]]] = {}
        self._before: dict[Key, Key | None] = {}
        for stored in reversed(listed):
            run = self._runs.setdefault(stored.run, [])
            self._before[stored.record.key] = run[-1][1] if run else None
            run.append((stored.seq, stored.record.key))

    def edges(self, stored: Stored) -> list[dict[str, Any]]:
        child, parents = stored.record.key, stored.record.parents
        before = self._before[child]
        if before is not None:
            found = [before]
        else:
            follows = self._ancestry.get(stored.run, ())
            found = [key for place in follows if (key := self._nearest(place)) is not None]
        return [
            {
                "from": key.checkpoint_id,
                "to": child.checkpoint_id,
                "from_thread": key.thread_id,
                "to_thread": child.thread_id,
                "gap": bool(parents) and key not in parents,
            }
            for key in dict.fromkeys(found)
        ]

    def _nearest(self, place: Place) -> Key | None:
        """Return the newest listed checkpoint at or before `place`, in its run or in what that follows."""
        pending, seen = [place], set[int]()
        while pending:
            place = pending.pop()
            for seq, key in reversed(self._runs.get(place.run, ())):
                if seq <= place.seq:
                    return key
            if place.run not in seen:
                seen.add(place.run)
                pending.extend(reversed(self._ancestry.get(place.run, ())))
        return None
