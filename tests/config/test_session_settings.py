"""``flow.config``: settings of the session to come."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow._base.dist import parse_placement
from oneflow._base.source import caller
from oneflow.config import Resource
from oneflow.config._options import REQUIRED, Option, table
from oneflow.errors import ArgumentError, ConfigError, ModeError
from oneflow.graph.graph import Graph, tracing
from oneflow.graph.node import Scope

DOCUMENTED = """
collect_act_event comm_net_worker_num compute_thread_pool_size cpu_device_num enable_debug_mode enable_legacy_model_io
enable_model_io_v2 enable_numa_aware_cuda_malloc_host enable_tensor_float_32_compute gpu_device_num
legacy_model_io_enabled load_library load_library_now machine_num max_mdsave_worker_num persistence_buf_byte
rdma_mem_block_mbyte rdma_recv_msg_buf_mbyte reserved_device_mem_mbyte reserved_host_mem_mbyte
save_downloaded_file_to_local_fs thread_enable_local_message_queue use_rdma nccl_use_compute_stream
disable_group_boxing_by_dst_parallel enable_mem_chain_merge collective_boxing.enable_fusion
collective_boxing.nccl_enable_all_to_all collective_boxing.nccl_enable_mixed_fusion
collective_boxing.nccl_fusion_all_gather collective_boxing.nccl_fusion_all_reduce
collective_boxing.nccl_fusion_all_reduce_use_buffer collective_boxing.nccl_fusion_broadcast
collective_boxing.nccl_fusion_max_ops collective_boxing.nccl_fusion_reduce collective_boxing.nccl_fusion_reduce_scatter
collective_boxing.nccl_fusion_threshold_mb collective_boxing.nccl_num_streams collective_boxing.num_callback_threads
""".split()


def reach(dotted: str) -> Any:
    found: Any = flow.config
    for part in dotted.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", DOCUMENTED)
def test_documented_names_are_there(name: str) -> None:
    assert callable(reach(name))


@pytest.mark.parametrize("option", Resource.options, ids=lambda o: o.name)
def test_every_row(option: Option) -> None:
    function, value = reach(option.name), {bool: True, int: 2, str: "lib.so"}[option.types[0]]
    assert option.effect in function.__doc__ and f"flow.config.{option.name}" in repr(function)
    assert getattr(Resource, option.name) == option.default
    with pytest.raises(ArgumentError, match=rf"flow.config.{option.name} takes .*(?s:.*)test_session_settings.py"):
        function(object())
    if option.refused is not None:
        with pytest.raises(ModeError, match="cannot be run"):
            function(value)
        return
    assert function(val=value) is None
    assert getattr(Resource, option.name) == value and Resource.values == {option.name: value}
    if option.implied is not REQUIRED:
        function()
        assert getattr(Resource, option.name) == option.implied
    assert option.effect.startswith("no effect: ") or option.effect.endswith(".")
    assert f"`{option.name}`" in table(Resource.options)


def test_a_new_session_has_the_defaults() -> None:
    flow.config.gpu_device_num(1)
    flow.config.strict_devices(True)
    assert repr(Resource) == "<flow.config: gpu_device_num=1, strict_devices=True>"
    flow.clear_default_session()
    assert Resource.gpu_device_num is None and not Resource.strict_devices
    assert repr(Resource) == "<flow.config: all defaults>"


def test_after_the_session_has_started(caplog: pytest.LogCaptureFixture) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:  # type: ignore[valid-type]
        return x

    flow.config.cpu_device_num(1)
    job(np.zeros(2, np.float32))
    with caplog.at_level(logging.WARNING, logger="oneflow"):
        assert flow.config.cpu_device_num(2) is False
    assert "Nothing happened because the session is running: flow.config.cpu_device_num(2)" in caplog.text
    assert Resource.cpu_device_num == 1
    flow.clear_default_session()
    assert flow.config.cpu_device_num(2) is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: flow.config.gpu_device_num(1), lambda: flow.config.collective_boxing.enable_fusion(),
        lambda: flow.config.enable_eager_execution(False), lambda: flow.config.inter_job_reuse_mem_strategy("reuse_mem_priority"),
    ],
)  # fmt: skip
def test_inside_a_job(call: Any) -> None:
    graph = Graph("j", train=False, scope=Scope(parse_placement("cpu", "0:0")))
    with tracing(graph), pytest.raises(ModeError, match="only be called outside job functions"):
        graph.add_input("x", (1,), flow.float32, "Numpy", 0, caller())
        call()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: flow.config.gpu_device_num("1"), "takes int, got str '1'"),
        (lambda: flow.config.gpu_device_num(True), "takes int, got bool"),
        (lambda: flow.config.gpu_device_num(-1), "at least 0"),
        (lambda: flow.config.enable_debug_mode(1), "takes bool, got int 1"),
        (lambda: flow.config.gpu_device_num(), "missing a required argument: 'val'"),
        (lambda: flow.config.enable_eager_execution(1), "takes a bool"),
        (lambda: flow.config.inter_job_reuse_mem_strategy("x"), "reuse_mem_priority"),
    ],
)  # fmt: skip
def test_wrong_values(call: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=f"{text}(?s:.*)test_session_settings.py"):
        call()
    assert Resource.values == {}


def test_unknown_names() -> None:
    with pytest.raises(ConfigError, match=r"no setting 'gpu_devices'(?s:.*)flow.config.gpu_device_num\(...\)"):
        _ = flow.config.gpu_devices
    assert not hasattr(flow.config, "xyz")
    assert hasattr(flow.config, "nccl_use_compute_stream")
    assert "gpu_device_num" in dir(flow.config)


def test_eager_mode_is_not_there() -> None:
    flow.config.enable_eager_execution(False)
    assert flow.config.eager_execution_enabled() is False
    with pytest.raises(ModeError, match="eager execution is not supported"):
        flow.config.enable_eager_execution()


def test_legacy_model_io_is_remembered() -> None:
    assert flow.config.legacy_model_io_enabled() is False
    flow.config.enable_legacy_model_io()
    assert flow.config.legacy_model_io_enabled() is True
