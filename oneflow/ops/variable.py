"""``get_variable``: tensors that keep their values between calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._base import dist
from .._base import dtype as dtypes
from .._base.check import is_message, whole
from .._base.dtype import dtype
from .._base.refuse import shown
from .._base.source import caller
from .._variables import initializers, regularizers
from ..errors import ArgumentError, DuplicateNameError
from ..graph.graph import Graph, Initializer, Variable, current
from ..graph.node import Blob
from ..graph.scopes import graph_scope
from ._arrays import dtype_for, in_range
from ._emit import MOST_ELEMENTS, fail, want
from .distribution import layout_entries, one_layout
from .ssp import ssp_variable_proxy


def get_variable(
    name: str,
    shape: Sequence[int] | None = None,
    dtype: dtype | None = dtypes.float32,
    initializer: Initializer | None = None,
    regularizer: Any = None,
    trainable: bool | None = None,
    model_name: str | None = None,
    random_seed: int | None = None,
    distribute: dist.Distribute = dist.broadcast(),  # noqa: B008 - an immutable singleton
    reuse: bool = True,
    *,
    parallel_distribution: Sequence[Any] | None = None,
    nd_sbp: Sequence[Any] | None = None,
) -> Blob:
    """Declares a variable of this job and returns its value at the start of a call.

    Jobs of a session share variables by name: a train job updates the variables that a predict job reads. A second call
    with the same name in a job returns the same Blob.

    Args:
      name: made unique by the surrounding namespaces; also the name in checkpoints.
      shape: sizes, all > 0.
      dtype: element type; None means the job's ``default_data_type``.
      initializer: of the first value (``flow.*_initializer``, or an ``InitializerConf`` message); None means the job's
        ``default_initializer_conf``.
      regularizer: a penalty that is added to its gradient (``flow.regularizers``, or a ``RegularizerConf`` message).
      trainable: None and True let train jobs update it.
      model_name: an annotation such as "weight" or "bias".
      random_seed: makes the first value reproducible, and independent of ``flow.manual_seed``.
      distribute: its layout on several devices.
      parallel_distribution, nd_sbp: the same, with an entry ("B" or "S(axis)") for each axis of the placement's hierarchy;
        replaces ``distribute``. An empty list means "B" for all.
      reuse: False makes a second call with the same name an error.
    Raises:
      ArgumentError: name, shape, dtype or initializer is missing or of the wrong type.
      VariableConflictError: the name is declared already with another shape or dtype.
      DuplicateNameError: the name is declared already and ``reuse`` is False.
    Example: >>> w = flow.get_variable("w", shape=(8, 4), initializer=flow.random_normal_initializer(stddev=0.02))
    """
    what = f"get_variable {shown(name)}"
    graph = current("flow.get_variable")
    full_name = _want_name(what, graph, name)
    sizes = _want_shape(what, shape)
    if dtype is None:
        dtype = graph.config.get("default_data_type", dtypes.float32) if graph.config is not None else dtypes.float32
    dtype = dtype_for(what, dtype)
    if random_seed is not None and whole(random_seed) is None:
        fail(ArgumentError, what, f"random_seed must be an int, got {shown(random_seed)}")
    want.distribution(what, "distribute", distribute)
    if distribute.axis is not None:
        want.axis(what, distribute.axis, len(sizes), "distribute=split's axis")
    regularizer = regularizers.from_message(regularizer)
    if regularizer is not None and not hasattr(regularizer, "gradient"):
        fail(ArgumentError, what, f"regularizer must be one of flow.regularizers, got {shown(regularizer)}", (),
             "write flow.regularizers.l2(0.01)")  # fmt: skip
    if trainable is not None:
        trainable = want.flag(what, "trainable", trainable)
    want.label(what, "model_name", model_name)
    layout: Any = distribute
    parallel_distribution = one_layout(what, parallel_distribution, nd_sbp)
    if parallel_distribution is not None:
        layout = layout_entries(what, "parallel_distribution", parallel_distribution, len(sizes))
    may_train = graph.train or graph.generation.trains_predict_jobs  # ``minimize`` may still come
    variable = Variable(
        name=full_name, shape=sizes, dtype=dtype, initializer=_want_initializer(what, graph, initializer, dtype),
        source=caller(), trainable=may_train and trainable is not False, regularizer=regularizer, model_name=model_name,
        random_seed=whole(random_seed), distribute=layout,
    )  # fmt: skip
    if not want.flag(what, "reuse", reuse):
        want_new(what, graph, full_name, "give it another name, or leave out reuse=False to share the variable")
    existing = graph.variables.get(full_name)
    if existing is not None and existing.blob is not None:
        variable.must_agree(existing)
        proxy = graph.node(_proxy_name(existing.name))
        return existing.blob if proxy is None else proxy.outputs[0]
    blob = graph.add_variable(variable).blob
    assert blob is not None
    if distribute.kind == "split" and parallel_distribution is None:
        blob.distribute = distribute
    if graph.train and variable.trainable and graph.config is not None and graph.config.get("enable_ssp"):
        return _stale(what, graph, blob)
    return blob


def want_new(what: str, graph: Graph, full_name: str, hint: str) -> None:
    """Raises DuplicateNameError where the job has a variable of that name."""
    existing = graph.variables.get(full_name)
    if existing is not None and existing.blob is not None:
        fail(DuplicateNameError, what, f"{full_name!r} already exists in this job, declared at {existing.source}", (), hint)


def _want_name(what: str, graph: Graph, name: Any) -> str:
    if not isinstance(name, str) or not name:
        fail(ArgumentError, what, f"name must be a non-empty str, got {shown(name)}")
    if "/" in name or name in (".", ".."):
        rule = 'a variable\'s name is a directory of the checkpoint and cannot contain "/"'
        fail(ArgumentError, what, rule, (), 'join scopes with "-"')
    full_name = graph.scope.namespace + name
    if len(full_name.encode()) > 240 or full_name in ("snapshot_done", "oneflow-jax.json"):
        fail(ArgumentError, what, "its name is a directory of the checkpoint: at most 240 bytes, and none of its own files", (),
             "give it a shorter or another name")  # fmt: skip
    return full_name


def _want_shape(what: str, shape: Any) -> tuple[int, ...]:
    if shape is None:
        fail(ArgumentError, what, "shape is required", (), "pass shape=(...)")
    if not isinstance(shape, (list, tuple)):
        fail(ArgumentError, what, f"shape must be a list or tuple of ints, got {shown(shape)}")
    sizes = want.ints(what, "shape", shape)
    if not sizes or any(size <= 0 for size in sizes):
        fail(ArgumentError, what, f"shape needs at least one size, all > 0, got shape={sizes}", (), "write (1,) for one number")
    if math.prod(sizes) > MOST_ELEMENTS:
        fail(ArgumentError, what, f"shape={sizes} means {math.prod(sizes):.1e} elements")
    return sizes


def _want_initializer(what: str, graph: Graph, initializer: Any, dtype: dtype) -> Initializer:
    if initializer is None and graph.config is not None:
        conf = graph.config.get("default_initializer_conf")
        initializer = None if conf is None else initializers.from_conf(conf)
    if is_message(initializer, "InitializerConf") and initializer.WhichOneof("type") is None:
        fail(ArgumentError, what, "its InitializerConf has none of its fields set", (), "set one, such as random_normal_conf")
    initializer = initializers.from_message(initializer)
    if initializer is None:
        fail(ArgumentError, what, "it has no initializer", (),
             "pass initializer=flow.random_normal_initializer(), or set FunctionConfig.default_initializer_conf")  # fmt: skip
    if not callable(getattr(type(initializer), "draw", None)):  # of its class: an object's own __getattr__ may raise
        given = shown(initializer) or f"a {type(initializer).__name__}"  # messages without a field have no text
        rule = f"initializer must be one of flow's, such as flow.zeros_initializer(), got {given}"
        fail(ArgumentError, what, rule)
    if isinstance(initializer, (initializers.Constant, initializers.RandomInteger)) and dtype.is_integer:
        limits = np.iinfo(dtype.numpy_dtype)
        for value in initializer.bounds:
            if not in_range(value, limits):
                rule = f"its first value {shown(value)} is outside {dtype.name}'s range, {limits.min} to {limits.max}"
                fail(ArgumentError, what, rule)
    elif isinstance(initializer, initializers.Constant) and math.isfinite(initializer.value):
        with np.errstate(over="ignore"):
            first = np.asarray(initializer.value).astype(dtype.numpy_dtype)
        if not np.isfinite(first.astype(np.float64)):
            fail(ArgumentError, what, f"its first value {shown(initializer.value)} is outside {dtype.name}'s range")
    return initializer


def _proxy_name(variable_name: str) -> str:
    return f"{variable_name}_ssp_variable_proxy"


def _stale(what: str, graph: Graph, blob: Blob) -> Blob:
    """The older value of its variable that a stage reads under ``FunctionConfig.enable_ssp``."""
    stages, stage = (graph.scope.options.get(name, -1) for name in ("ssp_num_stages", "ssp_stage_id"))
    if not 0 <= stage < stages:
        fail(ArgumentError, what, f"enable_ssp needs 0 <= ssp_stage_id < ssp_num_stages, got {stage} and {stages}", (),
             "with flow.experimental.scope.config(ssp_num_stages=2, ssp_stage_id=0): around the layers of a stage")  # fmt: skip
    with graph_scope(graph.scope.replaced(namespace="")):
        return ssp_variable_proxy(blob, stages - stage, _proxy_name(blob.op_name))[1]
