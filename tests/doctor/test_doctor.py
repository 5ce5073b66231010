"""``python -m oneflow.doctor``."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from oneflow.doctor import checks, examine, selftest
from oneflow.doctor.__main__ import main


def by_name() -> dict:
    return {f.name: f for f in examine()}


def test_what_is_found_can_be_read_by_people_and_programs(capsys):
    status = main(["--no-speed"])
    text = capsys.readouterr().out
    assert status == 0, text
    assert all(word in text for word in ("versions", "jaxlib", "cores", "compiled programs", "loopback", "all is well"))
    main(["--no-speed", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert {f["name"] for f in found["findings"]} >= {"python", "jax", "native part"} and found["troubles"] == 0
    assert all(f["state"] in ("ok", "note", "trouble") for f in found["findings"])


def test_troubles_are_told_with_a_way_out(monkeypatch, capsys):
    monkeypatch.setenv("ONEFLOW_CACHE_DIR", "/proc/nothing/here")
    assert main(["--no-speed"]) == 1
    text = capsys.readouterr().out
    assert "TROUBLE" in text and "/proc/nothing/here cannot be written" in text and "-> set ONEFLOW_CACHE_DIR" in text
    monkeypatch.setenv("ONEFLOW_CACHE_DIR", "")
    assert by_name()["compiled programs"].state == "note"


def test_a_gpu_that_jax_does_not_see(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/nvidia-smi" if name == "nvidia-smi" else None)
    found = by_name()["NVIDIA GPU"]
    assert found.state == "trouble" and "jax[cuda12]" in found.todo


def test_a_check_that_fails_does_not_end_the_others(monkeypatch):
    monkeypatch.setattr("oneflow.runtime.compilation_cache.directory", lambda: 1 / 0)
    found = by_name()
    assert "ZeroDivisionError" in found["this check failed"].value and "loopback" in found


@pytest.mark.parametrize(
    ("variables", "state", "words"),
    [
        ({}, "ok", "runs alone"),
        ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, "trouble", "SLURM says .* where the first"),
        ({"ONEFLOW_PROCESS_ID": "x", "ONEFLOW_NUM_PROCESSES": "2"}, "trouble", "ONEFLOW_PROCESS_ID is 'x'"),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "10.9.8.7", "MASTER_PORT": "29500"}, "ok",
         "process 1 of 2; the first one is at 10.9.8.7:29"),
    ],
)  # fmt: skip
def test_the_launcher_that_the_environment_names(variables, state, words, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = by_name()["launcher"]
    assert found.state == state and re.search(words, found.value) and (state == "ok") == (found.todo == "")


def test_the_port_that_the_first_process_listens_at(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        for name, value in (("PROCESS_ID", 0), ("NUM_PROCESSES", 2), ("COORDINATOR_ADDRESS", f"127.0.0.1:{port}")):
            monkeypatch.setenv(f"ONEFLOW_{name}", str(value))
        found = by_name()["port"]
        assert found.state == "trouble" and str(port) in found.value and "ONEFLOW_COORDINATOR_ADDRESS" in found.todo
    assert by_name()["port"].state == "ok"
    monkeypatch.setenv("ONEFLOW_COORDINATOR_ADDRESS", "192.0.2.1:29500")
    assert "not an address of this machine" in by_name()["port"].value


def test_the_test_of_speed(monkeypatch):
    for name, value in (("PROCESS_ID", 1), ("NUM_PROCESSES", 2)):  # of several, one of which is never there
        monkeypatch.setenv(f"ONEFLOW_{name}", str(value))
    monkeypatch.setattr(selftest, "_SECONDS", 0.05)
    found = {f.name: f for f in selftest.measure()}
    assert "GFLOP/s" in found["matrix products"].value and "steps/s" in found["LeNet, batch of 100"].value
    assert "microseconds" in found["one small call"].value


def test_the_command():
    done = subprocess.run([sys.executable, "-m", "oneflow.doctor", "--no-speed"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "all is well" in done.stdout, done.stderr
    done = subprocess.run([sys.executable, "-m", "oneflow.doctor", "--help"], capture_output=True, text=True, timeout=120)
    assert "example:" in done.stdout


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="there are no affinities on this system")
def test_cores_that_are_kept_away():
    before = os.sched_getaffinity(0)
    if len(before) == 1:
        pytest.skip("this machine has one core")
    os.sched_setaffinity(0, {min(before)})
    try:
        assert by_name()["cores"].state == "note"
    finally:
        os.sched_setaffinity(0, before)


def test_each_extra_is_looked_for_by_what_it_installs():
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    installed = importlib.metadata.packages_distributions()
    for extra, modules in checks._EXTRAS.items():
        wanted = {re.split(r"[^\w-]", text)[0].lower() for text in project["optional-dependencies"][extra]}
        for module in modules:
            found = {name.lower().replace("_", "-") for name in installed.get(module.partition(".")[0], ())}
            assert not found or found & wanted, f"[{extra}] does not install {module}"
