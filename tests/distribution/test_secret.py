"""Where the secret of a run comes from, and where a run may listen without one."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import oneflow.env as env
from oneflow.config._environment import Environment
from oneflow.errors import ArgumentError
from oneflow.runtime.processes import rendezvous, secret

TEXT = "0123456789abcdef"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    Environment.reset()
    for name in (secret.SECRET, secret.SECRET_FILE, secret.INSECURE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    Environment.reset()


def _write(path: Path, text: str = TEXT, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_what_is_given_goes_before_all_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(secret.SECRET_FILE, _write(tmp_path / "a", f"  {TEXT}a\n"))
    assert secret.of_run("10.0.0.1") == f"{TEXT}a"
    monkeypatch.setenv(secret.SECRET, f"{TEXT}b")
    assert secret.of_run("10.0.0.1") == f"{TEXT}b"
    env.secret_file(_write(tmp_path / "c", f"{TEXT}c"))
    assert secret.of_run("10.0.0.1") == f"{TEXT}c"
    env.secret(f"{TEXT}d")
    assert secret.of_run("10.0.0.1") == secret.of_run("127.0.0.1") == f"{TEXT}d"


def test_other_machines_are_kept_out_without_a_secret(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for hosts in (("10.0.0.1",), ("127.0.0.1", "0.0.0.0"), ("no.such.host.invalid",)):
        with pytest.raises(ArgumentError, match=rf"listen at {hosts[-1]}(?s:.*)ONEFLOW_SECRET(?s:.*)flow.env.insecure"):
            secret.of_run(*hosts)
    monkeypatch.setenv(secret.INSECURE, "0")
    with pytest.raises(ArgumentError):
        secret.of_run("10.0.0.1")
    monkeypatch.setenv(secret.INSECURE, "1")
    assert secret.of_run("10.0.0.1") == "" and "insecure: everybody who reaches 10.0.0.1" in caplog.text
    monkeypatch.delenv(secret.INSECURE)
    env.insecure()
    assert secret.of_run("10.0.0.1") == ""


def test_machines_need_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    class Server:
        closed = False

        def close(self) -> None:
            self.closed = True

    server = Server()
    monkeypatch.setattr(rendezvous, "_claim", lambda hosts, port: (0, server))
    env.machine(["10.0.0.1", "10.0.0.2"])
    env.ctrl_port(50051)
    with pytest.raises(ArgumentError, match="share no secret"):
        rendezvous.find()
    assert server.closed


def test_the_processes_of_one_user_on_one_machine_share_a_file(tmp_path: Path) -> None:
    found = secret.of_run("127.0.0.1")
    path = tmp_path / "cache" / "oneflow-jax" / "secret"
    assert len(found) == 64 and found == secret.of_run("localhost") == path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and [p.name for p in path.parent.iterdir()] == ["secret"]
    path.unlink()
    assert secret.of_run("127.0.0.1") != found


@pytest.mark.parametrize("how", ["readable", "damaged", "directory", "no home"])
def test_a_file_that_is_not_the_users_alone_is_not_used(how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    path = tmp_path / "cache" / "oneflow-jax" / "secret"
    path.parent.mkdir(parents=True)
    if how == "directory":
        path.mkdir()
    elif how == "no home":
        monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    else:
        _write(path, TEXT if how == "readable" else "x", 0o644 if how == "readable" else 0o600)
    assert secret.of_run("127.0.0.1") == ""
    assert "others who use this machine may take part" in caplog.text


def test_secrets_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "none", tmp_path / "pipe", Path("/dev/zero")):
        monkeypatch.setenv(secret.SECRET_FILE, str(path))
        with pytest.raises(ArgumentError, match="ONEFLOW_SECRET_FILE: .* cannot be read"):
            secret.given()
    for text in ("short", "x" * 5000, "   \n"):
        monkeypatch.setenv(secret.SECRET_FILE, _write(tmp_path / "file", text))
        with pytest.raises(ArgumentError, match="must hold 16 to 4096 characters"):
            secret.given()
    monkeypatch.setenv(secret.SECRET, "short")
    with pytest.raises(ArgumentError, match="ONEFLOW_SECRET must hold 16 to 4096"):
        secret.given()
    for wrong in (3, "short", "", None):
        with pytest.raises(ArgumentError, match=r"flow.env.secret takes a string(?s:.*)test_secret.py"):
            env.secret(wrong)  # type: ignore[arg-type]


def test_a_secret_is_not_shown(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with caplog.at_level(logging.DEBUG):
        env.secret(TEXT)
        Environment.freeze()
        assert env.secret(TEXT) is False
        others = _write(tmp_path / "file", mode=0o644)
        assert secret._from_file(others, "a file") == TEXT
    assert "chmod 600" in caplog.text
    assert TEXT not in caplog.text + repr(Environment) + repr(env.secret)
