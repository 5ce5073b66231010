"""Compiled programs as text: arithmetic, memory traffic and collectives, against counts made another way."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oneflow as flow
from oneflow._base.dist import parse_placement
from oneflow._targets.flops import _pairs, arithmetic
from oneflow._targets.hlo import Module, group_of
from oneflow._targets.memory import at_peak
from oneflow._targets.roofline import estimate, sent_bytes


def compiled(function, *arguments):
    return jax.jit(function).lower(*arguments).compile().as_text()


def products(text):
    """The FLOP of all products and convolutions of a program."""
    module = Module.parse(text)
    return sum(n for c in module.computations.values() for i in c for _, n in arithmetic(module, i).products)


@settings(max_examples=60, deadline=None)
@given(*[st.integers(1, 9)] * 2, st.integers(1, 4), st.integers(0, 4), st.integers(1, 3), st.integers(1, 3))
def test_pairs_of_a_convolution_are_those_that_are_not_padding(image, kernel, stride, padding, dilation, holes):
    span, reach = (image - 1) * dilation + 1, (kernel - 1) * holes + 1
    out = (span + 2 * padding - reach) // stride + 1
    if out < 1:
        return
    padded = np.zeros(span + 2 * padding)
    padded[padding : padding + span : dilation] = 1
    expected = sum(padded[o * stride + k * holes] for o in range(out) for k in range(kernel))
    assert _pairs(image, kernel, out, stride, padding, dilation, holes) == expected


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_counts_as_xla_counts_it(stride):
    x, w = np.zeros((2, 3, 9, 9), np.float32), np.zeros((5, 3, 3, 3), np.float32)
    made = jax.jit(lambda x, w: jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME")).lower(x, w)
    text = made.compile().as_text()
    if "convolution(" in text:  # a CPU may call a kernel of its own
        assert products(text) == made.cost_analysis()["flops"]


def test_kernels_of_cudnn_and_cublas_are_counted_by_their_shapes():
    line = (
        "HloModule m\n\nENTRY %main (a: f32[2,4,4,3], b: f32[5,3,3,3]) -> f32[2,4,4,5] {{\n"
        "  %a = f32[2,4,4,3]{{3,2,1,0}} parameter(0)\n  %b = f32[5,3,3,3]{{3,2,1,0}} parameter(1)\n"
        "  ROOT %c = {out} custom-call({ops}), window={{size=3x3 pad=1_1x1_1}}, dim_labels=b01f_o01i->b01f, "
        'custom_call_target="{target}"\n}}\n'
    )
    forward = products(line.format(out="(f32[2,4,4,5], u8[0])", ops="%a, %b", target="__cudnn$convForward"))
    inside = sum(0 <= o + k - 1 < 4 for o in range(4) for k in range(3)) ** 2
    assert forward == 2 * 2 * 5 * 3 * inside
    unknown = Module.parse(line.format(out="f32[2,4,4,5]", ops="%a, %b", target="my_gemm_kernel"))
    assert arithmetic(unknown, unknown.computations["main"][-1]).unknown == "my_gemm_kernel"
    gemm = (
        "ENTRY %main (a: bf16[8,16], b: bf16[16,4]) -> bf16[8,4] {\n  %a = bf16[8,16] parameter(0)\n"
        "  %b = bf16[16,4] parameter(1)\n"
        '  ROOT %c = (bf16[8,4], s8[32]) custom-call(%a, %b), custom_call_target="__cublas$gemm", '
        'backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}\n}\n'
    )
    assert products(gemm) == 2 * 8 * 16 * 4


def test_a_loop_counts_as_often_as_it_runs():
    w = np.zeros((32, 32), np.float32)

    def looped(x):
        return jax.lax.fori_loop(0, 7, lambda _, y: y @ w, x)

    text = compiled(looped, w)
    target, place = flow.Target("h100:1"), parse_placement("gpu", "0:0")
    once = estimate(compiled(lambda x: x @ w, w), target, place)[1].total
    loop = estimate(text, target, place)[1].total
    if "dot(" in text:
        assert loop.products["tfloat32"] == 7 * once.products["tfloat32"] == 7 * 2 * 32**3


@pytest.mark.parametrize(
    ("groups", "members"),
    [("{{0,1},{2,3}}", (0, 1)), ("[2,2]<=[4]", (0, 1)), ("[2,2]<=[2,2]T(1,0)", (0, 2)), ("[1,4]<=[4]", (0, 1, 2, 3)),
     ("mesh['a'=2,'b'=2] {'a'}", (0, 2)), ("mesh['a'=2,'b'=2] {'b'}", (0, 1)), ("mesh['a'=2,'b'=2] {'a','b'}", (0, 1, 2, 3))],
)  # fmt: skip
def test_the_devices_of_a_collective(groups, members):
    text = (
        "ENTRY %main (a: f32[8]) -> f32[8] {\n  %a = f32[8] parameter(0)\n"
        f"  ROOT %r = f32[8] all-reduce(%a), replica_groups={groups}, to_apply=%add\n}}\n"
    )
    assert group_of(Module.parse(text).computations["main"][-1]).members == members


@given(st.integers(1, 1 << 20), st.integers(1, 64))
def test_an_all_reduce_sends_what_a_reduce_scatter_and_an_all_gather_send(pieces, members):
    size = pieces * members
    scattered, first = sent_bytes("reduce-scatter", size, members)
    gathered, second = sent_bytes("all-gather", int(scattered), members)
    assert gathered == size and sent_bytes("all-reduce", size, members) == (size, pytest.approx(first + second))


def test_a_collective_between_machines_takes_the_network():
    text = (
        "ENTRY %main (a: f32[1048576]) -> f32[1048576] {\n  %a = f32[1048576] parameter(0)\n"
        "  ROOT %r = f32[1048576] all-reduce(%a), replica_groups=[1,2]<=[2], to_apply=%add\n}\n"
    )
    target = flow.Target("a100:2x8")
    inside = estimate(text, target, parse_placement("gpu", "0:0-1"))[1]
    across = estimate(text, target, parse_placement("gpu", ["0:0", "1:0"]))[1]
    assert inside.seconds == pytest.approx(4 * 2**20 / 300e9) and across.seconds == pytest.approx(4 * 2**20 / 25e9)
    assert across.exposed_seconds == across.seconds


def test_a_collective_is_hidden_behind_what_runs_until_it_is_done():
    text = """ENTRY %main (a: f32[1048576], b: f32[1048576]) -> f32[1048576] {
  %a = f32[1048576] parameter(0)
  %b = f32[1048576] parameter(1)
  %s = f32[1048576] all-reduce-start(%a), replica_groups=[1,2]<=[2], to_apply=%add
  %c = f32[1048576] multiply(%b, %b)
  %d = f32[1048576] all-reduce-done(%s)
  ROOT %e = f32[1048576] add(%c, %d)
}
"""
    made = estimate(text, flow.Target("h100:2"), parse_placement("gpu", "0:0-1"))[1]
    links, one = 4 * 2**20 / 450e9, 3 * 4 * 2**20 / 3352320000000
    assert made.seconds == pytest.approx(max(links, one) + one) and made.exposed_seconds == pytest.approx(max(links - one, 0))


TPU_CHAIN = """%start (p: bf16[65536]) -> (bf16[65536], bf16[262144]) {
  %p = bf16[65536] parameter(0)
  %g0 = bf16[262144] all-gather(%p), replica_groups={{0,1,2,3}}, dimensions={0}, frontend_attributes={chain_id="0"}
  ROOT %c0 = (bf16[65536], bf16[262144]) custom-call(%g0), custom_call_target="AsyncCollectiveStart"
}

%beside (q: bf16[65536], r: f32[4194304]) -> f32[4194304] {
  %q = bf16[65536] parameter(0)
  %r = f32[4194304] parameter(1)
  %g1 = bf16[262144] all-gather(%q), replica_groups={{0,1,2,3}}, dimensions={0}, frontend_attributes={chain_id="0"}
  ROOT %n = f32[4194304] negate(%r)
}

%end (t: bf16[65536]) -> bf16[262144] {
  %t = bf16[65536] parameter(0)
  %g2 = bf16[262144] all-gather(%t), replica_groups={{0,1,2,3}}, dimensions={0}, frontend_attributes={chain_id="0"}
  ROOT %c2 = bf16[262144] custom-call(%t, %g2), custom_call_target="AsyncCollectiveDone"
}

%all-reduce-scatter.1 (u: f32[262144]) -> f32[65536] {
  %u = f32[262144] parameter(0)
  %ar = f32[262144] all-reduce(%u), replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %piece = f32[65536] slice(%ar)
}

ENTRY %main (x: bf16[65536], y: f32[4194304], z: f32[262144]) -> f32[65536] {
  %x = bf16[65536] parameter(0)
  %y = f32[4194304] parameter(1)
  %z = f32[262144] parameter(2)
  %a = (bf16[65536], bf16[262144]) fusion(%x), kind=kCustom, calls=%start
  %b = f32[4194304] fusion(%x, %y), kind=kOutput, calls=%beside
  %d = bf16[262144] fusion(%x), kind=kCustom, calls=%end
  ROOT %s = f32[65536] fusion(%z), kind=kCustom, calls=%all-reduce-scatter.1
}
"""


def test_the_collectives_that_a_tpu_compiler_fuses_are_counted_once():
    made = estimate(TPU_CHAIN, flow.Target("tpu-v5e:2x2"), parse_placement("gpu", "0:0-3"))[1]
    assert [(c.kind, c.bytes, c.instruction.name) for c in made.collectives] == [
        ("all-gather", 4 * 131072, "a"),
        ("reduce-scatter", 4 * 65536, "s"),
    ]
    gather, scatter = 3 * 131072 / 90e9, 3 * 4 * 65536 / 90e9
    work = made.by_instruction["b"][0].seconds
    assert work > gather, "the gathering is hidden"
    assert made.seconds == pytest.approx(work + scatter) and made.exposed_seconds == pytest.approx(scatter)


def test_the_values_at_the_peak_are_those_that_are_alive_together():
    text = """ENTRY %main (a: f32[100]) -> f32[1] {
  %a = f32[100] parameter(0)
  %kept = f32[100] negate(%a)
  %wide = f32[1000] broadcast(%kept), dimensions={0}
  %sum = f32[10] reduce(%wide, %a), dimensions={0}, to_apply=%add
  %late = f32[50] slice(%kept), slice={[0:50]}
  ROOT %r = f32[1] reduce(%late, %sum), dimensions={0}, to_apply=%add
}
"""
    phases = {"kept": "forward", "late": "backward", "wide": "forward"}
    found = at_peak(Module.parse(text), lambda name: phases.get(name, "other"))
    assert [(v.instruction.name, v.bytes, v.kept) for v in found] == [
        ("wide", 4000, False),
        ("kept", 400, True),
        ("sum", 40, False),
    ]
