"""A model here against a PyTorch module with the same weights: every layer's values, every variable's gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.runtime.session import default_session

torch = pytest.importorskip("torch")
FORWARD, BACKWARD = 1e-4, 1e-3


def array(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def differences(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], floor: float = 1e-6) -> dict[str, float]:
    """The largest difference of each array, relative to the largest element of its reference (or to floor, if more)."""
    assert sorted(ours) == sorted(theirs)
    errors = {}
    for name, expected in theirs.items():
        assert ours[name].shape == expected.shape, name
        assert np.isfinite(expected).all() and np.isfinite(ours[name]).all(), name
        errors[name] = float(np.abs(ours[name] - expected).max() / max(np.abs(expected).max(), floor))
    return errors


def close(
    what: str, ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], tolerance: float, floor: float = 1e-6
) -> None:
    """Arrays of the same names and shapes, whose differences are all within the tolerance. ``pytest -s`` shows the largest."""
    errors = differences(ours, theirs, floor)
    apart = {name: error for name, error in errors.items() if error > tolerance}
    assert not apart, f"{what}: {len(apart)} of {len(errors)} differ by more than {tolerance}: {apart}"
    print(f"{what}: {len(errors)} arrays, largest difference {max(errors.values()):.1e}")


def recorded(module: Any, run: Callable[[], Any]) -> tuple[Any, dict[str, np.ndarray]]:
    """run()'s result, and what each submodule gave meanwhile, by its name with "-" for "."."""
    values: dict[str, np.ndarray] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor):
                values[name.replace(".", "-")] = array(output).copy()

        return hook

    handles = [part.register_forward_hook(keep(name)) for name, part in module.named_modules() if name]
    result = run()
    for handle in handles:
        handle.remove()
    return result, values


def scrambled(module: Any) -> Any:
    """The module with statistics, gammas, betas and biases that are neither 0 nor 1, as after some training."""
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if name.endswith(("running_mean", "bias")):
                tensor.copy_(0.1 * torch.randn(tensor.shape, generator=random))
            elif name.endswith("running_var") or (name.endswith("weight") and tensor.ndim == 1):
                tensor.copy_(0.75 + 0.5 * torch.rand(tensor.shape, generator=random))
    return module


def variables() -> dict[str, np.ndarray]:
    """Every variable of the session that is the model's own."""
    kept = {name: handle for name, handle in flow.get_all_variables().items() if not name.startswith("System-")}
    return {name: handle.numpy() for name, handle in kept.items() if not name.endswith(("-momentum", "-m", "-v"))}


def from_torch(state: Mapping[str, Any], strict: bool = True, rename: Any = None) -> dict[str, np.ndarray]:
    """Values of PyTorch's by the names that the session's jobs have for them."""
    jobs: Any = list(default_session().jobs.values())
    return flow.interop.from_torch(state, jobs, rename, strict)


def load(module: Any) -> None:
    """Sets the session's variables to the module's values; names and shapes are the same on both sides."""
    values = from_torch(module.state_dict())
    assert {n: v.shape for n, v in variables().items()} == {n: v.shape for n, v in values.items()}
    flow.load_variables(values, ignore_mismatch=False)
    jobs: Any = list(default_session().jobs.values())
    back, state = flow.interop.to_torch(jobs), module.state_dict()
    assert back.keys() == {name for name in state if not name.endswith("num_batches_tracked")}
    assert all(torch.equal(tensor, state[name]) for name, tensor in back.items())


def gradients(slot: str, factor: float) -> dict[str, np.ndarray]:
    """Gradients of the first step, read from what the optimizer keeps: exact, as it started with 0."""
    handles = flow.get_all_variables().items()
    return {name.removesuffix(slot): factor * handle.numpy() for name, handle in handles if name.endswith(slot)}


def torch_gradients(module: Any, rename: Any = None) -> dict[str, np.ndarray]:
    grads = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    return from_torch(grads, strict=False, rename=rename)
