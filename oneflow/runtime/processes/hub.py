"""The hub, a thread of the first process: lets the processes of the run in, then relays each one's messages to all of them.

JAX's own coordination service cannot do this: it aborts a process, without naming another, where a peer is missing, late or gone.
A peer that connects is not trusted until it has proven that it knows the secret of the run.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable

from . import messages, wire
from .messages import Message
from .wire import ProtocolError

_log = logging.getLogger("oneflow")
_GREETING_SECONDS = 5.0  # from connecting to having joined
_MAX_STRANGERS = 256  # connections that have not joined; the oldest makes room for a new one
_ACCEPTED_AT_ONCE = 32  # before members are served again
_FAREWELL_SECONDS = 2.0  # for a last message to be read
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_SECONDS = 0.1


class _Connection:
    """A stranger, or, once ``rank`` is known, a member."""

    def __init__(self, connection: socket.socket, peer: str, key: bytes):
        self.peer = peer
        self.channel = wire.Channel(connection)
        self.handshake: wire.HubHandshake | None = wire.HubHandshake(key)
        self.response = b""
        self.lines = wire.LineBuffer()
        self.rank = -1
        self.deadline = time.monotonic() + _GREETING_SECONDS


class Hub(threading.Thread):
    """Waits for all ``count`` processes, stops listening, sends them ``welcome``, and relays until all have left."""

    def __init__(self, server: socket.socket, count: int, key: bytes, welcome: Callable[[], str], patience: float):
        super().__init__(name="oneflow-hub", daemon=True)
        self._server = server
        self._count = count
        self._key = key
        self._welcome = welcome
        self._deadline = time.monotonic() + patience
        self._strangers: dict[_Connection, None] = {}  # the oldest first
        self._members: dict[int, _Connection] = {}
        self._selector = selectors.DefaultSelector()
        self._paused_until = 0.0
        self.turned_away = 0  # connections that ended without having joined
        self._most_strangers = _most_strangers()

    def run(self) -> None:
        """Until all members have left, or some did not come."""
        try:
            if not self._gather_members():
                missing = [rank for rank in range(self._count) if rank not in self._members]
                self._say_goodbye(messages.encode("missing", ranks=missing, strangers=self.turned_away))
                return
            try:
                go = messages.encode("go", coordinator=self._welcome())
            except OSError as error:
                self._say_goodbye(messages.encode("refused", why=f"the first process finds no port for JAX: {error}"))
                return
            # This process's own member last: should it end the process at once, the others have heard that the run has begun.
            for _, connection in sorted(self._members.items(), reverse=True):
                self._send(connection, go)
            while self._members:
                self._serve(1.0)
        finally:
            self._stop_listening()
            for connection in (*self._members.values(), *self._strangers):
                connection.channel.close()
            self._selector.close()

    # --- letting members in

    def _gather_members(self) -> bool:
        """Whether all came in time. Afterwards nobody can connect any more."""
        self._server.setblocking(False)
        self._selector.register(self._server, selectors.EVENT_READ)
        while len(self._members) < self._count:
            now = time.monotonic()
            if now > self._deadline:
                return False
            self._turn_away([c for c in self._strangers if c.deadline < now])
            if self._paused_until and now > self._paused_until:
                self._paused_until = 0.0
                self._selector.register(self._server, selectors.EVENT_READ)
            self._serve(_PAUSE_SECONDS)
        self._stop_listening()
        self._turn_away(list(self._strangers))
        if self.turned_away > 1:
            _log.info("oneflow: %d connections were not of this run and were turned away", self.turned_away)
        return True

    def _stop_listening(self) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._server)
        self._server.close()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, address = self._server.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF_DESCRIPTORS:
                    self._make_room()
                    return
                continue  # the peer has gone already
            try:
                connection = _Connection(accepted, address[0], self._key)
                self._selector.register(connection.channel, selectors.EVENT_READ, connection)
            except OSError:  # gone meanwhile
                accepted.close()
                continue
            self._strangers[connection] = None
            assert connection.handshake is not None
            self._send(connection, connection.handshake.challenge)
            if len(self._strangers) > self._most_strangers:
                self._turn_away([next(iter(self._strangers))])

    def _make_room(self) -> None:
        """Where the process has no descriptor left: half of the strangers go, or, without any, accepting pauses."""
        oldest = list(self._strangers)[: (len(self._strangers) + 1) // 2]
        self._turn_away(oldest)
        if not oldest:
            self._selector.unregister(self._server)
            self._paused_until = time.monotonic() + _PAUSE_SECONDS

    def _turn_away(self, connections: list[_Connection]) -> None:
        for connection in connections:
            if connection in self._strangers:
                self._drop(connection)

    def _greet(self, connection: _Connection) -> None:
        """Reads from a stranger: no more than its proof, and then the one message by which it joins."""
        if connection.handshake is not None:
            connection.response += connection.channel.receive(wire.RESPONSE_SIZE - len(connection.response)) or _end()
            if len(connection.response) < wire.RESPONSE_SIZE:
                return
            accepted, verdict = connection.handshake.verdict(connection.response)
            connection.handshake = None
            connection.channel.send(verdict)
            if not accepted:
                raise ProtocolError("it does not know the secret of the run")
            return
        for line in connection.lines.feed(connection.channel.receive() or _end()):
            if connection.rank >= 0:
                self._take(connection, line)
            else:
                self._join(connection, messages.decode(line, self._count, {"join": messages.FROM_MEMBERS["join"]}))

    def _join(self, connection: _Connection, message: Message) -> None:
        rank, count = message["from"], message["count"]
        if count != self._count:
            why = f"its environment says that the run has {count} processes, the first one knows of {self._count}"
        elif rank >= count or rank in self._members:
            why = f"another process is number {rank} already"
        else:
            connection.rank = rank
            self._members[rank] = connection
            del self._strangers[connection]
            return
        connection.channel.send(messages.encode("refused", why=why))
        raise ProtocolError(why)

    # --- both

    def _serve(self, timeout: float) -> None:
        """Reads and writes what is ready: members first."""
        ready = sorted(self._selector.select(timeout), key=lambda event: event[0].data is None or event[0].data.rank < 0)
        for key, events in ready:
            connection: _Connection | None = key.data
            if connection is None:
                self._accept()
            elif connection.rank >= 0 or connection in self._strangers:  # not dropped by another event
                self._attend(connection, events)

    def _attend(self, connection: _Connection, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                connection.channel.flush()
                self._watch(connection)
            if events & selectors.EVENT_READ:
                if connection.rank < 0:
                    self._greet(connection)
                else:
                    for line in connection.lines.feed(connection.channel.receive() or _end()):
                        self._take(connection, line)
        except BlockingIOError:
            pass
        except (OSError, ProtocolError) as error:
            self._drop(connection, error)

    def _take(self, connection: _Connection, line: bytes) -> None:
        """Relays a member's message to all, itself included; a member can only speak for itself."""
        message = messages.decode(line, self._count, messages.FROM_MEMBERS)
        if message["kind"] == "join" or message["from"] != connection.rank:
            raise ProtocolError("it speaks for another process")
        self._relay_all(line + b"\n")

    def _relay_all(self, line: bytes) -> None:
        for connection in list(self._members.values()):
            self._send(connection, line)

    def _send(self, connection: _Connection, data: bytes) -> None:
        try:
            connection.channel.send(data)
            self._watch(connection)
        except OSError:
            connection.channel.shut_down()  # its end is seen by the next read

    def _watch(self, connection: _Connection) -> None:
        """Asks for a notice when the peer can take more, if something waits to be sent."""
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.channel.has_backlog else 0)
        if self._selector.get_key(connection.channel).events != wanted:
            self._selector.modify(connection.channel, wanted, connection)

    def _drop(self, connection: _Connection, error: Exception | None = None) -> None:
        self._selector.unregister(connection.channel)
        if connection.rank < 0:
            del self._strangers[connection]
            self._count_stranger(connection, error)
        elif self._members.get(connection.rank) is connection:
            del self._members[connection.rank]
            if isinstance(error, ProtocolError):
                _log.error("oneflow: process %d of the run was let go: %s", connection.rank, error)
            if not self._is_listening:
                self._relay_all(messages.encode("gone", **{"from": connection.rank}))
        connection.channel.close()

    @property
    def _is_listening(self) -> bool:
        return self._server.fileno() >= 0

    def _count_stranger(self, connection: _Connection, error: Exception | None) -> None:
        self.turned_away += 1
        if self.turned_away == 1:
            why = str(error) if isinstance(error, ProtocolError) else "it did not prove that it knows the secret of the run"
            _log.warning("oneflow: turned away a connection from %s at the port of the run: %s; others are only counted",
                         connection.peer, why)  # fmt: skip

    def _say_goodbye(self, line: bytes) -> None:
        """Sends a last message and waits a little until it has been read."""
        self._relay_all(line)
        deadline = time.monotonic() + _FAREWELL_SECONDS
        while self._members and time.monotonic() < deadline:
            self._serve(_PAUSE_SECONDS)


def _most_strangers() -> int:
    """A small part of the descriptors that the process may have."""
    try:
        import resource  # not on every system
    except ImportError:
        return _MAX_STRANGERS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, min(_MAX_STRANGERS, soft // 8)) if soft > 0 else _MAX_STRANGERS


def _end() -> bytes:
    raise ConnectionResetError("the peer has closed the connection")
