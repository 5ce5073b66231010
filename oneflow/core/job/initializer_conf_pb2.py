"""``InitializerConf``, which programs name in annotations; and the enums of variance scaling."""

from __future__ import annotations

from typing import Any

kFanIn, kFanOut, kAverage = range(3)
kRandomUniform, kRandomNormal, kTruncatedNormal = range(3)


def _table() -> dict[str, list[tuple[str, str, int]]]:
    kinds = {
        "Constant": [("float", "value", 1)],
        "ConstantInt": [("int64", "value", 1)],
        "RandomUniform": [("float", "min", 1), ("float", "max", 2)],
        "RandomUniformInt": [("int32", "min", 1), ("int32", "max", 2)],
        "RandomNormal": [("float", "mean", 1), ("float", "std", 2)],
        "TruncatedNormal": [("float", "mean", 1), ("float", "std", 2)],
        "VarianceScaling": [
            ("float", "scale", 1),
            ("VarianceNorm", "variance_norm", 2),
            ("RandomDistribution", "distribution", 3),
            ("string", "data_format", 4),
        ],
        "Empty": [],
    }
    snake = ["constant", "constant_int", "random_uniform", "random_uniform_int", "random_normal", "truncated_normal"]
    table = {f"{kind}InitializerConf": fields for kind, fields in kinds.items()}
    names = [*snake, "variance_scaling", "empty"]
    rows = [(f"|{message}", f"{name}_conf", i) for i, (message, name) in enumerate(zip(table, names, strict=True), 1)]
    return {**table, "InitializerConf": rows}


def __getattr__(name: str) -> Any:
    if name == "DESCRIPTOR" or name.endswith("InitializerConf"):
        from .._schema import messages

        enums = {
            "VarianceNorm": ["kFanIn", "kFanOut", "kAverage"],
            "RandomDistribution": ["kRandomUniform", "kRandomNormal", "kTruncatedNormal"],
        }
        globals().update(messages("job/initializer_conf.proto", _table(), oneof="type", enums=enums))
        if name in globals():
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
