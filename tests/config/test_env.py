"""``flow.env`` and ``flow.unittest``."""

from __future__ import annotations

import logging
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oneflow.env as env
import oneflow.unittest as flow_unittest
from oneflow.config._environment import Environment, machines
from oneflow.errors import ArgumentError, ModeError
from oneflow.runtime.environment import current_machine_id, delete_worker, init_worker
from oneflow.runtime.processes import rendezvous


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    Environment.reset()
    yield
    Environment.reset()


def test_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.chdir(tmp_path)
    for call in (env.current_resource, current_machine_id):
        with pytest.raises(ModeError, match=r"flow.env.init\(\)"):
            call()
    assert env.machine(["127.0.0.1"]) is None
    assert env.machine({"addr": "10.0.0.1", "ctrl_port_agent": 12}) is None
    assert env.ctrl_port(50051) is env.data_port(1) is env.log_dir("./log") is env.logtostderr(1) is env.logbuflevel(-1) is None
    assert env.grpc_use_no_signal() is None
    assert env.init() is True
    assert machines() == ({"id": 0, "addr": "10.0.0.1", "ctrl_port_agent": 12},)
    with caplog.at_level(logging.WARNING, logger="oneflow"):
        assert env.init() is False and env.ctrl_port(1) is False and env.machine("x") is False
    assert caplog.text.count("Nothing happened because environment has been initialized") == 3
    resource = env.current_resource()
    assert resource.machine_num == 1 and resource.cpu_device_num >= 1 and resource.gpu_device_num >= 0
    assert current_machine_id() == 0
    assert list(tmp_path.iterdir()) == []


def test_several_machines_need_a_port_and_an_own_address() -> None:
    env.machine(["203.0.113.1", {"addr": "203.0.113.2"}])
    with pytest.raises(ArgumentError, match=r"names 2 machines, and no port was chosen(?s:.*)flow.env.ctrl_port"):
        rendezvous.find()
    env.ctrl_port(50051)
    with pytest.raises(ArgumentError, match=r"none of the addresses(?s:.*)203.0.113.1, 203.0.113.2(?s:.*)test_env.py"):
        rendezvous.find()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((), "at least one address"), (([],), "at least one"), ((3,), "3 is not an address"), (("",), "not an address"),
        (({"addr": 1},), "not an address"), (({"addr": "a", "port": 1},), "not an address"), (("a", "a"), "once, got a, a"),
        (({"addr": "a", "ctrl_port_agent": 70_000},), "not an address"),
    ],
)  # fmt: skip
def test_addresses_that_are_refused(given: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=f"{text}(?s:.*)test_env.py"):
        env.machine(*given)


def test_ports_that_are_refused() -> None:
    for setting in (env.ctrl_port, env.data_port):
        for port in (0, -2, 65_536):
            with pytest.raises(ArgumentError, match="a port is a number from 1 to 65535"):
                setting(port)


def test_workers_of_old_are_nothing_on_one_machine() -> None:
    init_worker(scp_binary=True, use_uuid=True)
    delete_worker()
    init_worker()


def test_environment_variables_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    names = "DEVICE_NUM NODE_LIST WORLD_SIZE ENABLE_EAGER ENABLE_TYPING_CHECK".split()
    for name in names:
        monkeypatch.delenv(f"ONEFLOW_TEST_{name}", raising=False)
    e = flow_unittest.env
    assert (e.device_num(), e.has_node_list(), e.node_size(), e.world_size()) == (1, False, 1, 1)
    assert not e.eager_execution_enabled() and not e.typing_check_enabled() and not e.has_world_size()
    with pytest.raises(ArgumentError, match="ONEFLOW_TEST_NODE_LIST is not set"):
        e.node_list()
    for name, value in zip(names, ["4", "a,b", "8", "1", "1"], strict=True):
        monkeypatch.setenv(f"ONEFLOW_TEST_{name}", value)
    assert (e.device_num(), e.node_list(), e.node_size(), e.world_size()) == (4, ["a", "b"], 2, 8)
    assert e.eager_execution_enabled() and e.typing_check_enabled()
    monkeypatch.setenv("ONEFLOW_TEST_DEVICE_NUM", "many")
    with pytest.raises(ArgumentError, match="must be a number, got 'many'"):
        e.device_num()


@pytest.mark.parametrize(("nodes", "devices"), [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4)])
def test_skipping_by_devices(nodes: int, devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFLOW_TEST_DEVICE_NUM", str(devices))
    monkeypatch.setenv("ONEFLOW_TEST_NODE_LIST", ",".join("ab"[:nodes]))
    for n, d in [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4)]:
        decorated = getattr(flow_unittest, f"skip_unless_{n}n{d}d")()(lambda: "ran")
        if (n, d) == (nodes, devices):
            assert decorated() == "ran"
        else:
            with pytest.raises(unittest.SkipTest, match=f"needs {n} machine"):
                decorated()


def test_test_case_begins_a_new_session() -> None:
    import oneflow as flow
    from oneflow.config import Resource

    seen = []

    class Case(flow_unittest.TestCase):
        def test_it(self) -> None:
            seen.append(Resource.values)

    flow.config.cpu_device_num(1)
    result = unittest.TestResult()
    Case("test_it").run(result)
    assert result.wasSuccessful() and seen == [{}]


def test_registering_functions_of_files(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(
        "import oneflow.unittest\n"
        "def test_a(test_case):\n    test_case.assertEqual(1, 1)\n"
        "@oneflow.unittest.num_nodes_required(2)\n"
        "def test_b(test_case):\n    raise RuntimeError\n"
    )
    (tmp_path / "other.py").write_text("raise RuntimeError")
    scope: dict[str, Any] = {"__name__": "here"}
    flow_unittest.register_test_cases(scope, str(tmp_path), lambda nodes: nodes == 1)
    case = scope["test_two"]
    assert issubclass(case, unittest.TestCase) and not hasattr(case, "test_b")
    result = unittest.TestResult()
    case("test_a").run(result)
    assert result.wasSuccessful() and result.testsRun == 1
    with pytest.raises(ArgumentError, match="the number must be an int > 0"):
        flow_unittest.num_nodes_required("2")  # type: ignore[arg-type]
