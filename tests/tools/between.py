"""A store in whose way something happens: what another process may do between two calls, at a moment that is known."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from everstep.stores.protocol import Store


class _Act(NamedTuple):
    moment: str
    """Before or after."""
    call: str
    do: Callable[[], object]
    when: Callable[..., bool]


def is_call(name: str) -> bool:
    """Whether stores have a method of that name that is awaited. The store itself may only hand a coroutine on."""
    return inspect.iscoroutinefunction(getattr(Store, name, None))


class Between:
    """Hands every call on to a store. What is to happen before or after one of them happens once, and blocks."""

    def __init__(self, store: Store, acts: list[_Act] | None = None, calls: list[str] | None = None) -> None:
        self._store = store
        self._acts: list[_Act] = acts if acts is not None else []
        self.calls: list[str] = calls if calls is not None else []
        """The names of all calls so far."""

    @property
    def blocking(self) -> Between:
        """The blocking face of the same store: what is to happen is shared."""
        return Between(self._store.blocking, self._acts, self.calls)

    def before(self, call: str, do: Callable[[], object], when: Callable[..., bool] = lambda *_, **__: True) -> None:
        """Do something before the next call of that name whose arguments `when` accepts."""
        self._acts.append(_Act("before", call, do, when))

    def after(self, call: str, do: Callable[[], object], when: Callable[..., bool] = lambda *_, **__: True) -> None:
        """Do something after the next call of that name whose arguments `when` accepts."""
        self._acts.append(_Act("after", call, do, when))

    @property
    def is_over(self) -> bool:
        """Whether everything that was to happen has happened: a test that waits for nothing shows nothing."""
        return not self._acts

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not is_call(name):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            self._happen("before", name, args, kwargs)
            result = await found(*args, **kwargs)
            self._happen("after", name, args, kwargs)
            return result

        return call

    def _happen(self, moment: str, name: str, args: Any, kwargs: Any) -> None:
        for act in list(self._acts):
            if (act.moment, act.call) == (moment, name) and act.when(*args, **kwargs):
                self._acts.remove(act)
                act.do()
