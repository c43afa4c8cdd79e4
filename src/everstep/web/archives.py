"""Threads as files over HTTP: out of the store, and into it.

Neither is JSON, so neither has a line in the table of endpoints. What is uploaded is written to the disk first, since
an import reads a file from its beginning to its end and may take longer than a browser is willing to send.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response

from everstep.errors import CheckpointCorrupted, EverstepError
from everstep.transfer.exporting import export_threads_async, file_error, import_threads_async
from everstep.views.texts import plain_text
from everstep.web.answers import error_response, failure_response, json_response, read_only_response
from everstep.web.parameters import Text, read_query
from everstep.web.service import IMPORT_BYTES_MAX, Service

Handler = Callable[[Request], Awaitable[Response]]

EXPORT_PARAMETERS = (
    Text(name="thread", about="A thread; its branches come along.", required=True, can_be_empty=False),
)
# Written at once, so that the disk is not asked for every packet.
_WRITTEN_BYTES = 1024 * 1024
# File systems take names of 255 bytes, and browsers add to those that are there already.
_NAME_BYTES = 150


# -- out of the store --------------------------------------------------------------------------------------------------


def exporting(service: Service) -> Handler:
    """Return what answers with a family of threads as a file."""

    async def answer(request: Request) -> Response:
        if service.redact is not None:
            return error_response(403, "redacted", "this page leaves secrets out, and a file would hold them")
        # A file and not memory: a family may be larger than what the server should hold.
        folder = tempfile.TemporaryDirectory(prefix="everstep-export-")
        try:
            thread_id = read_query(EXPORT_PARAMETERS, request.scope["query_string"])["thread"]
            # This says that there is no such thread before a file is begun.
            await service.engine.resolve("@", thread_id=thread_id)
            file = Path(folder.name) / "export"
            await export_threads_async(service.engine, file, [thread_id])
        except EverstepError as exc:
            folder.cleanup()
            return failure_response(exc)
        # The name of a thread may hold anything, and goes into a header here.
        name = re.sub(r"[^\w.-]+", "-", thread_id).encode()[:_NAME_BYTES].decode(errors="ignore").strip(".-")
        # The file goes when it was sent, or nobody wants it any more.
        return FileResponse(
            file,
            media_type="application/octet-stream",
            filename=f"{name or 'thread'}.everstep",
            background=BackgroundTask(folder.cleanup),
        )

    return answer


# -- into the store ----------------------------------------------------------------------------------------------------


class _TooLarge(Exception):
    """More was sent than is taken."""


def importing(service: Service) -> Handler:
    """Return what brings the threads of an uploaded file into the store, and answers with what was done."""

    async def answer(request: Request) -> Response:
        if service.read_only:
            return read_only_response()
        try:
            with _room() as file:
                await _receive(request, file)
                report = await import_threads_async(file, service.engine)
        except CheckpointCorrupted as exc:
            # The hint that others get is about a store, and here it is the file that is damaged.
            hint = "Export it once more. Threads that stand before the damage have been brought in."
            return error_response(422, "file_damaged", plain_text(str(exc)), hint)
        except EverstepError as exc:
            return failure_response(exc)
        except _TooLarge:
            limit = f"the page takes files of up to {IMPORT_BYTES_MAX // 1024**2:,} MiB"
            return error_response(413, "file_too_large", limit, "everstep import FILE takes larger ones")
        except ClientDisconnect:
            return error_response(400, "cut_off", "the file did not come to its end; nothing was brought in")
        return json_response(asdict(report))

    return answer


@contextmanager
def _room() -> Iterator[Path]:
    """Give a place for a file that is gone afterwards, whatever happens."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="everstep-import-")
    except OSError as exc:
        raise file_error(exc, Path(tempfile.gettempdir())) from exc
    with folder as name:
        yield Path(name) / "import"


async def _receive(request: Request, file: Path) -> None:
    """Write the body of a request to a file; what is larger than is taken is not read to its end."""
    # Looked at first, so that a body which says that it is too large is not read at all.
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > IMPORT_BYTES_MAX:
        raise _TooLarge
    received = 0
    waiting = bytearray()
    try:
        with file.open("wb") as out:
            async for chunk in request.stream():
                received += len(chunk)
                if received > IMPORT_BYTES_MAX:
                    raise _TooLarge
                waiting += chunk
                if len(waiting) >= _WRITTEN_BYTES:
                    await asyncio.to_thread(out.write, bytes(waiting))
                    waiting.clear()
            await asyncio.to_thread(out.write, bytes(waiting))
    except OSError as exc:
        # Its name means nothing to who sent it: what is told is where the disk is full.
        raise file_error(exc, file.parent.parent) from exc
