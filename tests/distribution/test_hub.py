"""Who belongs to a run, and how its processes meet: without JAX, in one process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import oneflow.env as env
from oneflow.config._environment import LAUNCHED, reset_environment
from oneflow.errors import ArgumentError, ProcessError
from oneflow.runtime.processes import hub, rendezvous


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    reset_environment()
    yield
    reset_environment()


def _open(count: int, patience: float = 5.0) -> int:
    server = hub.listen("127.0.0.1", 0)
    hub.Hub(server, count, {"hello": "all"}, patience).start()
    return server.getsockname()[1]


def _member(port: int, index: int, count: int, patience: float = 5.0) -> hub.Member:
    return hub.Member("127.0.0.1", port, index, count, patience)


def test_members_hear_each_other_and_who_leaves() -> None:
    port = _open(3)
    with ThreadPoolExecutor() as pool:
        members = list(pool.map(lambda i: _member(port, i, 3), range(3)))
    assert [m.welcome for m in members] == [{"hello": "all"}] * 3
    heard: list[dict[str, Any]] = []
    gone = threading.Event()

    def receive(message: dict[str, Any]) -> None:
        heard.append(message)
        if "gone" in message:
            gone.set()

    ended = threading.Event()
    members[0].listen(receive, ended.set)
    members[1].send({"from": 1, "text": "é\n"})
    members[2].close()
    assert gone.wait(5)
    assert {"from": 1, "text": "é\n"} in heard and {"gone": 2} in heard
    members[1].close()
    members[0]._socket.shutdown(socket.SHUT_RDWR)
    assert ended.wait(5)


def test_a_member_that_is_one_too_many() -> None:
    port = _open(2)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(_member, port, 0, 2)
        time.sleep(0.2)
        with pytest.raises(ProcessError, match="another process is number 0 already"):
            _member(port, 0, 2)
        with pytest.raises(ProcessError, match="told that the run has 3 processes, the first one knows of 2"):
            _member(port, 1, 3)
        pool.submit(_member, port, 1, 2).result().close()
        first.result().close()


def test_members_that_do_not_come_and_hubs_that_do_not_answer() -> None:
    port = _open(3, patience=0.5)
    with pytest.raises(hub.MissingError) as caught:
        _member(port, 0, 3)
    assert caught.value.args[0] == [1, 2]
    with pytest.raises(ProcessError, match=r"does not answer at 127.0.0.1:\d+: .*tried for 0.5 s.*(?s:.*)same script"):
        _member(hub.free_port("127.0.0.1"), 1, 2, patience=0.5)
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def shut() -> None:
            while True:
                try:
                    stranger.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=shut, daemon=True).start()
        with pytest.raises(ProcessError, match="no process of this run"):
            _member(stranger.getsockname()[1], 1, 2, patience=0.5)
        stranger.shutdown(socket.SHUT_RDWR)


def test_machines_by_address() -> None:
    port = hub.free_port("127.0.0.1")
    env.machine([{"addr": "127.0.0.1", "ctrl_port_agent": 7}, {"addr": "127.0.0.2"}])
    env.ctrl_port(port)
    first, second = rendezvous.find(), rendezvous.find()  # the same machine has both addresses
    assert first is not None and second is not None
    assert (first.index, second.index, first.count, first.port, second.host) == (0, 1, 2, 7, "127.0.0.1")
    assert second.name_of(1) == "process 1 (127.0.0.2)"
    with pytest.raises(ProcessError, match=rf"127.0.0.1:{port} and 127.0.0.2:{port}: Address already in use(?s:.*)another port"):
        rendezvous.find()
    for place in (first, second):
        assert place.server is not None
        place.server.close()


def test_the_launcher_says_who_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LAUNCHED, "5 8 10.0.0.1:29500 1 4")
    env.machine(["10.0.0.1", "10.0.0.1"])  # the same address is allowed here
    place = rendezvous.find()
    assert place is not None
    found = (place.index, place.count, place.host, place.port, place.local_index, place.local_count)
    assert found == (5, 8, "10.0.0.1", 29500, 1, 4)
    env.machine(["10.0.0.1", "10.0.0.2", "10.0.0.3"])
    with pytest.raises(ArgumentError, match="names 3 machines, and the launcher started 8 processes on 2"):
        rendezvous.find()
    monkeypatch.setenv(LAUNCHED, f"0 1 127.0.0.1:{hub.free_port('127.0.0.1')} 0 1")
    env.machine("10.0.0.1")
    assert rendezvous.find() is None


def test_clusters_are_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_MCA_orte_hnp_uri", "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911")
    for name, value in {"SIZE": 3, "RANK": 2, "LOCAL_RANK": 0}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", str(value))
    place = rendezvous.find()
    assert place is not None and (place.index, place.count, place.host) == (2, 3, "10.96.0.1")
    monkeypatch.undo()
    slurm = {"JOB_ID": 77, "STEP_NODELIST": "node[001-003]", "NTASKS": 4, "PROCID": 1, "LOCALID": 1, "STEP_NUM_NODES": 2}
    for name, value in slurm.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    place = rendezvous.find()
    assert place is not None and (place.index, place.count, place.host, place.local_index) == (1, 4, "node001", 1)
    monkeypatch.setenv("SLURM_NTASKS", "1")
    assert rendezvous.find() is None


# --- the launcher, with programs that are short


def _launch(tmp_path: Path, source: str, *options: str, arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    (tmp_path / "script.py").write_text(source)
    command = [sys.executable, "-m", "oneflow.launch", *options, str(tmp_path / "script.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)


WHO = 'import os, sys\nrank = int(os.environ["RANK"])\n'


def test_the_launcher_starts_processes_and_hides_what_others_print(tmp_path: Path) -> None:
    shown = 'print(rank, os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"], sys.argv[1:])\n'
    shown += 'os.write(2, f"error {rank}\\n".encode())\n'
    done = _launch(tmp_path, WHO + shown, "--nproc", "3", arguments=("--nproc", "a b"))
    assert (done.returncode, done.stdout) == (0, "0 3 0 ['--nproc', 'a b']\n")
    assert sorted(done.stderr.splitlines()) == ["error 0", "error 1", "error 2"]
    done = _launch(tmp_path, WHO + 'os.write(1, f"{rank}\\n".encode())', "--nproc_per_node=2", "--all-output")
    assert sorted(done.stdout.split()) == ["0", "1"]
    second = ("--nproc", "1", "--nnodes", "2", "--node_rank", "1", "--master", "127.0.0.1:4000", "--all-output")
    done = _launch(tmp_path, WHO + 'print(rank, os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"])', *second)
    assert done.stdout == "1 127.0.0.1 4000\n"


def test_the_launcher_gives_the_status_of_what_failed(tmp_path: Path) -> None:
    done = _launch(tmp_path, WHO + "sys.exit(7 * rank)", "--nproc", "2")
    assert done.returncode == 7 and "process 1 of 2 ended with status 7" in done.stderr
    done = _launch(tmp_path, WHO + "os.kill(os.getpid(), 9)", "--nproc", "1")
    assert done.returncode == 137 and "was ended by SIGKILL" in done.stderr
    for wrong in (("--nproc", "0"), ("--nnodes", "2"), ("--node_rank", "1"), ("--master", "here")):
        done = _launch(tmp_path, "", *wrong)
        assert done.returncode == 2 and "error:" in done.stderr


def test_a_signal_ends_what_the_launcher_started(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WHO + "import time\nprint(os.getpid(), flush=True)\ntime.sleep(60)")
    command = [sys.executable, "-m", "oneflow.launch", "--nproc", "2", "--all-output", "script.py"]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert launcher.stdout is not None
    started = [int(launcher.stdout.readline()) for _ in range(2)]
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(30) == 143
    launcher.stdout.close()
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
