"""The bytes between processes: who is let in, how they become messages, and what is refused."""

from __future__ import annotations

import json
import secrets
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oneflow.runtime.processes import messages, wire
from oneflow.runtime.processes.wire import ProtocolError

KEY = wire.session_key("a secret of the run", "job 7")


def test_both_sides_prove_that_they_know_the_secret() -> None:
    hub, member = wire.HubHandshake(KEY), wire.MemberHandshake(KEY)
    response = member.response(hub.challenge)
    accepted, verdict = hub.verdict(response)
    assert accepted and member.accepted(verdict)
    sizes = len(hub.challenge), len(response), len(verdict)
    assert sizes == (wire.CHALLENGE_SIZE, wire.RESPONSE_SIZE, wire.VERDICT_SIZE)


@pytest.mark.parametrize("other", [wire.session_key("another secret", "job 7"), wire.session_key("a secret of the run", "job 8")])
def test_another_secret_and_another_run_are_refused(other: bytes) -> None:
    hub, member = wire.HubHandshake(KEY), wire.MemberHandshake(other)
    accepted, verdict = hub.verdict(member.response(hub.challenge))
    assert not accepted and not member.accepted(verdict)
    with pytest.raises(ProtocolError, match="does not know the secret"):
        member.accepted(b"+" + secrets.token_bytes(32))  # a hub that pretends


def test_what_was_overheard_proves_nothing() -> None:
    hub, member = wire.HubHandshake(KEY), wire.MemberHandshake(KEY)
    response = member.response(hub.challenge)
    _, verdict = hub.verdict(response)
    assert not wire.HubHandshake(KEY).verdict(response)[0]  # replayed to the next hub
    with pytest.raises(ProtocolError):
        other = wire.MemberHandshake(KEY)
        other.response(hub.challenge)
        other.accepted(verdict)
    # a member's own answer, sent back to it, is not the hub's proof
    theirs, proof = response[:32], response[32:]
    with pytest.raises(ProtocolError):
        member.accepted(b"+" + proof)
    assert not wire.HubHandshake(KEY).verdict(theirs + verdict[1:])[0]


@pytest.mark.parametrize("challenge", [b"", b"HTTP/1.1 400 Bad Request\r\n" + bytes(20), b"oneflow-run-1\n" + bytes(32)])
def test_a_challenge_of_something_else(challenge: bytes) -> None:
    with pytest.raises(ProtocolError, match="protocol"):
        wire.MemberHandshake(KEY).response(challenge)


@given(st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line), max_size=20), st.data())
def test_lines_are_the_same_however_they_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    buffer, found = wire.LineBuffer(), []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += buffer.feed(stream[begin:end])
    assert found == lines


def test_a_line_has_a_maximum() -> None:
    buffer = wire.LineBuffer(limit=1000)
    assert buffer.feed(b"x" * 1000) == [] and buffer.feed(b"\n") == [b"x" * 1000]
    with pytest.raises(ProtocolError, match="longer than 1000 bytes"):
        for _ in range(11):
            buffer.feed(b"x" * 100)
    with pytest.raises(ProtocolError, match="longer"):
        wire.LineBuffer(limit=1000).feed(b"x" * 1001 + b"\n")


def test_many_small_pieces_are_not_looked_at_again() -> None:
    """1 MB, byte by byte: with a search of all that has arrived at each byte, this would take hours."""
    buffer = wire.LineBuffer()
    for _ in range(1 << 20):
        buffer.feed(b"x")
    assert buffer.feed(b"\n") == [b"x" * (1 << 20)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_depth_is_what_a_walk_finds(value: Any) -> None:
    def depth(part: Any) -> int:
        if isinstance(part, dict):
            return 1 + max((depth(v) for v in part.values()), default=0)
        return 1 + max((depth(v) for v in part), default=0) if isinstance(part, list) else 0

    line = json.dumps(value).encode()
    many = b"[" + line + b',"' + b"[{" * wire.MAX_DEPTH + b'\\"[]"]'  # brackets in a text are none
    assert wire._depth(many) == 1 + max(depth(value), 0)
    assert wire.decode(line) == value


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"\xff\xfe", b"[" * 200_000, b'{"a":' * 100_000, b"[" * 30 + b"]" * 30, b"1" * 5000, b'"\\', b'"' * 99_999,
     "{}".encode("utf-16")],
)  # fmt: skip
def test_lines_that_are_no_messages(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        wire.decode(line)


def test_messages_that_are_too_large_are_not_sent() -> None:
    with pytest.raises(ValueError, match="more than other processes take"):
        wire.encode({"value": "x" * (wire.MAX_LINE + 1)})
    deep: Any = 0
    for _ in range(wire.MAX_DEPTH):
        deep = [deep]
    with pytest.raises(ValueError, match="17 levels deep"):
        wire.encode({"value": deep})


SAMPLES: list[tuple[str, dict[str, Any]]] = [
    ("join", {"from": 1, "count": 3}),
    ("beat", {"from": 1, "calls": 7, "returned": 6, "busy": "", "doing": "", "recent": [[7, "job 'train'"]]}),
    ("gather", {"from": 0, "number": 2, "tag": "a seed", "value": [1, {"a": None}]}),
    ("end", {"from": 2, "how": "failed", "why": "ValueError", "calls": 3}),
    ("go", {"coordinator": "127.0.0.1:1234"}),
    ("refused", {"why": "no"}),
    ("missing", {"ranks": [1, 2], "strangers": 0}),
    ("gone", {"from": 2}),
]
KNOWN = {**messages.FROM_MEMBERS, **messages.FROM_HUB}


@pytest.mark.parametrize(("kind", "fields"), SAMPLES, ids=[kind for kind, _ in SAMPLES])
def test_each_field_of_each_message_is_checked(kind: str, fields: dict[str, Any]) -> None:
    line = messages.encode(kind, **fields)
    assert messages.decode(line[:-1], 3, KNOWN) == {"kind": kind, **fields}
    for name in fields:
        if name == "value":
            continue
        for wrong in (None, True, 0.5, -1, 1 << 60, "x" * 20_000, [], [[]], [[1]], [[0.5, "x"]], [3], {}, {"a": 1}, float("nan")):
            if (name, wrong) in (("recent", []), ("ranks", [])):
                continue
            with pytest.raises(ProtocolError, match=name):
                messages.decode(json.dumps({"kind": kind, **fields, name: wrong}).encode(), 3, KNOWN)
        with pytest.raises(ProtocolError, match="other fields"):
            messages.decode(json.dumps({"kind": kind, **{k: v for k, v in fields.items() if k != name}}).encode(), 3, KNOWN)
    with pytest.raises(ProtocolError, match="other fields"):
        messages.decode(json.dumps({"kind": kind, **fields, "more": 1}).encode(), 3, KNOWN)
    if kind != "join" and "from" in fields:  # a number of "join" is judged by the hub, which answers
        with pytest.raises(ProtocolError, match="'from'"):
            messages.decode(json.dumps({"kind": kind, **fields, "from": 3}).encode(), 3, KNOWN)


@pytest.mark.parametrize("message", [None, 3, "go", [], {}, {"kind": None}, {"kind": ["go"]}, {"kind": "stop"}, {"from": 1}])
def test_messages_of_no_kind(message: Any) -> None:
    with pytest.raises(ProtocolError, match="no kind"):
        messages.decode(json.dumps(message).encode(), 3, KNOWN)


def test_a_peer_that_does_not_read_keeps_nobody_waiting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = wire.Channel(socket.create_connection(server.getsockname()))
        reader = server.accept()[0]
    lines = [b"%06d " % n + b"x" * 100_000 + b"\n" for n in range(200)]  # 20 MB, more than the system keeps
    for line in lines:
        sender.send(line)
    assert sender.has_backlog
    received = bytearray()
    reader.settimeout(10)
    while len(received) < sum(map(len, lines)):
        received += reader.recv(1 << 20)
        sender.flush()
    assert bytes(received) == b"".join(lines) and not sender.has_backlog
    with pytest.raises(OSError, match="does not read"):
        for _ in range(100):
            sender.send(b"x" * (1 << 20))
    reader.close()
    sender.close()
