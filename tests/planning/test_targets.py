"""Targets: what their names mean, and figures of one's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oneflow as flow
from oneflow._targets.topology import describe, slice_of


@pytest.mark.parametrize(
    ("name", "platform", "machines", "devices"),
    [("h100:8", "gpu", 1, 8), ("a100:2x8", "gpu", 2, 8), ("b200", "gpu", 1, 1), ("tpu-v5e:4x4", "tpu", 1, 16),
     ("tpu-v5p:2x2x2", "tpu", 1, 8), ("tpu-v6e", "tpu", 1, 1)],
)  # fmt: skip
def test_what_a_name_means(name, platform, machines, devices):
    target = flow.Target(name)
    assert (target.platform, target.machines, target.devices_per_machine) == (platform, machines, devices)
    assert target.device_count == machines * devices and str(target) == name and repr(target) == f"flow.Target({name!r})"


@pytest.mark.parametrize(
    ("name", "words"),
    [("h10:8", "did you mean 'h100'?"), ("h100:0", "has 0 devices"), ("h100:8x", "machines x devices"),
     ("tpu-v5e:16", "its shape"), ("h100:4x4x4", "machines x devices"), ("tpu-v5e:99999x99999", "can be planned"),
     ("", "there is no target"), (8, "named by a string")],
)  # fmt: skip
def test_a_name_that_means_nothing_is_refused(name, words):
    with pytest.raises(flow.errors.ArgumentError, match="(?s)" + words):
        flow.Target(name)


@pytest.mark.parametrize(
    "figures",
    [{"memory": 0}, {"memory": "80"}, {"bandwidth": float("nan")}, {"flops": {"int3": 1e12}}, {"flops": 1e12},
     {"link_bandwidth": True}, {"flops": {"bfloat16": -1}}, {"compiler_options": {"a": None}}, {"compiler_options": "a"}],
)  # fmt: skip
def test_figures_that_are_none_are_refused(figures):
    with pytest.raises(flow.errors.ArgumentError, match=r"flow\.Target: "):
        flow.Target("h100:8", **figures)


def test_figures_of_ones_own_replace_those_of_the_data_sheet():
    known, own = flow.Target("h100:8"), flow.Target("h100:8", memory=2**30, flops={"bfloat16": 1e12}, bandwidth=1e9)
    assert own.accelerator.memory == 2**30 and own.accelerator.bandwidth == 1e9 and own.accelerator.flops["bfloat16"] == 1e12
    assert own.accelerator.flops["float32"] == known.accelerator.flops["float32"]
    assert own.accelerator.link_bandwidth == known.accelerator.link_bandwidth


@given(count=st.integers(1, 64), shape=st.lists(st.integers(1, 8), min_size=2, max_size=3).map(tuple))
def test_a_part_of_a_slice_has_as_many_chips_and_fits_where_it_can(count, shape):
    part = slice_of(count, shape)
    product = 1
    for side in part:
        product *= side
    assert product == count and len(part) == len(shape)
    if count == shape[0] * shape[1] * (shape[2] if len(shape) > 2 else 1):
        assert part == shape


def test_a_stage_is_compiled_for_a_topology_of_its_own_numbered_from_0():
    stage = tuple((0, device) for device in range(4, 8))
    assert describe(flow.Target("tpu-v5e:2x4"), stage)["name"] == "v5e:2x2"
    assert describe(flow.Target("tpu-v5e:2x4"), stage[:1]) == {"platform": "tpu", "name": "v5e:1x1", "host_bounds": (1, 1, 1)}
    assert describe(flow.Target("h100:8"), stage)["topology"] == "1x1x4"
    both = tuple((machine, device) for machine in range(2) for device in range(8))
    assert describe(flow.Target("a100:2x8"), both)["topology"] == "1x2x8"
