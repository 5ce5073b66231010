"""uvicorn's HTTP connection, with bounds for the head of a request: how long it may be, and how long it may take."""

from __future__ import annotations

import asyncio
from typing import Any

from .._base.extras import need

MOST_BYTES = 64 << 10
SECONDS = 30.0


def bounded_protocol() -> type[Any]:
    """The class of connections. A function, because uvicorn belongs to an extra."""
    base: Any = need("uvicorn.protocols.http.httptools_impl", "oneflow.serving").HttpToolsProtocol

    class BoundedProtocol(base):
        """Closes connections whose request begins and does not go on."""

        _head_timer: asyncio.TimerHandle | None = None
        _in_head = True
        _head_bytes = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect_head()

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
            super().data_received(data)
            if not self._in_head or self.transport.is_closing():
                return
            self._head_bytes += len(data)
            if self._head_bytes > MOST_BYTES:
                self.send_400_response(f"The request's headers have more than {MOST_BYTES} bytes.")
            elif self._head_timer is None:
                self._expect_head()

        def _expect_head(self) -> None:
            self._head_timer = self.loop.call_later(SECONDS, self._head_is_late)

        def _expect_nothing(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _head_is_late(self) -> None:
            self._head_timer = None
            if not self.transport.is_closing():
                self.transport.close()

    return BoundedProtocol
