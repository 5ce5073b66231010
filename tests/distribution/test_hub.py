"""How the processes of a run meet, and what strangers at its port can do: without JAX, in one process."""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from strangers import stranger

from oneflow.errors import ProcessError
from oneflow.runtime.processes import addresses, hub, member, messages, wire

KEY = wire.session_key("the secret of the tests", "")


def _open(count: int, patience: float = 5.0, key: bytes = KEY) -> tuple[int, hub.Hub]:
    server = addresses.listen("127.0.0.1", 0)
    port = server.getsockname()[1]
    made = hub.Hub(server, count, key, lambda: "127.0.0.1:7", patience)
    made.start()
    return port, made


def _member(port: int, rank: int, count: int, patience: float = 5.0, key: bytes = KEY) -> member.Member:
    return member.Member("127.0.0.1", port, rank, count, key, patience)


class _Heard:
    """The messages that a member receives."""

    def __init__(self, of: member.Member):
        self.messages: list[dict[str, Any]] = []
        self.changed = threading.Condition()
        self.ended = threading.Event()
        of.listen(self._receive, self.ended.set)

    def _receive(self, message: dict[str, Any]) -> None:
        with self.changed:
            self.messages.append(message)
            self.changed.notify_all()

    def waits_for(self, message: dict[str, Any]) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: message in self.messages, 10)


def _end(rank: int, why: str = "", calls: int = 0) -> dict[str, Any]:
    return {"kind": "end", "from": rank, "how": "failed", "why": why, "calls": calls}


@contextlib.contextmanager
def _run(count: int, port: int, ranks: list[int] | None = None) -> Iterator[list[member.Member]]:
    with ThreadPoolExecutor() as pool:
        members = list(pool.map(lambda rank: _member(port, rank, count), ranks or range(count)))
    yield members
    for left in members:
        left.leave()


def test_members_hear_each_other_and_who_leaves() -> None:
    port, made = _open(3)
    with _run(3, port) as members:
        assert [m.coordinator for m in members] == ["127.0.0.1:7"] * 3
        heard = _Heard(members[0])
        members[1].send("end", how="failed", why="é\n", calls=2)
        assert heard.waits_for(_end(1, "é\n", 2))
        members[2].leave()
        assert heard.waits_for({"kind": "gone", "from": 2})
        members[1].leave()
        assert heard.waits_for({"kind": "gone", "from": 1})
    assert heard.ended.wait(5)
    made.join(5)
    assert not made.is_alive()


def test_a_member_that_is_one_too_many() -> None:
    port, _ = _open(2)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(_member, port, 0, 2)
        time.sleep(0.2)
        with pytest.raises(ProcessError, match="another process is number 0 already"):
            _member(port, 0, 2)
        with pytest.raises(ProcessError, match="another process is number 2 already"):
            _member(port, 2, 2)
        with pytest.raises(ProcessError, match="says that the run has 3 processes, the first one knows of 2"):
            _member(port, 1, 3)
        pool.submit(_member, port, 1, 2).result().leave()
        first.result().leave()


def test_a_process_may_leave_and_come_again_before_all_are_there() -> None:
    port, _ = _open(3)
    with ThreadPoolExecutor() as pool:
        with _connect(port) as early:
            _prove(early)
            early.sendall(messages.encode("join", **{"from": 1, "count": 3}))
            time.sleep(0.2)
        for future in [pool.submit(_member, port, rank, 3) for rank in range(3)]:
            assert future.result().coordinator == "127.0.0.1:7"
            future.result().leave()


def test_members_that_do_not_come_and_hubs_that_do_not_answer() -> None:
    port, _ = _open(3, patience=0.5)
    with _connect(port) as someone:
        someone.sendall(b"GET / HTTP/1.0\r\n\r\n" + bytes(50))
        with pytest.raises(member.MissingError) as caught:
            _member(port, 0, 3)
    assert (caught.value.ranks, caught.value.strangers) == ([1, 2], 1)
    with pytest.raises(ProcessError, match=r"does not answer at 127.0.0.1:\d+: .*tried for 0.5 s.*(?s:.*)same script"):
        _member(addresses.free_port("127.0.0.1"), 1, 2, patience=0.5)
    for says in (b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(50), wire.PROTOCOL + bytes(32) + b"+" + bytes(32), b"x"):
        with (
            stranger(lambda connection, says=says: connection.sendall(says)) as other,
            pytest.raises(ProcessError, match="not a process of this run"),
        ):
            _member(other, 1, 2, patience=0.5)


def test_another_secret_is_told() -> None:
    port, made = _open(2, patience=8)
    with pytest.raises(ProcessError, match="another run, or has another secret(?s:.*)ONEFLOW_SECRET"):
        _member(port, 1, 2, key=wire.session_key("a secret of others", ""))
    assert made.turned_away > 0


# --- strangers


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def _prove(connection: socket.socket) -> None:
    handshake = wire.MemberHandshake(KEY)
    connection.sendall(handshake.response(_exactly(connection, wire.CHALLENGE_SIZE)))
    assert handshake.accepted(_exactly(connection, wire.VERDICT_SIZE))


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        assert piece, "the hub has closed the connection"
        data += piece
    return data


def _is_turned_away(connection: socket.socket) -> bool:
    """Whether the hub closes the connection."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


HOSTILE = [
    b"null\n", b"[" * 200_000 + b"\n", b'{"greeting": "oneflow-run-1", "index": "0", "count": 2}\n',
    b'{"greeting": "oneflow-run-1", "index": 0.5, "count": 2}\n', b"\n" * 1000, bytes(10_000), b"\x16\x03\x01\x02\x00\x01",
    messages.encode("join", **{"from": 1, "count": 2}) * 3, messages.encode("gone", **{"from": 0}) * 3,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_what_strangers_say_is_not_read(text: bytes, caplog: pytest.LogCaptureFixture) -> None:
    port, made = _open(2)
    with caplog.at_level(logging.WARNING, "oneflow"), _connect(port) as stranger:
        with contextlib.suppress(OSError):  # it has been closed meanwhile
            stranger.sendall(text + bytes(wire.RESPONSE_SIZE))
        assert _is_turned_away(stranger)
        with _run(2, port):
            pass
    assert made.turned_away == 1 and caplog.text.count("turned away a connection from 127.0.0.1") == 1


def test_who_knows_the_secret_may_join_and_no_more() -> None:
    port, made = _open(2)
    for line in (b"null\n", b"[" * 200_000 + b"\n", b"x" * (wire.MAX_LINE + 1), messages.encode("gone", **{"from": 0}),
                 messages.encode("beat", **{"from": 0}, calls=0, returned=0, busy="", doing="", recent=[])):  # fmt: skip
        with _connect(port) as connection:
            _prove(connection)
            with contextlib.suppress(OSError):
                connection.sendall(line)
            assert _is_turned_away(connection)
    with _run(2, port):
        pass
    assert made.turned_away == 5


def test_a_member_can_only_speak_for_itself(caplog: pytest.LogCaptureFixture) -> None:
    port, _ = _open(3)
    with _run(3, port) as members, caplog.at_level(logging.ERROR, "oneflow"):
        heard = _Heard(members[0])
        members[2]._channel.send(messages.encode("end", **{"from": 1}, how="lost", why="", calls=0))
        assert heard.waits_for({"kind": "gone", "from": 2})
        members[1].send("end", how="failed", why="itself", calls=0)
        assert heard.waits_for(_end(1, "itself"))
        assert not any(m["kind"] == "end" and m["why"] == "" for m in heard.messages)
    assert "process 2 of the run was let go: it speaks for another process" in caplog.text


def test_nobody_can_connect_once_all_are_there() -> None:
    port, _ = _open(2)
    with _run(2, port):
        with pytest.raises(ConnectionRefusedError):
            _connect(port)
        with socket.create_server(("127.0.0.1", port)):  # another run may use the port
            pass


def test_idle_strangers_hold_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    port, made = _open(2, patience=30)
    idle = [_connect(port) for _ in range(600)]
    began = time.monotonic()
    with caplog.at_level(logging.WARNING, "oneflow"), _run(2, port):
        assert made.turned_away >= 600
    assert time.monotonic() - began < 5  # the hub's patience with each of them
    assert len(caplog.records) == 1
    for connection in idle:
        connection.close()


def test_a_greeting_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_GREETING_SECONDS", 0.3)
    port, _ = _open(2)
    with _connect(port) as silent, _connect(port) as slow, _connect(port) as halfway:
        _prove(halfway)
        slow.sendall(b"x")
        assert _is_turned_away(silent) and _is_turned_away(slow) and _is_turned_away(halfway)


def test_a_member_that_does_not_read_loses_nothing_and_holds_nobody_up() -> None:
    port, _ = _open(3)
    with _run(3, port) as members:
        heard = _Heard(members[0])  # members[2] reads nothing for now
        value = "x" * 1_000_000
        for number in range(30):  # 30 MB, more than the system keeps for a connection
            members[1].send("gather", number=number, tag="", value=value)
        members[1].send("end", how="failed", why="the last one", calls=0)
        _Heard(members[1])
        assert heard.waits_for(_end(1, "the last one"))
        late = _Heard(members[2])
        assert late.waits_for(_end(1, "the last one"))
        assert [m["number"] for m in late.messages if m["kind"] == "gather"] == list(range(30))


def test_a_member_that_never_reads_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_BACKLOG", 8 << 20)
    port, _ = _open(3)
    with _run(3, port) as members:
        heard, _ = _Heard(members[0]), _Heard(members[1])
        for number in range(40):
            members[1].send("gather", number=number, tag="", value="x" * 1_000_000)
            assert heard.waits_for({"kind": "gather", "from": 1, "number": number, "tag": "", "value": "x" * 1_000_000})
        assert heard.waits_for({"kind": "gone", "from": 2})
        assert {"kind": "gone", "from": 1} not in heard.messages


EXHAUSTED = """
import os, resource, sys, threading, time
from oneflow.runtime.processes import addresses, hub, member, wire

key = wire.session_key("the secret of the tests", "")
server = addresses.listen("127.0.0.1", 0)
port = server.getsockname()[1]
made = hub.Hub(server, 2, key, lambda: "", 30.0)
made.start()
time.sleep(0.2)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
os.close(held.pop())  # one stranger fits
print(port, flush=True)
sys.stdin.readline()  # a hundred have come
for _ in range(12):  # what the two members need by themselves, and nothing for the hub
    os.close(held.pop())
joined = []
threads = [threading.Thread(target=lambda rank=rank: joined.append(member.Member("127.0.0.1", port, rank, 2, key, 20.0)))
           for rank in (0, 1)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(joined), made.turned_away, flush=True)
"""


def test_a_process_without_descriptors_lets_its_members_in() -> None:
    program = subprocess.Popen([sys.executable, "-c", EXHAUSTED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert program.stdin is not None and program.stdout is not None
    port = int(program.stdout.readline())
    strangers = [_connect(port) for _ in range(100)]
    time.sleep(0.5)
    out, _ = program.communicate("go\n", timeout=60)
    joined, turned_away = map(int, out.split())
    assert joined == 2 and turned_away >= 10
    for connection in strangers:
        connection.close()


# --- addresses


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.1:29500", "10.0.0.1", 29500),
        ("node", "node", None),
        ("[::1]:80", "::1", 80),
        ("::1", "::1", None),
        ("[::1]", "::1", None),
    ],
)
def test_addresses_are_read_and_written(text: str, host: str, port: int | None) -> None:
    assert addresses.split(text) == (host, port)
    if port is not None:
        assert addresses.join(host, port) == text


@pytest.mark.parametrize("text", ["", ":80", "a:b", "a:0", "a:65536", "a:-1", "[::1]80", "a:²"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ValueError):
        addresses.split(text)


def test_loopback_is_known_by_its_addresses() -> None:
    assert all(addresses.is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "localhost", "::1"))
    assert not any(addresses.is_loopback(host) for host in ("10.0.0.1", "0.0.0.0", "no.such.host.invalid", "a..b", "x" * 70))
    assert all(not addresses.is_loopback(own) for own in addresses.own_addresses())
    with pytest.raises(OSError):
        addresses.listen("203.0.113.9", 0)


def test_a_full_queue_costs_a_member_less_than_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system drops its attempt, and would repeat it after a second; so it makes others earlier."""
    waited: list[float] = []
    outcomes = iter([ConnectionRefusedError, ConnectionRefusedError, TimeoutError, TimeoutError, KeyboardInterrupt])

    def connect(address: object, timeout: float) -> socket.socket:
        waited.append(timeout)
        raise next(outcomes)  # refused at once, where nobody listens yet

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(member.time, "sleep", waited.append)
    with pytest.raises(KeyboardInterrupt):
        _member(1, 0, 1, 60.0)
    assert len(waited) == 9 and sum(waited[4:8]) < 1  # two attempts that time out, and what is between them and the third


def test_the_opening_of_a_member_is_the_beginning_of_its_response() -> None:
    theirs, own = wire.HubHandshake(KEY), wire.MemberHandshake(KEY)
    response = own.response(theirs.challenge)
    assert response.startswith(own.opening) and len(response) == wire.RESPONSE_SIZE
    assert theirs.verdict(response)[0]
