"""Without protobuf or OpenCV: a clear error where one is needed, and nothing else is harmed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples" / "data"

WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "cv2" or name.startswith("google"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
import numpy as np, oneflow as flow
from oneflow.errors import MissingExtraError
def refuses(function, what):
    try:
        function()
    except MissingExtraError as error:
        assert isinstance(error, ImportError) and what in str(error) and "pip install 'oneflow-jax[data]'" in str(error), error
    else:
        raise AssertionError("no error")
"""


@pytest.mark.parametrize(
    "program",
    [
        "from oneflow.core.operator import op_conf_pb2; assert op_conf_pb2.kRelu == 3",
        "import importlib; refuses(lambda: importlib.import_module('oneflow.core.record.record_pb2'), 'protobuf')",
        "from oneflow.core.operator import op_conf_pb2; refuses(lambda: op_conf_pb2.OperatorConf, 'operator.op_conf_pb2')",
        "from oneflow.data import images; refuses(lambda: images.decode(b'x'), 'OpenCV')",
        "from oneflow.data.inputs import make_record; refuses(lambda: make_record({}), 'protobuf')",
        "flow.data.load_mnist(100)",
    ],
)
def test_without_the_extra(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT + program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_examples_name_it_in_one_line() -> None:
    program = f"""
import runpy
for name, what in (("coco", "OpenCV"), ("images", "OpenCV"), ("clicks", "protobuf")):
    sys.argv = [f"train_{{name}}.py"]
    try:
        runpy.run_path(f"{EXAMPLES}/train_{{name}}.py", run_name="__main__")
    except SystemExit as error:
        assert what in error.code and error.code.endswith("; try pip install 'oneflow-jax[data]'"), error.code
        assert len(error.code.splitlines()) == 1, error.code
    else:
        raise AssertionError(name)
"""
    done = subprocess.run([sys.executable, "-c", WITHOUT + program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_importing_oneflow_does_not_import_them() -> None:
    program = "import oneflow, sys; assert not {'cv2', 'google.protobuf'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)


def test_protobuf_modules_by_attribute() -> None:
    program = """
import oneflow as flow
assert flow.core.operator.op_conf_pb2.kNone == 0
assert flow.core.record.record_pb2.OFRecord().ByteSize() == 0
from oneflow.compatible.single_client.core.record import record_pb2
assert record_pb2 is flow.core.record.record_pb2
for missing in ("oneflow.core.job.nonsense_pb2", "oneflow.core.nonsense"):
    try:
        __import__(missing)
    except ModuleNotFoundError as error:
        assert missing in str(error)
    else:
        raise AssertionError(missing)
try:
    flow.core.nonsense
except AttributeError as error:
    assert "op_conf_pb2" in str(error), error
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
