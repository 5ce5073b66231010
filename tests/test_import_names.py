"""Every spelling under which programs import the package gives the same modules, and the same session."""

from __future__ import annotations

import importlib
import subprocess
import sys

import numpy as np
import pytest

import oneflow as flow
import oneflow.distribute
import oneflow.sysconfig
import oneflow.util
from oneflow.errors import ArgumentError, AxisError
from oneflow.python.ops.transpose_util import get_inversed_perm, get_perm_when_transpose_axis_to_last_dim

STATEMENTS = [
    "import oneflow.typing as tp",
    "import oneflow.config.collective_boxing",
    "import oneflow.compatible.single_client as flow; import oneflow; assert flow.sync_default_session is "
    "oneflow.sync_default_session and flow.float32 is oneflow.float32 and flow.nn.relu is oneflow.nn.relu",
    "from oneflow.compatible import single_client as flow; flow.global_function",
    "import oneflow as flow; flow.compatible.single_client.framework.id_util.UniqueStr('a_')",
    "import oneflow.compatible.single_client.nn.init, oneflow.compatible.single_client.autograd.autograd_mode",
    "from oneflow.compatible.single_client.summary import summary_graph, summary_hparams, summary_projector",
    "import oneflow.compatible.single_client as flow, oneflow; assert flow.summary.scalar is oneflow.summary.scalar",
    "import oneflow.compatible.single_client.vm, oneflow.compatible.single_client.eager",
    "from oneflow.compatible.single_client.experimental import typing_check; typing_check.enable_typing_check(False)",
    "from oneflow.compatible.single_client.experimental import namescope, scope, load_mnist, unique_op, square_sum_op",
    "import oneflow.compatible.single_client.advanced.distribute_ops as d; d.distribute_split",
    "import oneflow.compatible.single_client.optimizer.grad_clipping as g, oneflow.optimizer.grad_clipping as h; assert g is h",
    "from oneflow.compatible.single_client.deprecated import initializer_util, init_cluster_env, nn; nn.Module",
    "from oneflow.compatible.single_client.contrib.tensorrt import tensorrt_api; tensorrt_api.write_int8_calibration",
    "import oneflow.compatible.single_client as flow; flow.detection, flow.linalg, flow.quantization, flow.system, flow.vm",
    "import oneflow.compatible.single_client.typing as tp; import oneflow; assert tp is oneflow.typing",
    "from oneflow.compatible.single_client import typing as tp; import oneflow; assert tp is oneflow.typing",
    "from oneflow.compatible.single_client.typing import Numpy; import oneflow; assert Numpy is oneflow.typing.Numpy",
    "import oneflow.compatible.single_client.config.collective_boxing as c; c.enable_fusion(True)",
    "import oneflow.compatible.single_client.unittest as u; import oneflow.unittest; assert u is oneflow.unittest",
    "import oneflow.compatible.single_client.experimental.scope as s; s.config",
    "import oneflow.compatible.single_client.env, oneflow.compatible.single_client.sysconfig",
    "from oneflow.compatible.single_client.ops.transpose_util import get_inversed_perm",
    "from oneflow.python.ops.transpose_util import get_inversed_perm",
    "import oneflow.python.framework.distribute as distribute_util; distribute_util.split(0)",
    "import oneflow.compatible.single_client.framework.distribute as d; d.split(0)",
    "import oneflow.python.framework.id_util as id_util; assert id_util.UniqueStr('a_') != id_util.UniqueStr('a_')",
    "import oneflow.python.framework.dtype as d; import oneflow; assert d.float32 is oneflow.float32",
    "import oneflow.python.framework.remote_blob as r; import oneflow; assert r.BlobDef is oneflow.Blob",
    "import oneflow.compatible.single_client.framework.function_util as f; f.FunctionConfig()",
    "from oneflow.python.framework.input_blob_def import FixedTensorDef; FixedTensorDef((2, 3))",
    "import oneflow; import oneflow_api; oneflow_api.INVALID_BATCH_AXIS; assert oneflow_api is oneflow.oneflow_api",
    "import oneflow; from oneflow_api.exception import CheckFailedException; assert issubclass(CheckFailedException, Exception)",
    "import oneflow._oneflow_internal as i; import oneflow_api; assert i is oneflow_api",
    "import oneflow; oneflow._oneflow_internal.flags.with_xla()",
]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_in_a_new_process(statement: str) -> None:
    """As the first statement of a program, with warnings as errors, and without importing jax."""
    program = f"{statement}\nimport sys\nassert 'jax' not in sys.modules, 'jax was imported'"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_aliases_are_never_copies() -> None:
    for name in ("typing", "config", "scope", "config.collective_boxing", "oneflow_api", "experimental.scope"):
        real = importlib.import_module(f"oneflow.{name}")
        alias = importlib.import_module(f"oneflow.compatible.single_client.{name}")
        assert alias is real and real.__spec__ is not None and real.__spec__.name == f"oneflow.{name}"
        assert real.__name__ == f"oneflow.{name}"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Tensor", "the eager tensor"), ("no_grad", 'a job of type "predict" has none'),
        ("nn.Parameter", "use flow.get_variable"), ("nn.init.xavier_uniform_", "the eager, PyTorch-like package"),
        ("autograd.grad", "eager"), ("nn.relo", "did you mean flow.nn.relu"), ("experimental.optim.Adam", "eager"),
    ],
)  # fmt: skip
def test_names_of_the_eager_package_say_what_to_use(name: str, why: str) -> None:
    module, _, last = f"oneflow.compatible.single_client.{name}".rpartition(".")
    with pytest.raises(AttributeError, match=why) as caught:
        getattr(importlib.import_module(module), last)
    assert str(caught.value).startswith(f"module '{module}' has no attribute '{last}'")


def test_a_missing_module_below_the_alias() -> None:
    with pytest.raises(ModuleNotFoundError, match="oneflow.compatible.single_client.nonsense"):
        importlib.import_module("oneflow.compatible.single_client.nonsense")


def test_both_spellings_share_one_session() -> None:
    import oneflow.compatible.single_client as sc

    @sc.global_function()
    def job(x: sc.typing.Numpy.Placeholder((2,))) -> sc.typing.Numpy:  # type: ignore
        return x

    assert isinstance(job, type(flow.global_function()(lambda: None)))
    assert sc.clear_default_session is flow.clear_default_session
    assert (job(np.ones(2, np.float32)) == 1).all()


def test_native_names() -> None:
    import oneflow_api  # type: ignore[import-not-found] # there once oneflow is imported

    made: list[bool] = []

    @flow.global_function()
    def consistent(x: flow.typing.Numpy.Placeholder((2,))) -> flow.typing.Numpy:  # type: ignore
        made.append(isinstance(x, oneflow_api.BlobDesc) and isinstance(x, oneflow_api.ConsistentBlob))
        made.append(not isinstance(x, oneflow_api.MirroredBlob))
        return x

    consistent.graph  # noqa: B018 - traces it
    assert made == [True, True]
    assert oneflow_api.INVALID_SPLIT_AXIS == oneflow_api.INVALID_BATCH_AXIS == -22
    with pytest.raises(AttributeError):
        _ = oneflow_api.exception.nonsense


def test_older_spellings_of_views() -> None:
    assert oneflow.distribute.mirrored_strategy().name == "mirrored"
    assert oneflow.distribute.consistent_strategy_enabled() is False
    assert oneflow.distribute.split(1).axis == 1 and oneflow.distribute.broadcast() is oneflow.distribute.broadcast()


def test_permutations() -> None:
    assert get_perm_when_transpose_axis_to_last_dim(4, 1) == (0, 2, 3, 1)
    assert get_perm_when_transpose_axis_to_last_dim(3, -3) == (1, 2, 0)
    assert get_inversed_perm((0, 2, 3, 1)) == (0, 3, 1, 2)
    with pytest.raises(AxisError, match=r"axis=4 is outside \[-4, 4\)"):
        get_perm_when_transpose_axis_to_last_dim(4, 4)
    with pytest.raises(ArgumentError, match="not a permutation"):
        get_inversed_perm((0, 0))


def test_build_flags() -> None:
    s = oneflow.sysconfig
    assert s.get_compile_flags() == [f"-I{s.get_include()}"] and s.get_link_flags() == [f"-L{s.get_lib()}"]
    assert s.with_xla() and not s.has_rpc_backend_grpc() and isinstance(s.with_cuda(), bool)


def test_unique_names() -> None:
    assert oneflow.util.unique_str("a") != oneflow.util.unique_str("a")
    names = []

    def job() -> None:
        names.append([oneflow.util.unique_str("x_"), oneflow.util.unique_str("y_")])

    for _ in range(2):
        flow.global_function()(job).graph  # noqa: B018 - traces it
    assert names == [["x_0", "y_1"]] * 2
    assert oneflow.util.is_deprecated(flow.FixedTensorDef) and not oneflow.util.is_deprecated(flow.FunctionConfig)
