"""The server as a program, who may ask, limits of connections, metrics and the page."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clients import Http, metric, values, write_affine

import oneflow as flow
from oneflow.errors import ServingError
from oneflow.serving import _connection

ONE = np.ones((1, 3), np.float32)


@contextmanager
def program(models: Path, *options: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``oneflow serve`` as a process, and where it serves."""
    command = [sys.executable, "-m", "oneflow", "serve", str(models), "--port", "0", "--batch-sizes", "4", *options]
    process = subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield process, line.removeprefix("serving at ").strip()
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def raw(url: str, data: bytes) -> bytes:
    """What the server answers to some bytes until it closes the connection."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(data)
        found = b""
        while part := connection.recv(65536):
            found += part
    return found


def test_sigterm_answers_what_waits_and_ends(tmp_path: Path) -> None:
    write_affine(tmp_path / "affine.stablehlo", 2.0)
    with program(tmp_path, "--max-delay-ms", "60000") as (process, url), Http(url) as http:
        assert http("GET", "/v2/health/ready")[0] == 200
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(http.infer(ONE)))
        thread.start()
        with Http(url) as other:
            while metric(other, "oneflow_queue_length") < 1:
                pass
            process.send_signal(signal.SIGTERM)
        thread.join()
        assert answers[0][0] == 200 and (values(answers[0][1]) == 2).all()
        assert process.wait(60) == 0
        assert process.stderr is not None and process.stderr.read() == ""


def test_a_second_program_finds_the_port_taken(tmp_path: Path, start: Any) -> None:
    (tmp_path / "models").mkdir()
    server, _ = start()
    port = int(server.url.rpartition(":")[2])
    other = flow.serving.Server(tmp_path / "models", port=port)
    with pytest.raises(ServingError, match=r"(?s)cannot listen at 127.0.0.1.*your line  .*test_server.py"):
        other.start()
    with pytest.raises(ServingError, match="was started before"):
        server.start()


def test_the_program_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "digits.stablehlo").write_bytes(b"no model")
    command = [sys.executable, "-m", "oneflow.serving", str(tmp_path), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "1 of the models" in done.stderr and "digits: version 1:" in done.stderr
    assert "Traceback" not in done.stderr and not done.stdout


def test_a_server_says_where_it_is(tmp_path: Path) -> None:
    server = flow.serving.Server(tmp_path, port=0)
    assert repr(server) == f"<Server of {str(tmp_path)!r}: not started>"
    with server:
        assert repr(server) == f"<Server of {str(tmp_path)!r}: at {server.url}>"
    assert repr(server) == f"<Server of {str(tmp_path)!r}: stopped>"


def test_a_token(tmp_path: Path, start: Any) -> None:
    write_affine(tmp_path / "models" / "affine.stablehlo", 2.0)
    server, http = start(token="sesame", max_delay_ms=0)
    assert http.infer(ONE)[0] == 200 and http("POST", "/v2/repository/models/affine/load")[0] == 200
    for headers in ({}, {"Authorization": "Bearer sesam"}, {"Authorization": "Basic sesame"}, {"Authorization": "Bearer s\u00e9"},
                    {"Authorization": "Bearer"}):  # fmt: skip
        with Http(server.url, **headers) as stranger:
            status, answer = stranger.infer(ONE)
            assert status == 401 and "bearer token" in answer["error"] and stranger.headers["www-authenticate"] == "Bearer"
            assert stranger("GET", "/metrics")[0] == 401 and stranger("POST", "/v2/repository/models/affine/unload")[0] == 401
            assert stranger("GET", "/v2/health/ready")[0] == 200 and stranger("GET", "/")[0] == 200


def test_pages_of_other_sites_and_other_names_of_this_machine(tmp_path: Path, start: Any) -> None:
    write_affine(tmp_path / "models" / "affine.stablehlo", 2.0)
    server, http = start(allowed_hosts=["models.example"])
    path = "/v2/repository/models/affine/unload"
    own = server.url.removeprefix("http://")
    for headers, status in (
        ({"Origin": "http://[bad"}, 403),
        ({"Origin": "https://evil.example"}, 403), ({"Origin": "null"}, 403), ({"Host": "evil.example"}, 403),
        ({"Host": f"evil.example:{own.rpartition(':')[2]}"}, 403), ({"Host": "[::1"}, 403), ({"Host": ""}, 403),
        ({"Origin": server.url}, 200), ({"Host": "models.example"}, 200),
    ):  # fmt: skip
        assert http("GET", "/v2", **headers)[0] == status
        if status == 403:
            assert http("POST", path, **headers)[0] == 403
    assert http("GET", "/v2/models/affine/ready")[0] == 200


def test_other_machines_load_nothing_without_a_token(tmp_path: Path, start: Any) -> None:
    write_affine(tmp_path / "models" / "affine.stablehlo", 2.0)
    server, _ = start(host="0.0.0.0", max_delay_ms=0)
    with Http(server.url.replace("0.0.0.0", "127.0.0.1")) as http:
        assert http.infer(ONE)[0] == 200
        for what in ("load", "unload"):
            assert http("POST", f"/v2/repository/models/affine/{what}")[0] == 403


def test_what_is_not_http(tmp_path: Path, start: Any) -> None:
    (tmp_path / "models").mkdir()
    server, http = start(body_timeout=0.05)
    for rubbish in (b"rubbish\r\n\r\n", b"FOO / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x16\x03\x01\x00\xc8\x01\x00\x00"):
        head, _, body = raw(server.url, rubbish).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400") and b"application/json" in head and json.loads(body).keys() == {"error"}
    endless = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * (1 << 20)
    with contextlib.suppress(ConnectionError):  # closed while the client still sends
        assert raw(server.url, endless).startswith(b"HTTP/1.1 400")
    late = b"POST /v2/repository/index HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{"
    assert raw(server.url, late).startswith(b"HTTP/1.1 408")
    assert http("GET", "/v2/health/live")[0] == 200


def test_a_head_that_does_not_go_on(tmp_path: Path, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    server, _ = start()
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as kept:
        kept.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert kept.recv(65536).startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(_connection, "SECONDS", 0.05)
        kept.sendall(b"GET /v2/hea")
        assert kept.recv(65536) == b""
    for begun in (b"", b"GET / HT"):
        with contextlib.suppress(ConnectionError):  # closed before the client has sent it
            assert raw(server.url, begun) == b""


def test_a_connection_too_many(tmp_path: Path, start: Any) -> None:
    (tmp_path / "models").mkdir()
    server, http = start(max_connections=3)
    assert http("GET", "/v2/health/live")[0] == 200
    with Http(server.url) as second, Http(server.url) as third:
        assert second("GET", "/v2/health/live")[0] == third("GET", "/v2/health/live")[0] == 200
        with Http(server.url) as fourth:
            status, answer = fourth("GET", "/v2/health/live")
        assert status == 503 and "as many connections as it may have" in answer["error"] and fourth.headers["retry-after"] == "1"
        assert http("GET", "/v2/health/live")[0] == second("GET", "/v2/health/live")[0] == 200

    def is_taken() -> bool:
        with Http(server.url) as later:
            return later("GET", "/v2/health/live")[0] == 200

    while not is_taken():  # once the server has seen that the other two are gone
        pass


def test_many_large_bodies_at_one_time(tmp_path: Path, start: Any) -> None:
    write_affine(tmp_path / "models" / "affine.stablehlo", 2.0)
    server, http = start(max_bodies=1000, max_body=1000)
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as slow:
        slow.sendall(b"POST /v2/models/affine/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 990\r\n\r\n{")
        while (status := http.infer(ONE)[0]) == 200:  # until the server has read the head of the other one
            pass
        assert status == 503 and http.headers["retry-after"] == "1"
    while http.infer(ONE)[0] != 200:  # until it has seen that the other one is gone
        pass


def test_clients_that_leave_harm_nobody(tmp_path: Path, start: Any) -> None:
    write_affine(tmp_path / "models" / "affine.stablehlo", 2.0)
    server, http = start(max_delay_ms=20)
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    for size in (100, 40, 3):
        with socket.create_connection((host, int(port)), timeout=60) as leaving:
            body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}'
            head = f"POST /v2/models/affine/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            leaving.sendall((head + body)[: len(head) + size])
    assert (values(http.infer(ONE)[1]) == 2).all()
    assert metric(http, "oneflow_http_responses_total", status="500") == 0


def test_tls(tmp_path: Path, start: Any) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    try:
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days",
                        "2", "-subj", "/CN=localhost"], check=True, capture_output=True)  # fmt: skip
    except FileNotFoundError:
        pytest.skip("needs the program openssl, to make a certificate")
    write_affine(tmp_path / "models" / "affine.stablehlo", 2.0)
    server, http = start(ssl_certfile=certificate, ssl_keyfile=key, max_delay_ms=0)
    assert server.url.startswith("https://") and http.infer(ONE)[0] == 200
    encrypted = str(tmp_path / "encrypted.pem")
    subprocess.run(
        ["openssl", "rsa", "-aes256", "-in", key, "-out", encrypted, "-passout", "pass:secret"], check=True, capture_output=True
    )
    for password in (None, "wrong"):  # nobody is asked at the terminal
        with pytest.raises(ServingError, match="try +the password of the key"):
            start(ssl_certfile=certificate, ssl_keyfile=encrypted, ssl_keyfile_password=password)
    start(ssl_certfile=certificate, ssl_keyfile=encrypted, ssl_keyfile_password="secret")
    with pytest.raises(ServingError, match="try +files in PEM format: a certificate, and the key"):
        start(ssl_certfile=certificate)
    Path(certificate).write_text("no certificate")
    with pytest.raises(ServingError, match="TLS cannot be set up"):
        start(ssl_certfile=certificate, ssl_keyfile=key)


def test_metrics(tmp_path: Path, start: Any) -> None:
    write_affine(tmp_path / "models" / "affine.stablehlo", 2.0)
    _, http = start(max_delay_ms=0)
    before = metric(http, "oneflow_compilations_total")
    for rows in (1, 3, 4):
        assert http.infer(np.ones((rows, 3)))[0] == 200
    assert http.infer(np.ones((5, 3)))[0] == 400
    for name, labels, value in (
        ("oneflow_requests_total", {"status": "200"}, 3), ("oneflow_requests_total", {"status": "400"}, 1),
        ("oneflow_request_seconds_count", {}, 3), ("oneflow_queue_seconds_count", {}, 3), ("oneflow_batch_seconds_count", {}, 3),
        ("oneflow_batch_rows_sum", {}, 8), ("oneflow_padding_rows_total", {}, 1), ("oneflow_queue_length", {}, 0),
        ("oneflow_versions", {"model": "affine"}, 1), ("oneflow_loads_total", {"result": "loaded"}, 1),
    ):  # fmt: skip
        assert metric(http, name, **labels) == value, name
    assert metric(http, "oneflow_compilations_total") == before >= 2


def test_the_page_needs_nothing_from_elsewhere(tmp_path: Path, start: Any) -> None:
    (tmp_path / "models").mkdir()
    _, http = start()
    status, page = http("GET", "/")
    text = page.decode()
    assert status == 200 and http.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in http.headers["content-security-policy"]
    assert not re.search(r"https?://|//cdn|<link|@import|src=", text) and "innerHTML" not in text
    for asked in ("/v2/repository/index", "/metrics", "/infer", "/config"):
        assert asked in text
