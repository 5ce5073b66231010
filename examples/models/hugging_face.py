"""Weights of BERT and GPT-2 in Hugging Face's layout, from a safetensors file, as a dict for flow.load_variables.

    flow.load_variables(bert_weights("bert-base-uncased/model.safetensors"))
    flow.load_variables(gpt2_weights("gpt2/model.safetensors", heads=12))

A row of a table has a pattern for Hugging Face's name, our name, and what happens to the array: BERT's matrices are (out, in)
there and (in, out) in bert.py, and GPT-2 has the queries, keys and values of all heads one after the other, where gpt.py
has those of each head side by side. Entries that match no row (masks, heads of other tasks) are left out, and not read.
"""

import re
from collections.abc import Callable
from functools import partial

import numpy as np

import oneflow as flow

Table = list[tuple[str, str, Callable[[np.ndarray], np.ndarray]]]


def kept(array: np.ndarray) -> np.ndarray:
    return array


def turned(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array.T)


def by_head(array: np.ndarray, heads: int) -> np.ndarray:
    """(..., 3 * heads * size), queries first, as (..., heads * 3 * size)."""
    *rest, columns = array.shape
    parts = array.reshape(*rest, 3, heads, columns // (3 * heads))
    return np.ascontiguousarray(np.swapaxes(parts, -3, -2)).reshape(array.shape)


LINEAR = r"(attention\.self\.(?:query|key|value)|attention\.output\.dense|intermediate\.dense|output\.dense)"
BERT: Table = [
    (r"(?:bert\.)?embeddings\.(\w+_embeddings)\.weight", r"bert-embeddings-\1-weight", kept),
    (r"(?:bert\.)?embeddings\.LayerNorm\.(?:weight|gamma)", "bert-embeddings-LayerNorm-gamma", kept),
    (r"(?:bert\.)?embeddings\.LayerNorm\.(?:bias|beta)", "bert-embeddings-LayerNorm-beta", kept),
    (rf"(?:bert\.)?encoder\.layer\.(\d+)\.{LINEAR}\.weight", r"bert-encoder-layer-\1-\2-weight", turned),
    (rf"(?:bert\.)?encoder\.layer\.(\d+)\.{LINEAR}\.bias", r"bert-encoder-layer-\1-\2-bias", kept),
    (r"(?:bert\.)?encoder\.layer\.(\d+)\.(attention\.output|output)\.LayerNorm\.(?:weight|gamma)",
     r"bert-encoder-layer-\1-\2-LayerNorm-gamma", kept),
    (r"(?:bert\.)?encoder\.layer\.(\d+)\.(attention\.output|output)\.LayerNorm\.(?:bias|beta)",
     r"bert-encoder-layer-\1-\2-LayerNorm-beta", kept),
    (r"(?:bert\.)?pooler\.dense\.weight", "bert-pooler-dense-weight", turned),
    (r"(?:bert\.)?pooler\.dense\.bias", "bert-pooler-dense-bias", kept),
    (r"cls\.predictions\.bias", "cls-predictions-bias", kept),
    (r"cls\.predictions\.transform\.dense\.weight", "cls-predictions-transform-dense-weight", turned),
    (r"cls\.predictions\.transform\.dense\.bias", "cls-predictions-transform-dense-bias", kept),
    (r"cls\.predictions\.transform\.LayerNorm\.(?:weight|gamma)", "cls-predictions-transform-LayerNorm-gamma", kept),
    (r"cls\.predictions\.transform\.LayerNorm\.(?:bias|beta)", "cls-predictions-transform-LayerNorm-beta", kept),
    (r"(cls\.seq_relationship|qa_outputs)\.weight", r"\1-weight", turned),
    (r"(cls\.seq_relationship|qa_outputs)\.bias", r"\1-bias", kept),
]  # fmt: skip


def gpt2(heads: int) -> Table:
    """GPT-2's table. In a job, GPTConfig(gelu="tanh") computes with GPT-2's form of gelu."""
    split = partial(by_head, heads=heads)
    return [
        (r"(?:transformer\.)?(wte|wpe)\.weight", r"model-\1", kept),
        (r"(?:transformer\.)?h\.(\d+)\.ln_([12])\.weight", r"model-h\1-layernorm_\2-gamma", kept),
        (r"(?:transformer\.)?h\.(\d+)\.ln_([12])\.bias", r"model-h\1-layernorm_\2-beta", kept),
        (r"(?:transformer\.)?h\.(\d+)\.attn\.c_attn\.(weight|bias)", r"model-h\1-attn-c_attn-\2", split),
        (r"(?:transformer\.)?h\.(\d+)\.(attn\.c_proj|mlp\.c_fc|mlp\.c_proj)\.(weight|bias)", r"model-h\1-\2-\3", kept),
        (r"(?:transformer\.)?ln_f\.weight", "model-layernorm_f-gamma", kept),
        (r"(?:transformer\.)?ln_f\.bias", "model-layernorm_f-beta", kept),
    ]


def weights(path: str, table: Table) -> dict[str, np.ndarray]:
    """Variables by name, from a safetensors file and a table."""
    variables = {}
    for name, value in flow.checkpoint.get(path).items():
        for pattern, ours, change in table:
            found = re.fullmatch(pattern, name)
            if found:
                variables[found.expand(ours).replace(".", "-")] = change(value.numpy())
                break
    return variables


def bert_weights(path: str) -> dict[str, np.ndarray]:
    """For a job of bert.Bert."""
    return weights(path, BERT)


def gpt2_weights(path: str, heads: int) -> dict[str, np.ndarray]:
    """For a job of gpt.GPT with GPTConfig(vocab_size=50257, gelu="tanh") and the model's other sizes."""
    return weights(path, gpt2(heads))
