"""uvicorn's HTTP connection, with bounds: how many there are, and how long the head of a request may be and take."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from .._base.extras import need

MOST_BYTES = 64 << 10
SECONDS = 30.0
_REFUSAL_SECONDS, _MOST_REFUSALS = 2.0, 64  # how long clients that are too many may take to read so, and how many of them
_REASON = b'{"error":"the server has as many connections as it may have"}'
_TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_REASON), _REASON)
)
_NOT_HTTP = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"


class _JoinedWrites:
    """A transport that sends what is written in one turn of the event loop by one system call.

    uvicorn writes the head and the body of a response one after the other, and each call may wake the client.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop):
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def get_write_buffer_size(self) -> int:
        return int(self._transport.get_write_buffer_size()) + sum(map(len, self._parts))

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))


def bounded_protocol(most: int) -> type[Any]:
    """The class of connections, of which at most ``most`` are open. A function, because uvicorn belongs to an extra."""
    base: Any = need("uvicorn.protocols.http.httptools_impl", "oneflow.serving").HttpToolsProtocol

    class BoundedProtocol(base):
        """Closes connections that are one too many, or whose request begins and does not go on."""

        _head_timer: asyncio.TimerHandle | None = None
        _in_head = True
        _is_refused = False
        _head_bytes = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(_JoinedWrites(transport, self.loop))
            excess = len(self.connections) - most
            self._is_refused = excess > 0
            if excess > _MOST_REFUSALS:
                transport.close()
            self._expect_head(_REFUSAL_SECONDS if self._is_refused else SECONDS)

        def connection_lost(self, error: Exception | None) -> None:
            self._expect_nothing()
            super().connection_lost(error)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._in_head, self._head_bytes = True, 0

        def on_headers_complete(self) -> None:
            self._in_head = False
            self._expect_nothing()
            super().on_headers_complete()

        def data_received(self, data: bytes) -> None:
            if self._is_refused:  # closed by the client or the timer: closed at once, the answer might not reach the client
                if self._head_bytes == 0:
                    self.transport.write(_TOO_MANY)
                self._head_bytes += len(data)
                return
            super().data_received(data)
            if not self._in_head or self.transport.is_closing():
                return
            self._head_bytes += len(data)
            if self._head_bytes > MOST_BYTES:
                self.send_400_response(f"The request's headers have more than {MOST_BYTES} bytes.")
            elif self._head_timer is None:
                self._expect_head(SECONDS)

        def send_400_response(self, msg: str) -> None:
            body = json.dumps({"error": msg}).encode()
            self.transport.write(_NOT_HTTP % (len(body), body))
            self.transport.close()

        def _unsupported_upgrade_warning(self) -> None:
            """Logs nothing: a request for another protocol is answered by this one, as HTTP allows."""

        def _expect_head(self, seconds: float) -> None:
            self._head_timer = self.loop.call_later(seconds, self._head_is_late)

        def _expect_nothing(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _head_is_late(self) -> None:
            self._head_timer = None
            if not self.transport.is_closing():
                self.transport.close()

    return BoundedProtocol
