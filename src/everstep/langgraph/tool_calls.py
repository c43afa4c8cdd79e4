"""The tools of LangChain agents as steps: a tool call that is recorded is not made again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from everstep.durable import calling
from everstep.durable.calling import AsyncFace, BlockingFace, Effect, Face
from everstep.durable.run import OnUnknown
from everstep.errors import MissingDependency
from everstep.langgraph.nodes import running_node
from everstep.langgraph.recording import Call, Steps
from everstep.runtime.blocking import run_to_end

try:
    from langchain.agents.middleware import AgentMiddleware
except ImportError as exc:
    raise MissingDependency("langchain", instead="pip install langchain") from exc

if TYPE_CHECKING:
    from langchain.agents.middleware import ToolCallRequest
    from langchain_core.messages import ToolMessage
    from langgraph.types import Command


class DurableTools(AgentMiddleware[Any, Any, Any]):
    """A middleware that makes each tool call of an agent a step: `create_agent(..., middleware=[DurableTools()])`.

    A call is known by its id. When the node of the tools runs again, calls that were recorded give the message that
    they gave before. `effects` says by the names of tools what happens if a crash leaves open whether one was called:
    "none" and "retry" call it again; "once" never does, and is known to all branches of the thread, also after a
    rewind. Tools that are not named there are of the class `effect`. `undo` has functions by the names of tools that
    take a call back, given its message; see `engine.rewind`. `on_unknown` is that of `everstep.langgraph.step`, for all
    tools or by their names.
    """

    def __init__(
        self,
        effects: Mapping[str, Effect] | None = None,
        *,
        effect: Effect = "retry",
        undo: Mapping[str, Callable[[Any], Any]] | None = None,
        on_unknown: OnUnknown | Mapping[str, OnUnknown] = "ask",
    ) -> None:
        super().__init__()
        self._effects = dict(effects or {})
        for given in (effect, *self._effects.values()):
            calling.checked(0, 0, None, Exception, given)
        if isinstance(on_unknown, Mapping):
            choices = list(on_unknown.values())
        else:
            choices = [on_unknown]
        for choice in choices:
            calling.check_on_unknown(choice)
        self._effect = effect
        self._undo = dict(undo or {})
        for name, function in self._undo.items():
            calling.check_effect(self._effects.get(name, effect), function, "ask")
        self._on_unknown = on_unknown

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        """Call a tool, or give the message that it gave before."""

        def call(**_: Any) -> Any:
            return handler(request)

        made: ToolMessage | Command[Any] = run_to_end(self._called(request, call, BlockingFace(), is_blocking=True))
        return made

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        """Call a tool, or give the message that it gave before."""

        async def call(**_: Any) -> Any:
            return await handler(request)

        made: ToolMessage | Command[Any] = await self._called(request, call, AsyncFace(), is_blocking=False)
        return made

    async def _called(
        self, request: ToolCallRequest, call: Callable[..., Any], face: Face, *, is_blocking: bool
    ) -> Any:
        asked = request.tool_call
        name = asked["name"]
        node = running_node(request.runtime.config)
        chosen = key = _key(asked, request.state)
        options = calling.checked(0, 0, None, Exception, self._effects.get(name, self._effect))
        if options.effect != "once":
            # Another middleware may call the tool several times. What is performed once is performed once all the same.
            number = node.keys.count(f"\n{key}")
            if number:
                key = f"{key}#{number + 1}"
        on_unknown = self._on_unknown
        if isinstance(on_unknown, Mapping):
            on_unknown = on_unknown.get(name, "ask")
        steps = Steps(node, node.saver.threads(blocking=is_blocking), face)
        made = await steps.step(
            Call(key, name, call, (), asked["args"], options, chosen, self._undo.get(name), on_unknown)
        )
        return _message(made, asked)


def _message(made: Any, asked: Mapping[str, Any]) -> Any:
    """Return what a tool call came to, as a message also where a person has told the result."""
    from langchain_core.messages import ToolMessage
    from langgraph.types import Command

    if isinstance(made, (ToolMessage, Command, list)):
        return made
    if not isinstance(made, str):
        made = repr(made)
    return ToolMessage(made, name=asked["name"], tool_call_id=asked["id"])


def _key(asked: Mapping[str, Any], state: Any) -> str:
    """Return what a tool call is known by: its id, and the message that asked for it, as some models count anew."""
    if isinstance(state, Mapping):
        messages = state.get("messages", ())
    else:
        messages = getattr(state, "messages", ())
    for message in reversed(messages):
        calls = getattr(message, "tool_calls", None) or ()
        if any(call.get("id") == asked["id"] for call in calls):
            return f"tool call {asked['id']} of {message.id}"
    return f"tool call {asked['id']}"
