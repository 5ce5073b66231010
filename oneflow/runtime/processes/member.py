"""One process's connection to the hub. The first process has one, too."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from ...errors import ProcessError
from . import addresses, messages, wire
from .messages import Message
from .wire import ProtocolError

_RETRY_SECONDS = 0.1
# If strangers have filled the hub's queue, the system drops an attempt silently, and repeats it after a second. A new one is made
# earlier; each waits longer than the one before, for networks that are slow.
_CONNECT_SECONDS = (0.2, 0.4, 1.0)
_GREETING_SECONDS = 5.0
_LEAST_GREETING_SECONDS = 1.0
_REFUSED_SECONDS = 3.0  # a proof that was refused is tried again for so long: an earlier run may be about to end
_LATE_SECONDS = 10.0  # the hub's patience may have begun after this process's


class MissingError(Exception):
    """Some processes did not come in time."""

    def __init__(self, ranks: list[int], strangers: int):
        super().__init__(ranks, strangers)
        self.ranks = ranks
        self.strangers = strangers  # connections that the hub turned away meanwhile


class _RefusedError(Exception):
    """The hub does not accept the proof of the secret."""


class Member:
    """Making one joins the run, and waits until all others have. From ``listen`` on, it sends and receives on its own thread."""

    def __init__(self, host: str, port: int, rank: int, count: int, key: bytes, patience: float):
        self._address = host, port
        self._where = addresses.join(host, port)
        self._rank, self._count, self._key, self._patience = rank, count, key, patience
        self._lines = wire.LineBuffer()
        self._listens = False
        self._unread: list[bytes] = []  # lines that arrived together with the welcome
        connection, self.coordinator = self._join()
        self.own_host: str = connection.getsockname()[0]  # of the interface that leads to the first process
        self._channel = wire.Channel(connection)
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)

    # --- joining

    def _join(self) -> tuple[socket.socket, str]:
        """The connection, and where JAX's coordinator is."""
        deadline, refused = time.monotonic() + self._patience, None
        timeouts = 0
        while True:
            try:
                return self._attempt(deadline, _CONNECT_SECONDS[min(timeouts, len(_CONNECT_SECONDS) - 1)])
            except _RefusedError:
                refused = refused or time.monotonic()
                deadline = min(deadline, refused + _REFUSED_SECONDS)
                why = (
                    f"the process at {self._where} does not let this one join: it belongs to another run, or has another secret\n"
                    f"  try        the same ONEFLOW_SECRET, or ONEFLOW_SECRET_FILE, for all processes; another port for each run"
                )
            except ProtocolError as error:
                why = (
                    f"what listens at {self._where} is not a process of this run, or it has just ended: {error}\n"
                    f"  try        another port: flow.env.ctrl_port(n), or --master host:port of the launcher"
                )
            except OSError as error:
                timeouts = timeouts + 1 if isinstance(error, TimeoutError) else 0
                why = (
                    f"the first process of the run does not answer at {self._where}: {error.strerror or error} "
                    f"(tried for {self._patience:g} s)\n"
                    f"  try        start the same script on every machine; look at the addresses and at flow.env.ctrl_port"
                )
            if time.monotonic() + _RETRY_SECONDS > deadline:
                raise ProcessError(why)
            time.sleep(_RETRY_SECONDS)

    def _attempt(self, deadline: float, patience: float) -> tuple[socket.socket, str]:
        left = max(deadline - time.monotonic(), _RETRY_SECONDS)
        connection = socket.create_connection(self._address, timeout=min(left, patience))
        try:
            now = time.monotonic()
            self._prove(connection, min(now + _GREETING_SECONDS, max(deadline, now + _LEAST_GREETING_SECONDS)))
            connection.sendall(messages.encode("join", **{"from": self._rank, "count": self._count}))
            return connection, self._wait_for_all(connection, time.monotonic() + self._patience + _LATE_SECONDS)
        except BaseException as error:
            connection.close()
            self._lines = wire.LineBuffer()
            if isinstance(error, OSError):
                raise ProtocolError(error.strerror or str(error)) from error
            raise

    def _prove(self, connection: socket.socket, deadline: float) -> None:
        """Proves to the hub that this process knows the secret, and sees that the hub does."""
        handshake = wire.MemberHandshake(self._key)
        connection.sendall(handshake.opening)  # has the system repeat at once what it lost in a full queue
        response = handshake.response(_read(connection, wire.CHALLENGE_SIZE, deadline))
        connection.sendall(response.removeprefix(handshake.opening))
        if not handshake.accepted(_read(connection, wire.VERDICT_SIZE, deadline)):
            raise _RefusedError

    def _wait_for_all(self, connection: socket.socket, deadline: float) -> str:
        while not self._unread:
            self._unread = self._lines.feed(_receive(connection, 1 << 16, deadline))
        message = messages.decode(self._unread.pop(0), self._count, messages.FROM_HUB)
        if message["kind"] == "go":
            return message["coordinator"]
        if message["kind"] == "missing":
            raise MissingError(message["ranks"], message["strangers"])
        raise ProcessError(f"the process at {self._where} does not let this one join: {message.get('why', 'it is about to end')}")

    # --- being one of them

    def send(self, kind: str, **fields: Any) -> None:
        """Tells all processes, this one included; never waits. Where the connection is gone, ``listen`` sees it."""
        line = messages.encode(kind, **{"from": self._rank}, **fields)
        try:
            self._channel.send(line)
        except OSError:
            self._channel.shut_down()  # the thread that listens wakes up
        if self._channel.has_backlog:
            with contextlib.suppress(OSError):  # full: the thread is about to wake up anyway
                self._wake.send(b"\0")

    def listen(self, receive: Callable[[Message], None], ended: Callable[[], None]) -> None:
        """Hands every message to ``receive``, from a thread; ``ended`` when the connection to the hub is gone."""

        def run() -> None:
            try:
                self._serve(receive)
            except (OSError, ProtocolError):
                pass  # closed, by whichever side, or by something that is not the hub
            finally:
                ended()
                self.close()

        self._listens = True
        threading.Thread(target=run, name="oneflow-member", daemon=True).start()

    def _serve(self, receive: Callable[[Message], None]) -> None:
        known = {**messages.FROM_MEMBERS, **messages.FROM_HUB}
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            selector.register(self._channel, selectors.EVENT_READ)
            lines = self._unread
            while True:
                for line in lines:
                    receive(messages.decode(line, self._count, known))
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._channel.has_backlog else 0)
                selector.modify(self._channel, wanted)
                events = {key.fileobj: mask for key, mask in selector.select()}
                if self._woken in events:
                    self._woken.recv(4096)
                ready = events.get(self._channel, 0)
                if ready & selectors.EVENT_WRITE:
                    self._channel.flush()
                lines = self._read_lines() if ready & selectors.EVENT_READ else []

    def _read_lines(self) -> list[bytes]:
        try:
            data = self._channel.receive()
        except BlockingIOError:
            return []
        if not data:
            raise ProtocolError("it has closed the connection")
        return self._lines.feed(data)

    def flush(self, seconds: float) -> None:
        """Waits until all has been handed to the system, so that the process may end; not longer than ``seconds``."""
        deadline = time.monotonic() + seconds
        while self._channel.has_backlog and time.monotonic() < deadline:
            time.sleep(0.01)

    def leave(self) -> None:
        """Leaves the run: the others see that this process is gone."""
        self._channel.shut_down()
        if not self._listens:
            self.close()

    def close(self) -> None:
        """Closes this process's descriptors and no more: a forked child does so with its copies of its parent's."""
        for part in (self._channel, self._wake, self._woken):
            part.close()


def _receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("it says nothing")
    connection.settimeout(left)
    data = connection.recv(size)
    if not data:
        raise ProtocolError("it has closed the connection")
    return data


def _read(connection: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        data += _receive(connection, size - len(data), deadline)
    return data
