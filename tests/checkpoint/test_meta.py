"""The text of ``meta``: what is written, and what is understood."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oneflow._base.dtype import bfloat16, char, float32, float64, int8, int64, uint8
from oneflow.checkpoint import meta

SHAPES = st.lists(st.integers(0, 2**40), max_size=8).map(tuple)
DTYPES = st.sampled_from([float32, float64, bfloat16, int8, int64, uint8, char])


def test_is_written_as_oneflow_prints_it() -> None:
    assert meta.text_of((32, 1), float32) == "shape {\n  dim: 32\n  dim: 1\n}\ndata_type: kFloat\n"
    assert meta.text_of((), int64) == "shape {\n}\ndata_type: kInt64\n"


@settings(deadline=None)
@given(SHAPES, DTYPES)
def test_round_trip(shape, dtype) -> None:
    assert meta.parse(meta.text_of(shape, dtype)) == (shape, dtype)


@settings(deadline=None)
@given(SHAPES, DTYPES, st.sampled_from([" ", "\n", "\t\r\n", " # a comment } {\n"]), st.booleans())
def test_whitespace_comments_and_order_do_not_matter(shape, dtype, space, type_first) -> None:
    kind = ["data_type", ":", meta.PROTO_NAMES[dtype.name]]
    sizes = ["shape", "{", *(token for size in shape for token in ("dim", ":", str(size))), "}"]
    assert meta.parse(space + space.join([*kind, *sizes] if type_first else [*sizes, *kind]) + space) == (shape, dtype)


@pytest.mark.parametrize(
    "text",
    [
        "shape{dim:2 dim:3}data_type:kFloat",
        "shape: { dim: [2, 3] }, data_type: 2;",
        "shape < dim: 2; dim: 3 > data_type: kFloat",
        'future_field: "x } y" other { a { b: -1 } } shape { dim: 2 dim: 3 } data_type: kFloat',
    ],
)
def test_other_spellings_of_the_text_format(text: str) -> None:
    assert meta.parse(text) == ((2, 3), float32)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", 'one message "shape'),
        ("shape { dim: 1 }", 'one field "data_type"'),
        ("data_type: kFloat", 'one message "shape'),
        ("shape: 3 data_type: kFloat", 'one message "shape'),
        ("shape { dim: 1 } shape { dim: 1 } data_type: kFloat", 'one message "shape'),
        ("shape { dim: -1 } data_type: kFloat", "size >= 0"),
        ("shape { dim: 1.5 } data_type: kFloat", "not text protobuf"),
        ("shape { dim: 99999999999999999999 } data_type: kFloat", "size >= 0"),
        ("shape { dim { } } data_type: kFloat", "size >= 0"),
        ("shape { dim: 1 data_type: kFloat", "ends before '}'"),
        ("shape { dim: [1, 2 data_type: kFloat", "due where ':' is"),
        ("shape { dim: }", "value is due where '}' is"),
        ("shape { dim:", "ends where a value is due"),
        ("{ }", "name is due where '{' is"),
        ("shape { dim: 1 } data_type: kComplex", "'kComplex' is none of"),
        ("shape { dim: 1 } data_type: kOFRecord", "no array of numbers"),
        ("__import__('os').system('true')", "not text protobuf"),
        ("a { " * 1000, "nested too deeply"),
        ("shape { " + "dim: 1 " * 65 + "} data_type: kFloat", "size >= 0"),
    ],
)
def test_refuses(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=".") as caught:
        meta.parse(text)
    assert says in str(caught.value)


@settings(deadline=None)
@given(st.text(alphabet='shapedimt_:{}<>[],;" 0123456789kFlo\n#', max_size=80))
def test_any_text_is_understood_or_refused(text: str) -> None:
    try:
        shape, dtype = meta.parse(text)
    except ValueError:
        return
    assert all(size >= 0 for size in shape) and dtype.bytes
