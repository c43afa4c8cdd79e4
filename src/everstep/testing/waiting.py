"""A store never blocks an event loop, and is closed for good."""

from __future__ import annotations

import asyncio
import threading

import pytest

from everstep.errors import HeadMoved, StoreClosed
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Change, Draft, Key, Store, Stored
from everstep.testing.builders import follow, head_id, join, make_record, put


class WaitingContract:
    """A store never blocks an event loop, and is closed for good."""

    async def test_the_blocking_face_works_inside_a_running_loop(self, store: Store) -> None:
        async def main() -> None:
            run_to_end(store.blocking.commit(follow("t", "c")))
            assert run_to_end(store.blocking.read("t")) is not None

        thread = threading.Thread(target=lambda: asyncio.run(main()))
        thread.start()
        await join(thread)
        assert await head_id(store) == "c-1"

    async def test_a_failing_writer_does_not_hold_up_the_next(self, store: Store) -> None:
        for _ in range(3):
            with pytest.raises(HeadMoved):
                await store.commit(follow("t", "c", expect="never"))
        await store.commit(follow("t", "c"))
        assert await head_id(store) == "c-1"

    async def test_what_breaks_off_one_writer_reaches_that_writer_only(self, store: Store) -> None:
        class BreakOff(BaseException):
            pass

        def build(_: Stored | None) -> Draft:
            raise BreakOff

        with pytest.raises(BreakOff):
            await store.commit(Change(thread_id="t", build=build))
        await store.commit(follow("t", "c"))
        assert await head_id(store) == "c-1"

    async def test_a_closed_store_says_so(self, store: Store) -> None:
        await store.commit(put(make_record()))
        await store.close()
        await store.close()
        many = store.read_many([Key("t", "", "c1")])
        for call in (store.read("t"), many, store.commit(follow("t", "c")), store.list_threads(1, 0)):
            with pytest.raises(StoreClosed):
                await call
