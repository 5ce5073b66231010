"""Weights of a PyTorch model as a dict for flow.load_variables.

The models here name their variables as PyTorch programs name their modules, with "-" for ".". What differs is the last
word of normalization layers, and that the language models keep matrices as (in, out).
"""

import re

import numpy as np

_NORMALIZATION = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}


def from_torch(state: dict, in_out: bool = False) -> dict[str, np.ndarray]:
    """Variables by name, from ``module.state_dict()`` (or gradients by the same names).

    in_out: matrices of linear layers are transposed to (in, out), as bert.py and gpt.py keep them; embeddings are not.
    """
    arrays = {name: np.asarray(tensor.detach().cpu().numpy()) for name, tensor in state.items()}
    with_statistics = {name.rpartition(".")[0] for name in arrays if name.endswith(".running_mean")}
    variables = {}
    for name, array in arrays.items():
        module, _, kind = name.rpartition(".")
        if kind == "num_batches_tracked":
            continue
        if module in with_statistics or re.search(r"norm[_\d\w]*$", module, re.IGNORECASE):
            kind = _NORMALIZATION[kind]
        elif in_out and kind == "weight" and array.ndim == 2 and "embeddings" not in module:
            array = array.T
        variables[f"{module}-{kind}".lstrip("-").replace(".", "-")] = np.ascontiguousarray(array)
    return variables
