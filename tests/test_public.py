"""Each public module shows its public names and nothing else, and says where a name is that it does not have.

``tests/reference/public.txt`` is the list. A name is added there by hand, because a public name is a promise:
``python tests/test_public.py`` prints what the list would be.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import oneflow as flow
from oneflow._base.elsewhere import ELSEWHERE
from oneflow._base.public_names import suggestions

LIST = Path(__file__).parent / "reference" / "public.txt"
# Paths that programs import from, and which ``import oneflow`` leaves alone.
IMPORTED = ("oneflow.experimental.namescope",)


def public_modules() -> dict[str, ModuleType]:
    """Those that ``flow`` shows, and those that they show."""
    found: dict[str, ModuleType] = {}

    def visit(module: ModuleType) -> None:
        found[module.__name__] = module
        for name in dir(module):
            value = getattr(module, name)
            if isinstance(value, ModuleType) and value.__name__.startswith("oneflow.") and value.__name__ not in found:
                visit(value)

    visit(flow)
    return dict(sorted(found.items()))


def shown(module: ModuleType) -> list[str]:
    return [n for n in dir(module) if not n.startswith("_")]


def listing() -> str:
    rows = []
    for name, module in public_modules().items():
        rows += [f"[{name}]", *textwrap.wrap(" ".join(shown(module)), 126), ""]
    return "\n".join(rows)


@pytest.mark.parametrize("name", public_modules())
def test_a_module_shows_what_the_list_says(name: str) -> None:
    sections = dict(re.findall(r"^\[(.*)\]\n([^\[]*)", LIST.read_text(encoding="utf-8"), re.MULTILINE))
    assert shown(public_modules()[name]) == sections[name].split()


def test_the_list_has_no_other_modules() -> None:
    assert re.findall(r"^\[(.*)\]$", LIST.read_text(encoding="utf-8"), re.MULTILINE) == list(public_modules())


@pytest.mark.parametrize("name", public_modules())
def test_nothing_else_is_in_a_module(name: str) -> None:
    """A module's own imports have an underscore. Files of a package are attributes of it, by Python's rules."""
    module = public_modules()[name]
    allowed = {*dir(module), *getattr(module, "__all__", ()), "annotations"}
    left = [n for n in vars(module) if not n.startswith("_") and n not in allowed and f"{name}.{n}" not in sys.modules]
    assert not left


@pytest.mark.parametrize("name", public_modules())
def test_what_is_shown_is_there(name: str) -> None:
    module = public_modules()[name]
    assert all(hasattr(module, n) for n in dir(module))


def error_of(expression: str) -> str:
    with pytest.raises(AttributeError) as caught:
        eval(expression, {"flow": flow})  # noqa: S307 - of the table below
    return str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("flow.optimizer.ConstantScheduler", "flow.optimizer.PiecewiseConstantScheduler"),
        ("flow.layers.Dense", "flow.layers.dense"), ("flow.layers.Conv2D", "flow.layers.conv2d"),
        ("flow.nn.Linear", "flow.layers.dense"), ("flow.relu", "flow.math.relu"), ("flow.optimizer.Adma", "flow.optimizer.Adam"),
        ("flow.nn.LeakyReLU", "flow.nn.leaky_relu"), ("flow.nn.CrossEntropyLoss",
         "flow.nn.sparse_softmax_cross_entropy_with_logits"), ("flow.sum", "flow.math.reduce_sum"),
        ("flow.optim", "flow.optimizer"), ("flow.nn.BatchNorm2d", "flow.layers.batch_normalization"),
        ("flow.data.ofrecord_readr", "flow.data.ofrecord_reader"), ("flow.data.DataLoader", "flow.data.ofrecord_reader"),
        ("flow.scope.placment", "flow.scope.placement"), ("flow.math.reducemean", "flow.math.reduce_mean"),
        ("flow.concatenate", "flow.concat"), ("flow.checkpoint.load_variables", "flow.load_variables"),
        ("flow.optimizer.warmup.linaer", "flow.optimizer.warmup.linear"), ("flow.global_fuction", "flow.global_function"),
        ("flow.nn.dense", "flow.layers.dense"), ("flow.initializers", "flow.ones_initializer"),
        ("flow.tensorboard", "flow.loggers.TensorBoardLogger"), ("flow.loggers.csvlogger", "flow.loggers.CSVLogger"),
        ("flow.optimizer.AdamOptimizer", "flow.optimizer.Adam"), ("flow.optimizer.MomentumOptimizer", "flow.optimizer.SGD"),
        ("flow.metrics.accuracy", "flow.metrics.Accuracy"), ("flow.callbacks.EarlyStoping", "flow.callbacks.EarlyStopping"),
    ],
)  # fmt: skip
def test_did_you_mean(wrong: str, right: str) -> None:
    module, _, name = wrong.rpartition(".")
    text = error_of(wrong)
    assert text.startswith(f"module '{module.replace('flow', 'oneflow', 1)}' has no attribute '{name}'; did you mean flow.")
    assert right in re.findall(r"flow[\w.]+", text)


@pytest.mark.parametrize("wrong", ["flow.xyzzy", "flow.nn.qwerty", "flow.optimizer.frobnicate", "flow.data.zzz", "flow.scope.Any",
                                   "flow.scope.refuse", "flow.model.ABC", "flow.util.itertools", "flow.foo",
                                   "flow.profiler.Profile"])  # fmt: skip
def test_nothing_is_meant(wrong: str) -> None:
    assert "did you mean" not in error_of(wrong)


def test_names_of_others_lead_to_ours() -> None:
    for theirs, ours in ELSEWHERE.items():
        value: Any = eval(ours, {"flow": flow})  # noqa: S307 - of our own table
        assert value is not None
        assert not any(theirs == n.replace("_", "").lower() for n in dir(flow)), f"{theirs} is found without the table"
    assert suggestions("oneflow.nn", "SiLU") == ["flow.nn.swish"]


@pytest.mark.parametrize(
    ("module", "name", "hint"), [(flow.nn, "LSTM", "a loop over steps"), (flow, "no_grad", 'type "predict"')]
)  # fmt: skip
def test_names_that_nothing_of_ours_stands_for_say_what_to_do(module: ModuleType, name: str, hint: str) -> None:
    with pytest.raises(AttributeError, match=hint):
        getattr(module, name)


def test_asking_for_a_missing_name_imports_nothing() -> None:
    code = "import sys, oneflow as flow; hasattr(flow.data, 'readr'); hasattr(flow, 'sumx'); print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize("name", IMPORTED)
def test_paths_that_programs_import_from(name: str) -> None:
    assert importlib.import_module(name).__all__


if __name__ == "__main__":
    print(listing(), end="")
