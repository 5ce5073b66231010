"""The older description of training, ``config.train.model_update_conf({...})``, as an optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, NoReturn

from .._base.generation import V0_3, Generation
from .._base.refuse import closest, refuse, shown
from .._base.source import caller
from ..errors import ConfigError, TrainError
from . import _check, _grad_clipping, _warmup, rules, rules_v06, schedules, schedules_v06
from .base import Optimizer
from .schedules import LrScheduler, conf_name

_WHERE = "train.model_update_conf"
_EXAMPLE = 'config.train.model_update_conf({"naive_conf": {}})'

# rule key -> name of a class, {key of the dict form: argument of the class}, keys without a default
_RULES: dict[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    "naive_conf": ("SGD", {}, ()),
    "momentum_conf": ("SGD", {"beta": "momentum"}, ()),
    "rmsprop_conf": ("RMSProp", {k: k for k in ("decay_rate", "epsilon", "centered")}, ()),
    "lars_conf": ("LARS", {k: k for k in ("momentum_beta", "epsilon", "lars_coefficient")}, ()),
    "adam_conf": ("Adam", {k: k for k in ("beta1", "beta2", "epsilon", "do_bias_correction")}, ()),
    "lazy_adam_conf": ("LazyAdam", {k: k for k in ("beta1", "beta2", "epsilon")}, ()),
    "lamb_conf": ("LAMB", {k: k for k in ("beta1", "beta2", "epsilon")}, ("beta1", "beta2", "epsilon")),
}
# keys that only 0.6 has: {key: its default}; they are attributes of the optimizer, not arguments of its class
_NEWER_KEYS = {key: {"do_bias_correction": True, "amsgrad": False} for key in ("adam_conf", "lazy_adam_conf")}
_ELSEWHERE = {"sgd_conf": "momentum_conf"}  # names that others have for them
_WITH_DECAY = {"SGD": "SGDW", "Adam": "AdamW"}
_OTHER_KEYS = ("learning_rate_decay", "warmup_conf", "clip_conf", "weight_decay_conf")
_SCHEDULES = {schedule.conf_key: schedule for schedule in schedules.SCHEDULES}
_NEWER_SCHEDULES = _SCHEDULES | {schedule.conf_key: schedule for schedule in schedules_v06.SCHEDULES}
_WARMUPS: dict[str, type[_warmup.WarmupConf]] = {w.conf_key: w for w in (_warmup.constant, _warmup.linear)}


def optimizer_from_config(train: Mapping[str, Any], generation: Generation = V0_3) -> Optimizer:
    """The optimizer that the settings ``FunctionConfig.train.*`` describe.

    Args:
      train: ``primary_lr``, ``model_update_conf`` and ``loss_scale_factor`` as the user set them. ``secondary_lr`` is
        checked, but no update rule reads it. Other keys are ignored.
      generation: the job's.
    Raises:
      TrainError: there is no learning rate or no update rule.
      ConfigError: an unknown key within ``model_update_conf``.
      ArgumentError: a value of another type or outside its range; more than one update rule.
    Example:
      >>> optimizer_from_config({"primary_lr": 0.1, "model_update_conf": {"momentum_conf": {"beta": 0.9}}})
      SGD(lr_scheduler=PiecewiseConstantScheduler(boundaries=(), values=(0.1,)))
    """
    primary, conf = train.get("primary_lr"), train.get("model_update_conf")
    if primary is None:
        refuse(TrainError, "the job's FunctionConfig names no learning rate", hint="config.train.primary_lr(0.1)")
    if conf is None:
        refuse(TrainError, "the job's FunctionConfig names no update rule", hint=_EXAMPLE)
    base = _check.number("FunctionConfig", "train.primary_lr", primary)
    if train.get("secondary_lr") is not None:
        _check.number("FunctionConfig", "train.secondary_lr", train["secondary_lr"], low=0.0)
    conf = _entries(_WHERE, conf, [*_RULES, *_OTHER_KEYS])
    chosen = [key for key in conf if key in _RULES]
    if not chosen:
        found = [("got", ", ".join(conf) or "{}"), ("rules", ", ".join(_RULES))]
        refuse(TrainError, f"{_WHERE} has no update rule", found=found, hint=_EXAMPLE)
    if len(chosen) > 1:
        _check.bad(_WHERE, f"there must be exactly one update rule, got {' and '.join(chosen)}", f"keep {chosen[0]!r} alone")
    known = _NEWER_SCHEDULES if generation.newer_update_rules else _SCHEDULES
    return _optimizer(chosen[0], conf, _schedule(base, conf, known), train.get("loss_scale_factor"), generation)


def _optimizer(
    key: str, conf: dict[str, Any], schedule: LrScheduler, loss_scale_factor: Any, generation: Generation
) -> Optimizer:
    name, arguments, required = _RULES[key]
    family: Any = rules_v06 if generation.newer_update_rules else rules
    newer = _NEWER_KEYS.get(key, {}) if generation.newer_update_rules else {}
    where = f"{_WHERE}: {key}"
    values = _entries(where, conf[key], list({**arguments, **newer}), required)
    decay = _weight_decay(conf["weight_decay_conf"]) if "weight_decay_conf" in conf else {}
    cls = getattr(family, _WITH_DECAY.get(name, name) if decay else name)
    given = {arguments[k]: v for k, v in values.items() if k in arguments and k not in newer}
    if key == "naive_conf":
        given["momentum"] = 0
    clipping = _clipping(conf["clip_conf"]) if "clip_conf" in conf else None
    shared = {"grad_clipping": clipping, "loss_scale_factor": loss_scale_factor}
    if name == "RMSProp" and decay:
        line = caller()
        text = "weight_decay_conf has no effect together with rmsprop_conf: RMSProp has no weight decay"
        warnings.warn_explicit(text, UserWarning, line.file, line.line)
        decay = {}
    lazy = name == "LazyAdam"  # the class has no arguments of decay, but its rule has
    optimizer: Optimizer = cls(schedule, **shared, **given, **({} if lazy else decay))
    for attribute, default in newer.items():
        setattr(optimizer, attribute, _check.flag(where, attribute, values.get(attribute, default)))
    if lazy and decay:
        for attribute, value in decay.items():
            setattr(optimizer, attribute, value)
        optimizer._check_weight_decay()
    return optimizer


def _schedule(base: float, conf: dict[str, Any], known: Mapping[str, type[LrScheduler]]) -> LrScheduler:
    warm = None
    if "warmup_conf" in conf:
        key, values = _one_of(f"{_WHERE}: warmup_conf", conf["warmup_conf"], list(_WARMUPS))
        cls = _WARMUPS[key]
        values = _entries(f"{_WHERE}: {key}", values, ["warmup_batches", cls.factor_name], ("warmup_batches", cls.factor_name))
        warm = cls(values["warmup_batches"], values[cls.factor_name])  # type: ignore[call-arg]
    if "learning_rate_decay" not in conf:
        return schedules.PiecewiseConstantScheduler([], [base], warmup=warm)
    key, values = _one_of(f"{_WHERE}: learning_rate_decay", conf["learning_rate_decay"], list(known))
    where = f"{_WHERE}: {key}"
    if key == "piecewise_constant_conf":
        values = _entries(where, values, ["boundaries", "values"], ("values",))
        plain = schedules.PiecewiseConstantScheduler(values.get("boundaries", []), values["values"], warmup=warm)
        return plain if warm is None or plain.base_rate() == base else _PiecewiseFrom(base, plain)
    if key == "piecewise_scaling_conf":
        values = _entries(where, values, ["boundaries", "scales"], ("scales",))
        boundaries, scales = values.get("boundaries", []), values["scales"]
        factors = schedules.PiecewiseConstantScheduler(boundaries, scales, warmup=warm)  # checks lengths and order
        if factors.values[0] == 1.0:
            return schedules.PiecewiseScalingScheduler(base, boundaries, factors.values[1:], warmup=warm)
        rates = [base * factor for factor in factors.values]
        return _PiecewiseFrom(base, schedules.PiecewiseConstantScheduler(boundaries, rates, warmup=warm))
    made = known[key]
    arguments = {conf_name(f.name): f for f in fields(made) if f.name not in ("base_lr", "warmup")}  # type: ignore[arg-type]
    required = tuple(name for name, f in arguments.items() if f.default is MISSING)
    values = _entries(where, values, list(arguments), required)
    return made(base, warmup=warm, **{arguments[name].name: value for name, value in values.items()})  # type: ignore[call-arg]


@dataclass(frozen=True, repr=False)
class _PiecewiseFrom(LrScheduler):
    """A piecewise constant rate whose warm-up ends at ``base_lr``, which may differ from the first piece's rate."""

    base_lr: float
    pieces: schedules.PiecewiseConstantScheduler

    def __post_init__(self) -> None:
        object.__setattr__(self, "warmup", self.pieces.warmup)

    def decayed(self, step: Any, xp: Any) -> Any:
        return self.pieces.decayed(step, xp)

    @property
    def learning_rate_decay_conf(self) -> dict[str, Any] | None:
        return self.pieces.learning_rate_decay_conf


def _clipping(given: Any) -> _grad_clipping.by_global_norm:
    _, values = _one_of(f"{_WHERE}: clip_conf", given, ["clip_by_global_norm"])
    where = f"{_WHERE}: clip_by_global_norm"
    values = _entries(where, values, ["clip_norm", "global_norm"], ("clip_norm",))  # OneFlow ignores global_norm, too
    return _grad_clipping.by_global_norm(values["clip_norm"])


def _weight_decay(given: Any) -> dict[str, Any]:
    where = f"{_WHERE}: weight_decay_conf"
    values = _entries(where, given, ["weight_decay_rate", "includes", "excludes"], ("weight_decay_rate",))
    decay = {"weight_decay": values["weight_decay_rate"]}
    for key in ("includes", "excludes"):
        if key in values:
            decay[f"weight_decay_{key}"] = _entries(f"{where}: {key}", values[key], ["pattern"]).get("pattern", [])
    return decay


def _entries(where: str, given: Any, known: list[str], required: tuple[str, ...] = ()) -> dict[str, Any]:
    """``given`` as a dict that has no keys but ``known`` and has all ``required`` ones."""
    if not isinstance(given, Mapping):
        _check.bad(where, f"this must be a dict, got {type(given).__name__} {shown(given)}")
    for key in given:
        if key not in known:
            _unknown(where, key, known)
    missing = [key for key in required if key not in given]
    if missing:
        example = ", ".join(f'"{key}": ...' for key in required)
        _check.bad(where, f"{' and '.join(missing)} must be given, got {shown(dict(given))}", f"{{{example}}}")
    return dict(given)


def _unknown(where: str, key: Any, known: list[str]) -> NoReturn:
    near = [_ELSEWHERE[key]] if _ELSEWHERE.get(key) in known else closest(str(key), known, count=1)
    found = [("known", ", ".join(known) or "none")]
    refuse(ConfigError, f"{where} has no key {shown(key)}", found=found, hint=f'"{near[0]}"' if near else "")


def _one_of(where: str, given: Any, known: list[str]) -> tuple[str, Any]:
    conf = _entries(where, given, known)
    if len(conf) != 1:
        _check.bad(where, f"there must be exactly one of {', '.join(known)}, got {', '.join(conf) or 'none'}")
    return next(iter(conf.items()))
