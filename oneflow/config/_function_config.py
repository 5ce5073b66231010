"""FunctionConfig: the settings of a job, looked up in the table of ``_function_options``."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from .._base.frames import shows_user_frames
from .._base.refuse import closest, refuse, shown
from ..errors import ArgumentError, ConfigError
from ._function_options import FUNCTION_OPTIONS
from ._options import Option, Setter, table

if TYPE_CHECKING:
    from ._function_settings import FunctionSettings
else:
    FunctionSettings = object

_BY_SPELLING: dict[str, Option] = {name: option for option in FUNCTION_OPTIONS for name in (option.name, *option.aliases)}
_GROUPS = {name.partition(".")[0] for name in _BY_SPELLING if "." in name}
_MEMORY_POLICIES = ("policy_mem_size_first", "policy_mutual_exclusion_first", "policy_time_line")
_MEMORY_LISTS = {
    "static_mem_alloc_policy_white_list": ("add", "has", "remove", *_MEMORY_POLICIES),
    "static_mem_alloc_algo_white_list": ("show",),
}
_LEGACY_TRAIN = ("train.primary_lr", "train.secondary_lr", "train.model_update_conf", "train.loss_scale_factor")
_UNSET: Any = object()


def _unknown(spelling: str) -> NoReturn:
    dotted = spelling.removeprefix("FunctionConfig.")
    if dotted.rpartition(".")[2].startswith("_"):  # probes by copy, pickle, notebooks
        raise ConfigError(f"FunctionConfig has no setting {shown(dotted)}")
    near = closest(dotted, [*_BY_SPELLING, *_MEMORY_LISTS])
    found = [("close", ", ".join(near))] if near else []
    hint = f"FunctionConfig.{near[0]}(...)" if near else "help(flow.FunctionConfig) lists all settings"
    refuse(ConfigError, f"FunctionConfig has no setting {shown(dotted)}", found=found, hint=hint)


def _no_assignment(name: str) -> NoReturn:
    if name not in _BY_SPELLING and name not in _GROUPS and not any(n.endswith(f".{name}") for n in _BY_SPELLING):
        _unknown(name)
    refuse(ConfigError, f"settings of FunctionConfig are made by a call, not by assigning to {name!r}", hint=f"{name}(value)")


class FunctionSetter(Setter):
    """One setting of one FunctionConfig."""

    def __init__(self, config: FunctionConfig, spelling: str):
        super().__init__(_BY_SPELLING[spelling], f"FunctionConfig.{spelling}")
        self._config = config

    def _now(self) -> Any:
        return self._config.get(self.option.name)

    @shows_user_frames
    def __call__(self, *args: Any, **kwargs: Any) -> None:
        value = self.option.check(self.option.argument_of(args, kwargs, self.spelling), self.spelling)
        if self.option.name == "tensorrt.int8_calibration" and not self._config.get("tensorrt.use_int8"):
            refuse(ArgumentError, f"{self.spelling} needs int8 to be chosen first", hint="config.tensorrt.use_int8(True)")
        self._config._values[self.option.name] = value
        if self.option.name in _LEGACY_TRAIN:
            self._config.job_type = None


class _Group:
    """``config.train``, ``config.qat``, ``config.tensorrt``."""

    __slots__ = ("_config", "_name")

    _config: FunctionConfig
    _name: str

    def __init__(self, config: FunctionConfig, name: str):
        object.__setattr__(self, "_config", config)
        object.__setattr__(self, "_name", name)

    @shows_user_frames
    def __getattr__(self, name: str) -> FunctionSetter:
        spelling = f"{self._name}.{name}"
        return FunctionSetter(self._config, spelling) if spelling in _BY_SPELLING else _unknown(spelling)

    @shows_user_frames
    def __setattr__(self, name: str, value: Any) -> NoReturn:
        _no_assignment(f"{self._name}.{name}")

    def __dir__(self) -> Iterable[str]:
        return sorted(n.removeprefix(f"{self._name}.") for n in _BY_SPELLING if n.startswith(f"{self._name}."))

    def __repr__(self) -> str:
        return f"<settings FunctionConfig.{self._name}: {', '.join(self.__dir__())}>"


class _MemoryList:
    """``config.static_mem_alloc_*_white_list``: accepted, remembered, without effect (XLA plans memory)."""

    __slots__ = ("_config", "_name")

    def __init__(self, config: FunctionConfig, name: str):
        self._config = config
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name not in _MEMORY_LISTS[self._name]:
            _unknown(f"{self._name}.{name}")
        if name in _MEMORY_POLICIES:
            return lambda: name.removeprefix("policy_")
        return getattr(self, f"_{name}")

    def __dir__(self) -> Iterable[str]:
        return _MEMORY_LISTS[self._name]

    def _policies(self) -> list[str]:
        return list(self._config._values.get(self._name, ()))

    def _has(self, policy: str) -> bool:
        return policy in self._policies()

    def _add(self, policy: str) -> None:
        self._config._values[self._name] = [*(p for p in self._policies() if p != policy), policy]

    def _remove(self, policy: str) -> None:
        self._config._values[self._name] = [p for p in self._policies() if p != policy]

    def _show(self) -> list[str]:
        return [name.removeprefix("policy_") for name in _MEMORY_POLICIES]


class FunctionDesc:
    """Reads settings back: ``config.function_desc.enable_cudnn``; a setting that was not made has its default."""

    __slots__ = ("_config", "_prefix")

    def __init__(self, config: FunctionConfig, prefix: str = ""):
        self._config = config
        self._prefix = prefix

    def IsTrainable(self) -> bool:
        """Whether this is the description of a train job."""
        return self._config.job_type == "train" or (self._config.job_type is None and self._config.is_train_configured())

    @property
    def job_config_proto(self) -> FunctionDesc:
        """This object, under OneFlow's name."""
        return self

    def __getattr__(self, name: str) -> Any:
        if self._prefix == "" and name in _GROUPS:
            return FunctionDesc(self._config, f"{name}.")
        spelling = self._prefix + name
        return self._config.get(spelling) if spelling in _BY_SPELLING else _unknown(spelling)

    def __dir__(self) -> Iterable[str]:
        return ["IsTrainable", "job_config_proto", *sorted(_GROUPS), *sorted(n for n in _BY_SPELLING if "." not in n)]

    def __repr__(self) -> str:
        return f"<description of {self._config!r}>"


class FunctionConfig(FunctionSettings):
    """Settings of a job function: ``flow.global_function("train", config)``.

    Each setting is a call on an attribute. An unknown one is an AttributeError that names similar ones.

    Example:
      >>> config = flow.FunctionConfig()
      >>> config.default_logical_view(flow.scope.mirrored_view())
      >>> config.train.primary_lr(0.1)

    Attributes:
      job_type: None; "train" or "predict" in the copy that a job has; "predict" where it served a predict job last.
    """

    __slots__ = ("_values", "job_type")

    _values: dict[str, Any]
    job_type: str | None

    def __init__(self) -> None:
        object.__setattr__(self, "_values", {})
        object.__setattr__(self, "job_type", None)

    if not TYPE_CHECKING:

        @shows_user_frames
        def __getattr__(self, name: str) -> Any:
            if name in _GROUPS:
                return _Group(self, name)
            if name in _MEMORY_LISTS:
                return _MemoryList(self, name)
            return FunctionSetter(self, name) if name in _BY_SPELLING else _unknown(name)

    @shows_user_frames
    def __setattr__(self, name: str, value: Any) -> None:
        if name != "job_type":
            _no_assignment(name)
        object.__setattr__(self, name, value)

    def __dir__(self) -> Iterable[str]:
        own = ("copy", "function_desc", "get", "is_train_configured", "job_type", "values")
        return sorted({*own, *_GROUPS, *_MEMORY_LISTS, *(name for name in _BY_SPELLING if "." not in name)})

    @property
    def values(self) -> dict[str, Any]:
        """The settings that were made, by dotted name (``"train.primary_lr"``); aliases under the setting's own name."""
        return dict(self._values)

    @property
    def function_desc(self) -> FunctionDesc:
        """The settings to read: ``config.function_desc.<setting>``."""
        return FunctionDesc(self)

    def get(self, name: str, default: Any = _UNSET) -> Any:
        """The value of a setting by its dotted name; where it was not set, ``default`` or else the setting's own default."""
        if not isinstance(name, str):
            refuse(ArgumentError, f"FunctionConfig.get takes the name of a setting, a str, got {shown(name)}")
        if name in self._values:
            return self._values[name]
        if name in _MEMORY_LISTS:
            return [] if default is _UNSET else default
        option = _BY_SPELLING.get(name)
        if option is None:
            _unknown(name)
        return self._values.get(option.name, option.default if default is _UNSET else default)

    def is_train_configured(self) -> bool:
        """Whether the dict style of training was used, and not for a predict job since; jobs declared without a type are train
        jobs then."""
        return self.job_type != "predict" and any(name in self._values for name in _LEGACY_TRAIN)

    def discard_train(self) -> None:
        """Forgets the settings of the dict style of training."""
        for name in _LEGACY_TRAIN:
            self._values.pop(name, None)

    def copy(self) -> FunctionConfig:
        """The same settings, independent of later changes to this object."""
        twin = FunctionConfig()
        twin._values.update(self._values)
        twin.job_type = self.job_type
        return twin

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> FunctionConfig:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._values, self.job_type)

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={shown(value)}" for name, value in self._values.items())
        return f"<FunctionConfig: {settings or 'all defaults'}>"


def _restore(values: dict[str, Any], job_type: str | None) -> FunctionConfig:
    config = FunctionConfig()
    config._values.update(values)
    config.job_type = job_type
    return config


FunctionConfig.__doc__ = f"{inspect.cleandoc(FunctionConfig.__doc__ or '')}\n\n{table(FUNCTION_OPTIONS)}\n"
function_config = FunctionConfig
