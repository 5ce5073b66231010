"""``python -m oneflow.doctor``."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
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


def test_the_test_of_speed(monkeypatch):
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
