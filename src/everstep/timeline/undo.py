"""Undo, redo and the log of operations: what an operation changed is swapped with what was there before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import starmap

from everstep.errors import CannotUndo
from everstep.history import checkpoint_tree, operation_log
from everstep.reports import Operation
from everstep.stores.protocol import Change, Hidden, Key, Move, Query, Thread, Write
from everstep.stores.protocol import Operation as Entry
from everstep.timeline.workspace import Workspace
from everstep.types import TASK_NAMESPACE


async def undo(work: Workspace, thread_id: str) -> Operation:
    """Take the newest operation back."""
    return await _toggle(work, thread_id, operation_log.to_undo)


async def redo(work: Workspace, thread_id: str) -> Operation:
    """Do again what was undone last."""
    return await _toggle(work, thread_id, operation_log.to_redo)


async def operations(work: Workspace, thread_id: str, limit: int) -> list[Operation]:
    """Return the log, newest first."""
    return [operation_log.shown(entry) for entry in await work.store.operations(thread_id, limit)]


async def _toggle(work: Workspace, thread_id: str, choose: Callable[[Sequence[Entry]], Entry]) -> Operation:
    async def toggle(inner: Workspace) -> Entry:
        entry = choose(await inner.newest_operations(thread_id))
        await _swap(inner, thread_id, entry)
        return entry

    entry = await work.until_done(thread_id, toggle, "an undo or redo")
    return operation_log.shown(entry._replace(undone=not entry.undone))


async def _swap(work: Workspace, thread_id: str, entry: Entry) -> None:
    """Restore what an operation changed, and note what it takes to change it again."""
    undo = operation_log.undo_of(entry)
    thread = await _require_thread(work, thread_id, entry, undo)
    # Looked at first, so that the error says which operation cannot be undone, and why.
    for pin in undo.pins:
        if await work.store.read(*pin.key) is None:
            raise CannotUndo(f"{entry.kind}: the checkpoint {pin.key.checkpoint_id!r} was deleted, which is final")
    undo = await _about_all(work, undo, thread)
    swap = operation_log.swapped(entry, undo, thread, await _pending(work, entry, undo, thread))
    await _check_heads(work, entry, undo, swap, thread)
    namespace = next(iter(undo.heads), "")
    await work.store.commit(
        Change(
            thread_id=undo.thread_id,
            namespace=namespace,
            expect=thread.head_id(namespace),
            moves=list(starmap(Move, undo.heads.items())),
            show=[entry.seq],
            hide=swap.hide,
            pins=undo.pins,
            amend=[swap.entry],
            log_thread=thread_id,
        )
    )
    work.forget(undo.thread_id)


async def _require_thread(work: Workspace, thread_id: str, entry: Entry, undo: operation_log.Undo) -> Thread:
    """Return the thread that the operation changed: for a branch, not the one whose log has it."""
    thread = await work.store.thread(undo.thread_id)
    own = await work.store.thread(thread_id) if undo.thread_id != thread_id else thread
    # A thread of another family is a new one, with the name of the one that was deleted.
    if thread is None or own is None or own.family != thread.family:
        raise CannotUndo(f"{entry.kind}: the thread {undo.thread_id!r} was deleted, and deletion is final")
    return thread


async def _about_all(work: Workspace, undo: operation_log.Undo, thread: Thread) -> operation_log.Undo:
    """Add the namespaces that have got something new, if the operation is about the whole thread."""
    if undo.since is None:
        return undo
    heads = dict(undo.heads)
    newest = dict(undo.newest)
    for name, last in thread.newest.items():
        if name in newest or name == TASK_NAMESPACE or last <= undo.since:
            continue
        # By id, since the newest of an adapter's namespace is the one with the greatest id and not the one
        # that came last.
        query = Query(thread_id=thread.thread_id, namespace=name, before_seq=undo.since + 1, order="id", limit=1)
        older = await work.store.list_checkpoints(query)
        heads[name] = None
        if older:
            heads[name] = older[0].record.key.checkpoint_id
        newest[name] = undo.since
    return undo._replace(heads=heads, newest=newest)


async def _pending(work: Workspace, entry: Entry, undo: operation_log.Undo, thread: Thread) -> list[Hidden]:
    """Return the pending writes in whose places a swap puts others."""
    found: list[Hidden] = []
    for place in sorted(operation_log.written(entry, undo, thread)):
        key = Key(thread.thread_id, *place)
        loaded = await work.store.read(*key, writes=True)
        if loaded is None:
            continue
        # Writes that the operation did not touch stay where they are.
        kept: list[Write] = []
        others: list[Write] = []
        for write in loaded.writes:
            if checkpoint_tree.is_among(write, key, undo.kept):
                kept.append(write)
            else:
                others.append(write)
        found += checkpoint_tree.writes(others, key, thread, kept)
    return found


async def _check_heads(
    work: Workspace, entry: Entry, undo: operation_log.Undo, swap: operation_log.Swap, thread: Thread
) -> None:
    """Refuse to go to a head that is gone, or that something else hides: it would be one that nobody sees."""
    hidden = list(swap.hide)
    # What this operation hid itself is shown by the swap, so only the others count.
    for seq, stretches in thread.hidden.items():
        if seq != entry.seq:
            hidden += stretches
    for namespace, head in undo.heads.items():
        if head is None:
            continue
        loaded = await work.store.read(undo.thread_id, namespace, head)
        if loaded is None:
            raise CannotUndo(
                f"{entry.kind}: the checkpoint {head!r} to go back to was deleted or collected, which is final"
            )
        if checkpoint_tree.is_hidden(loaded.stored, hidden):
            raise CannotUndo(
                f"{entry.kind}: the checkpoint {head!r} is hidden by another operation; "
                "redo the branch that was taken back, in the log of its origin, first"
            )
