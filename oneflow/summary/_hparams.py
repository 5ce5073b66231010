"""Summary messages of texts and of hyper-parameters, for ``flow.summary.pb``."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._base.refuse import refuse, shown
from ..errors import ArgumentError
from ._values import metadata
from ._writer import proto

_KINDS = (int, float, bool, str)


class IntegerRange:
    """The integers from ``min_value`` to ``max_value``: the range of a hyper-parameter.

    Args:
      min_value: int.
      max_value: int, >= ``min_value``.
    Raises: ArgumentError.
    Example: >>> layers = flow.summary.Hparam("layers", flow.summary.IntegerRange(2, 8))
    """

    kind: type = int

    def __init__(self, min_value: int, max_value: int):
        self._bounds = tuple(self._number(n, v) for n, v in (("min_value", min_value), ("max_value", max_value)))
        if min_value > max_value:
            refuse(ArgumentError, f"{type(self).__name__}: min_value must be at most max_value, got {self._bounds}")

    def _number(self, name: str, value: Any) -> Any:
        if type(value) is not self.kind:
            refuse(ArgumentError, f"{type(self).__name__}: {name} must be of {self.kind.__name__}, got {shown(value)}")
        return value

    @property
    def min_value(self) -> Any:
        """The smallest value."""
        return self._bounds[0]

    @property
    def max_value(self) -> Any:
        """The largest value."""
        return self._bounds[1]

    def describe(self, info: Any) -> None:
        """Writes the range into a HParamInfo message."""
        info.type = proto("api").DATA_TYPE_FLOAT64
        info.domain_interval.min_value, info.domain_interval.max_value = self._bounds


class RealRange(IntegerRange):
    """The numbers from ``min_value`` to ``max_value``: the range of a hyper-parameter.

    Args:
      min_value: float.
      max_value: float, >= ``min_value``.
    Raises: ArgumentError.
    Example: >>> rate = flow.summary.Hparam("rate", flow.summary.RealRange(1e-4, 0.1))
    """

    kind = float


class ValueSet:
    """The values that a hyper-parameter can have.

    Args:
      values: at least one, of one type out of int, float, bool and str.
      dtype: that type; None: the first value's.
    Raises: ArgumentError.
    Example: >>> optimizer = flow.summary.Hparam("optimizer", flow.summary.ValueSet(["adam", "sgd"]))
    """

    def __init__(self, values: Sequence[Any], dtype: type | None = None):
        if isinstance(values, (str, bytes)) or not isinstance(values, (Sequence, set, frozenset)) or not len(values):
            refuse(ArgumentError, f"ValueSet: values must be a list of at least one value, got {shown(values)}")
        listed = list(values)
        self._dtype = type(listed[0]) if dtype is None else dtype
        if not any(self._dtype is kind for kind in _KINDS):
            refuse(ArgumentError, f"ValueSet: dtype must be one of int, float, bool, str, got {shown(self._dtype)}")
        for value in listed:
            if type(value) is not self._dtype:
                refuse(ArgumentError, f"ValueSet: every value must be of {self._dtype.__name__}, got {shown(value)}")
        self._values = sorted(listed)

    @property
    def dtype(self) -> type:
        """The type of the values."""
        return self._dtype

    @property
    def values(self) -> list[Any]:
        """The values in ascending order."""
        return list(self._values)

    def describe(self, info: Any) -> None:
        """Writes the values into a HParamInfo message."""
        info.type = _data_type(self._dtype)
        for value in self._values:
            kept = info.domain_discrete.values.add()
            field = {str: "string_value", bool: "bool_value"}.get(self._dtype, "number_value")
            setattr(kept, field, value)


class Hparam:
    """A hyper-parameter, as a key for ``hparams``.

    Args:
      name: as TensorBoard shows it.
      dtype: an ``IntegerRange``, ``RealRange`` or ``ValueSet``; None: anything.
    Raises: ArgumentError.
    Example: >>> rate = flow.summary.Hparam("rate", flow.summary.RealRange(1e-4, 0.1))
    """

    def __init__(self, name: str, dtype: IntegerRange | ValueSet | None = None):
        self._name = _named("Hparam", name)
        if dtype is not None and not isinstance(dtype, (IntegerRange, ValueSet)):
            refuse(ArgumentError, f"Hparam: dtype must be an IntegerRange, RealRange or ValueSet, got {shown(dtype)}")
        self._dtype = dtype

    @property
    def name(self) -> str:
        """The name that it is shown under."""
        return self._name

    @property
    def dtype(self) -> IntegerRange | ValueSet | None:
        """Its range."""
        return self._dtype


class Metric:
    """A metric that hyper-parameters are compared by, as a key for ``hparams``.

    Args:
      name: the tag of the metric's scalars.
      dtype: int or float; None: float.
    Raises: ArgumentError.
    Example: >>> accuracy = flow.summary.Metric("accuracy")
    """

    def __init__(self, name: str, dtype: type | None = None):
        self._name = _named("Metric", name)
        if not any(dtype is kind for kind in (None, int, float)):
            refuse(ArgumentError, f"Metric: dtype must be int or float, got {shown(dtype)}")
        self._dtype = dtype or float

    @property
    def name(self) -> str:
        """The tag of its scalars."""
        return self._name

    @property
    def dtype(self) -> type:
        """The type of its values."""
        return self._dtype


def text(text: str | Sequence[str], tag: str | None = None) -> Any:
    """A Summary message of texts, for ``flow.summary.pb``; TensorBoard shows them as Markdown.

    Args:
      text: a list or tuple of at least one str.
      tag: None means "text".
    Returns: a Summary message.
    Raises:
      ArgumentError: an argument of another type.
      MissingExtraError: tensorboardX is not installed.
    Example: >>> message = flow.summary.text(["learning rate 0.1", "batch 32"], tag="notes")
    """
    if not isinstance(text, (list, tuple)) or not text or not all(isinstance(line, str) for line in text):
        refuse(ArgumentError, f"flow.summary.text takes a list or tuple of at least one str, got {shown(text)}")
    if tag is not None and (not isinstance(tag, str) or not tag):
        refuse(ArgumentError, f"flow.summary.text: tag must be a str, got {shown(tag)}")
    summary, shape = proto("summary").Summary, proto("tensor_shape").TensorShapeProto
    tensor = proto("tensor").TensorProto(
        dtype=proto("types").DT_STRING,
        tensor_shape=shape(dim=[shape.Dim(size=len(text))]),
        string_val=[line.encode("utf-8", "surrogatepass") for line in text],
    )
    content = proto("plugin_text").TextPluginData(version=0).SerializeToString()
    return summary(value=[summary.Value(tag=tag or "text", tensor=tensor, metadata=metadata("text", content))])


def hparams(hparams: Mapping[Any, Any]) -> Any:
    """A Summary message of hyper-parameters and metrics, for ``flow.summary.pb``: a row of TensorBoard's page HPARAMS.

    Args:
      hparams: values (int, float, str, bool, NumPy numbers) by name, by ``Hparam`` or by ``Metric``.
    Returns: a Summary message. Runs with equal hyper-parameters have the same group.
    Raises:
      ArgumentError: a key or value of another type, or a name that occurs twice.
      MissingExtraError: tensorboardX is not installed.
    Example: >>> message = flow.summary.hparams({"rate": 0.1, flow.summary.Metric("accuracy"): 0.97})
    """
    if not isinstance(hparams, Mapping):
        refuse(ArgumentError, f"flow.summary.hparams takes a dict, got {shown(hparams)}")
    given: dict[str, tuple[Any, Any]] = {}  # by name: the key and the value
    for key, value in hparams.items():
        name = key if isinstance(key, str) else getattr(key, "name", None) if isinstance(key, (Hparam, Metric)) else None
        if not isinstance(name, str):
            refuse(ArgumentError, f"flow.summary.hparams: keys must be str, Hparam or Metric, got {shown(key)}")
        if name in given:
            refuse(ArgumentError, f"flow.summary.hparams: {shown(name)} is given twice")
        value = value.item() if isinstance(value, np.generic) else value
        if type(value) not in _KINDS or (isinstance(key, Metric) and isinstance(value, str)):
            refuse(ArgumentError, f"flow.summary.hparams: {shown(name)} must be a number, a bool or a str, got {shown(value)}")
        given[name] = key, value
    metrics = {name: value for name, (key, value) in given.items() if isinstance(key, Metric)}
    values = {name: value for name, (key, value) in given.items() if name not in metrics}
    keys = {name: given[name][0] for name in values}
    summary = proto("summary").Summary
    parts = [
        summary.Value(tag=f"_hparams_/{tag}", metadata=metadata("hparams", c)) for tag, c in _plugin_data(values, keys, metrics)
    ]
    parts += [summary.Value(tag=name, simple_value=float(value)) for name, value in metrics.items()]
    return summary(value=parts)


def _plugin_data(values: Mapping[str, Any], keys: Mapping[str, Any], metrics: Mapping[str, Any]) -> list[tuple[str, bytes]]:
    """What the page HPARAMS reads: the experiment, and the begin and the end of one session of it."""
    api, plugin = proto("api"), proto("plugin_hparams")
    experiment = api.Experiment(metric_infos=[api.MetricInfo(name=api.MetricName(tag=name)) for name in metrics])
    compact = json.dumps(values, sort_keys=True, separators=(",", ":"))
    now = time.time()
    group = hashlib.sha256(compact.encode("utf-8", "surrogatepass")).hexdigest()
    begin = plugin.SessionStartInfo(group_name=group, start_time_secs=now)
    for name, value in values.items():
        info = experiment.hparam_infos.add(name=name)
        domain = keys[name].dtype if isinstance(keys[name], Hparam) else None
        if domain is None:
            info.type = _data_type(type(value))
        else:
            domain.describe(info)
        field = {str: "string_value", bool: "bool_value"}.get(type(value), "number_value")
        setattr(begin.hparams[name], field, value)
    end = plugin.SessionEndInfo(status=api.STATUS_SUCCESS, end_time_secs=now)
    data = plugin.HParamsPluginData
    return [
        ("experiment", data(version=0, experiment=experiment).SerializeToString()),
        ("session_start_info", data(version=0, session_start_info=begin).SerializeToString()),
        ("session_end_info", data(version=0, session_end_info=end).SerializeToString()),
    ]


def _data_type(kind: type) -> Any:
    api = proto("api")
    return {str: api.DATA_TYPE_STRING, bool: api.DATA_TYPE_BOOL}.get(kind, api.DATA_TYPE_FLOAT64)


def _named(what: str, name: Any) -> str:
    if not isinstance(name, str) or not name:
        refuse(ArgumentError, f"{what}: name must be a str, got {shown(name)}")
    return name
