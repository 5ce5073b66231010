"""The launcher, with programs that are short."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


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
    late = "import time\ntime.sleep(1 - rank)\nsys.exit(5 - 4 * rank)"  # who gives up because another fails ends with 1
    done = _launch(tmp_path, WHO + late, "--nproc", "2")
    assert done.returncode == 5 and "process 0 of 2 ended with status 5" in done.stderr
    done = _launch(tmp_path, WHO + "os.kill(os.getpid(), 9)", "--nproc", "1")
    assert done.returncode == 137 and "was ended by SIGKILL" in done.stderr
    for wrong in (("--nproc", "0"), ("--nnodes", "2"), ("--node_rank", "1"), ("--master", "here")):
        done = _launch(tmp_path, "", *wrong)
        assert done.returncode == 2 and "error:" in done.stderr


def test_a_signal_ends_what_the_launcher_started(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WHO + 'import time\nos.write(1, f"{os.getpid()}\\n".encode())\ntime.sleep(60)')
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


@pytest.mark.parametrize("to_the_group", [True, False])
def test_one_ctrl_c_is_one_for_each_process(to_the_group: bool, tmp_path: Path) -> None:
    """A terminal sends it to the launcher and to what it started; a program, to the launcher alone."""
    counting = """
import signal, time
count = 0
def note(*_):
    global count
    count += 1
signal.signal(signal.SIGINT, note)
os.write(1, b"ready\\n")
begin = time.monotonic()
while not count and time.monotonic() - begin < 30:
    time.sleep(0.01)
time.sleep(1)
os.write(1, f"{count}\\n".encode())
"""
    (tmp_path / "script.py").write_text(WHO + counting)
    command = [sys.executable, "-m", "oneflow.launch", "--nproc", "2", "--all-output", "script.py"]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True)
    assert launcher.stdout is not None
    assert [launcher.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    (os.killpg if to_the_group else os.kill)(launcher.pid, signal.SIGINT)
    assert launcher.communicate(timeout=30)[0].split() == ["1", "1"]
    assert launcher.returncode == 130


def test_all_processes_of_one_machine_are_given_one_secret(tmp_path: Path) -> None:
    shown = WHO + 'os.write(1, (os.environ["ONEFLOW_SECRET"] + "\\n").encode())  # print may write a line in two pieces'
    secrets = [_launch(tmp_path, shown, "--nproc", "2", "--all-output").stdout.split() for _ in range(2)]
    (first, same), (other, _) = secrets
    assert len(first) == 64 and first == same and first != other
    (tmp_path / "secret").write_text("0123456789abcdef\n")
    (tmp_path / "secret").chmod(0o600)
    done = _launch(tmp_path, shown, "--secret-file", "secret")
    assert done.stdout == "0123456789abcdef\n"


def test_several_machines_need_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several = ("--nnodes", "2", "--node_rank", "1", "--all-output", "--master")
    shown = WHO + 'print(os.environ.get("ONEFLOW_SECRET"), os.environ.get("ONEFLOW_INSECURE"))'
    done = _launch(tmp_path, shown, *several, "10.0.0.1:4000")
    assert done.returncode == 2 and "several machines need a secret" in done.stderr and "--insecure" in done.stderr
    assert _launch(tmp_path, shown, *several, "127.0.0.1:4000").stdout == "None None\n"
    assert _launch(tmp_path, shown, *several, "10.0.0.1:4000", "--insecure").stdout == "None 1\n"
    monkeypatch.setenv("ONEFLOW_SECRET", "0123456789abcdef")
    assert _launch(tmp_path, shown, *several, "10.0.0.1:4000").stdout == "0123456789abcdef None\n"
    monkeypatch.setenv("ONEFLOW_SECRET", "short")
    done = _launch(tmp_path, shown, *several, "10.0.0.1:4000")
    assert done.returncode == 2 and "ONEFLOW_SECRET must hold 16 to 4096 characters" in done.stderr


def test_addresses_of_the_first_process(tmp_path: Path) -> None:
    shown = WHO + 'print(os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], os.environ.get("ONEFLOW_BIND_ADDRESS"))'
    assert _launch(tmp_path, shown, "--master", "[::1]:4000").stdout == "::1 4000 None\n"
    assert (
        _launch(tmp_path, shown, "--master", "203.0.113.9:4000", "--bind", "127.0.0.1").stdout == "203.0.113.9 4000 127.0.0.1\n"
    )
    for wrong in ("--master=:4000", "--master=a", "--master=a:0", "--master_addr=203.0.113.9", "--master_port=65536"):
        done = _launch(tmp_path, shown, wrong)
        assert done.returncode == 2 and "--master" in done.stderr
