"""The conversation of a checkpoint as people read it: roles, texts, tool calls with their results.

Understood are the shapes of OpenAI (chat and responses), Anthropic and LangChain. What else there is stands in `raw`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from everstep.runtime import checks
from everstep.stores.protocol import Stored
from everstep.values import codec
from everstep.views.changes import name_of, ref_of
from everstep.views.json_values import size_of, to_json
from everstep.views.reading import Ref, number_of_cursor, repository_of, stored_of, values_of
from everstep.views.rows import dicts_in, text_of
from everstep.views.texts import as_text, one_line, plain_text

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

LIMIT_MAX = 1000
SHOWN_BYTES_MAX = 150_000
"""About how much one page holds."""
_TEXT_MAX = 20_000
_RESULT_MAX = 2_000
# LangChain, the Responses API of OpenAI and older interfaces each name the same speakers differently.
_ROLES = {
    "human": "user",
    "ai": "assistant",
    "AIMessageChunk": "assistant",
    "model": "assistant",
    "function": "tool",
    "developer": "system",
    "function_call": "assistant",
    "function_call_output": "tool",
    "reasoning": "assistant",
}


async def page(
    engine: CheckpointEngine,
    ref: Ref,
    *,
    limit: int = 100,
    cursor: str | None = None,
    bytes_max: int | None = None,
) -> dict[str, Any]:
    """Return messages, the newest last; without `cursor` the newest ones, and with it those before.

    With `bytes_max` a page of long messages has fewer of them, and at least one.
    """
    limit = min(max(1, checks.count(limit, "limit")), LIMIT_MAX)
    stored = await stored_of(engine, ref)
    messages = (await values_of(repository_of(engine), stored)).messages
    end = len(messages)
    place = number_of_cursor(cursor, "a page of this transcript")
    if place is not None:
        end = min(place, end)
    start = max(0, end - limit)
    # Of the whole conversation, since the answer to a call may be on another page.
    results = _results(messages)
    # Many messages share the room of a page; each one still gets enough to be told from others.
    room = max(500, SHOWN_BYTES_MAX // max(1, end - start))
    backwards = (_shown(messages[place], place, results, room) for place in reversed(range(start, end)))
    shown = _fitting(backwards, bytes_max)
    start = end - len(shown)
    return {
        "messages": shown[::-1],
        "cursor": str(start) if start else None,
        "total": len(messages),
    }


async def pair(engine: CheckpointEngine, a: Ref, b: Ref, *, limit: int = 50) -> dict[str, Any]:
    """Return two conversations from where they part: how many messages they begin with in common, and what follows.

    Of each at most `limit` messages, the oldest first, and of long ones fewer; `more` says how many come after those.
    """
    limit = min(max(1, checks.count(limit, "limit")), LIMIT_MAX)
    sides: list[tuple[Stored, Sequence[Any]]] = []
    for ref in (a, b):
        stored = await stored_of(engine, ref)
        sides.append((stored, (await values_of(repository_of(engine), stored)).messages))
    common = 0
    for one, other in zip(sides[0][1], sides[1][1], strict=False):
        # As bytes, not as values: 1, 1.0 and True are equal in Python.
        if codec.pack(one) != codec.pack(other):
            break
        common += 1
    answer: dict[str, Any] = {"common": common}
    for name, (stored, messages) in zip("ab", sides, strict=True):
        end = min(len(messages), common + limit)
        room = max(500, SHOWN_BYTES_MAX // 2 // max(1, end - common))
        results = _results(messages)
        following = (_shown(messages[place], place, results, room) for place in range(common, end))
        shown = _fitting(following, SHOWN_BYTES_MAX // 2)
        answer[name] = {
            **ref_of(stored),
            "messages": shown,
            "total": len(messages),
            "more": len(messages) - common - len(shown),
        }
    return answer


def _fitting(shown: Iterable[dict[str, Any]], bytes_max: int | None) -> list[dict[str, Any]]:
    """Return as many messages as there is room for, and at least one."""
    fitting: list[dict[str, Any]] = []
    taken = 0
    for message in shown:
        taken += size_of(message)
        if fitting and bytes_max is not None and taken > bytes_max:
            break
        fitting.append(message)
    return fitting


def _shown(message: Any, index: int, results: Mapping[str, dict[str, Any]], room: int) -> dict[str, Any]:
    fields: Mapping[str, Any] = message if type(message) is dict else {}
    answers = _answered(fields)
    role = _role(fields)
    blocks = _blocks(fields)
    has_results = any(_kind(block) == "tool_result" for block in blocks)
    text = plain_text(_text(fields))
    return {
        "index": index,
        "id": name_of(message),
        # Anthropic sends the results of tools as messages of the user, which nobody would look for there.
        "role": "tool" if has_results and role == "user" and not _only_text(blocks) else role,
        "name": _line(fields.get("name")),
        "text": text[:_TEXT_MAX],
        "text_length": len(text),
        "parts": list(_parts(fields, room)),
        "tool_calls": [_with_result(call, results, room) for call in _calls(fields)],
        "answers": answers[0] if answers else None,
        "raw": to_json(message, max_bytes=room),
    }


def _role(fields: Mapping[str, Any]) -> str:
    named = as_text(fields.get("role")) or as_text(fields.get("type")) or "unknown"
    return _ROLES.get(named, one_line(named, 40))


def _line(value: Any) -> str | None:
    if type(value) is not str or not value:
        return None
    return one_line(value, 200)


def _kind(block: Any) -> str | None:
    if type(block) is not dict:
        return None
    return as_text(block.get("type"))


def _blocks(fields: Mapping[str, Any]) -> list[Any]:
    content = fields.get("content")
    if type(content) is not list:
        return []
    return content


def _only_text(blocks: Sequence[Any]) -> str:
    texts: list[str] = []
    for block in blocks:
        if _kind(block) == "text" and type(block.get("text")) is str:
            texts.append(block["text"])
    return "".join(texts)


def _text(fields: Mapping[str, Any]) -> str:
    said = text_of(fields.get("content"))
    if said:
        return said
    if fields.get("type") == "function_call_output":
        return _result_text(fields.get("output"))
    results: list[str] = []
    for block in _blocks(fields):
        if _kind(block) == "tool_result":
            results.append(_result_text(block.get("content")))
    return "\n".join(results)


def _result_text(content: Any) -> str:
    if type(content) is str:
        return content
    found = text_of(content)
    if found or content is None:
        return found
    return json.dumps(to_json(content, max_bytes=_RESULT_MAX), ensure_ascii=False)


# -- parts


def _parts(fields: Mapping[str, Any], room: int) -> Iterator[dict[str, Any]]:
    reasoning = _reasoning(fields)
    if reasoning:
        yield {"type": "reasoning", "text": plain_text(reasoning)[:_TEXT_MAX]}
    content = fields.get("content")
    if type(content) is str:
        if content:
            yield {"type": "text", "text": plain_text(content)[:_TEXT_MAX]}
        return
    for block in _blocks(fields):
        part = _part(block, room)
        if part is not None:
            yield part
    # A message that somebody made may have anything as its content, and it is shown rather than lost.
    if content is not None and type(content) is not list:
        yield {"type": "data", "value": to_json(content, max_bytes=room)}


def _reasoning(fields: Mapping[str, Any]) -> str:
    extra = fields.get("additional_kwargs")
    # Some models say it beside the content, and LangChain moves what it does not know into these.
    for holder in (fields, extra if type(extra) is dict else {}):
        for name in ("reasoning_content", "reasoning"):
            if type(holder.get(name)) is str:
                return str(holder[name])
    if fields.get("type") == "reasoning":
        return text_of(fields.get("summary"))
    return ""


def _part(block: Any, room: int) -> dict[str, Any] | None:
    if type(block) is str:
        return {"type": "text", "text": plain_text(block)[:_TEXT_MAX]}
    kind = _kind(block)
    if kind in ("text", "input_text", "output_text") and type(block.get("text")) is str:
        return {"type": "text", "text": plain_text(block["text"])[:_TEXT_MAX]}
    if kind in ("thinking", "reasoning", "redacted_thinking"):
        text = block.get("thinking") or block.get("reasoning") or block.get("text") or text_of(block.get("summary"))
        return {"type": "reasoning", "text": plain_text(text)[:_TEXT_MAX] if type(text) is str else ""}
    if kind in ("image", "image_url", "input_image"):
        return _image(block)
    if kind in ("tool_use", "tool_call", "tool_result"):
        # It is told among the calls, or in the text.
        return None
    return {"type": "data", "value": to_json(block, max_bytes=room)}


def _image(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of an image: never its bytes, and no address is ever loaded."""
    source = block.get("source")
    holder: Any = source if type(source) is dict else block
    url = block.get("image_url", holder.get("url"))
    url = url.get("url") if type(url) is dict else url
    data = holder.get("data", block.get("base64"))
    media_type = as_text(holder.get("media_type")) or as_text(holder.get("mime_type"))
    if type(url) is str and url.startswith("data:"):
        head, _, data = url.partition(",")
        media_type = head.removeprefix("data:").partition(";")[0]
        url = None
    return {
        "type": "image",
        "media_type": _line(media_type),
        "size_bytes": _base64_size(data),
        "url": _line(url),
    }


def _base64_size(data: Any) -> int | None:
    if type(data) is bytes:
        return len(data)
    # About; what it really is would take decoding images of many megabytes.
    return len(data) * 3 // 4 if type(data) is str else None


# -- tool calls


def _calls(fields: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the tool calls that a message makes: id, name and arguments."""
    seen: set[str | None] = set()
    for call in dicts_in(fields.get("tool_calls")):
        name = _name(call.get("id"))
        seen.add(name)
        holder = call.get("function")
        if type(holder) is not dict:
            holder = call
        yield _call(name, holder, holder.get("arguments", holder.get("args")))
    for block in _blocks(fields):
        if _kind(block) in ("tool_use", "tool_call"):
            name = _name(block.get("id"))
            # LangChain says the calls of some models twice.
            if name is None or name not in seen:
                yield _call(name, block, block.get("input", block.get("args")))
    if fields.get("type") == "function_call":
        yield _call(_name(fields.get("call_id")), fields, fields.get("arguments"))


def _call(name: str | None, holder: Mapping[str, Any], args: Any) -> dict[str, Any]:
    return {"id": name, "name": _line(holder.get("name")), "args": _arguments(args)}


def _arguments(args: Any) -> Any:
    """Return arguments as data: some models write them as a text of JSON."""
    if type(args) is not str:
        return args
    try:
        return json.loads(args)
    except (ValueError, RecursionError):
        # A model may have written something that is no JSON, and that is what one wants to see then.
        return args


def _with_result(call: dict[str, Any], results: Mapping[str, dict[str, Any]], room: int) -> dict[str, Any]:
    return {**call, "args": to_json(call["args"], max_bytes=room), "result": results.get(call["id"])}


def _results(messages: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Return the results of tool calls, by the id of the call."""
    found: dict[str, dict[str, Any]] = {}
    for index, message in enumerate(messages):
        if type(message) is not dict:
            continue
        for name, content, has_failed in _answers(message):
            text = one_line(_result_text(content), _RESULT_MAX)
            # The first answer counts, as it does for the model.
            found.setdefault(name, {"index": index, "text": text, "error": has_failed})
    return found


def _answers(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    """Yield the calls that a message answers: id, what it says, and whether that is a failure."""
    name = _name(fields.get("tool_call_id"))
    if name is not None:
        yield name, fields.get("content"), fields.get("status") == "error" or fields.get("is_error") is True
    for block in _blocks(fields):
        if _kind(block) == "tool_result":
            name = _name(block.get("tool_use_id"))
            if name is not None:
                yield name, block.get("content"), block.get("is_error") is True
    if fields.get("type") == "function_call_output":
        name = _name(fields.get("call_id"))
        if name is not None:
            yield name, fields.get("output"), fields.get("status") == "failed"


def _answered(fields: Mapping[str, Any]) -> list[str]:
    return [name for name, _, _ in _answers(fields)]


def _name(value: Any) -> str | None:
    return as_text(value) or None
