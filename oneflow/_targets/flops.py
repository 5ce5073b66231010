"""The arithmetic of one instruction: products and convolutions by their dimensions, everything else by its elements."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from .hlo import Array, Instruction, Module, contracted

_NO_ARITHMETIC = frozenset(
    {
        "bitcast", "broadcast", "concatenate", "constant", "copy", "dynamic-slice", "dynamic-update-slice", "gather", "iota",
        "pad", "parameter", "reshape", "reverse", "slice", "transpose", "tuple", "get-tuple-element", "convert",
        "bitcast-convert",
    }
)  # fmt: skip
_KERNELS = {"__cudnn$convForward": "forward", "__cudnn$convBiasActivationForward": "forward",
            "__cudnn$convBackwardInput": "input", "__cudnn$convBackwardFilter": "filter"}  # fmt: skip
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Floating-point operations: ``products`` by the kind of arithmetic that they are done in, and all others.

    ``unknown`` names a kernel whose operations cannot be counted.
    """

    products: tuple[tuple[str, float], ...] = ()
    others: float = 0.0
    unknown: str = ""

    @property
    def total(self) -> float:
        return sum(n for _, n in self.products) + self.others


def arithmetic(module: Module, instruction: Instruction) -> Arithmetic:
    """The operations of an instruction of this opcode alone, without those of computations that it calls."""
    operands = [o.arrays[0] for o in module.operands(instruction) if o.arrays]
    out = instruction.arrays[0] if instruction.arrays else Array("f32", (0,))
    if instruction.opcode == "dot" and len(operands) >= 2:
        axes = _numbers(instruction.rest, "lhs_contracting_dims")
        return Arithmetic(((_kind(operands, instruction.rest), 2.0 * out.elements * contracted(operands[0].shape, axes)),))
    if instruction.opcode == "convolution" and len(operands) >= 2:
        return Arithmetic(((_kind(operands, instruction.rest), _convolution(instruction.rest, operands[0], operands[1], out)),))
    if instruction.opcode == "custom-call":
        return _kernel(instruction, operands, out)
    if instruction.opcode in ("reduce", "reduce-window", "select-and-scatter", "map"):
        return Arithmetic(others=float(operands[0].elements if operands else out.elements))
    if instruction.opcode in _NO_ARITHMETIC or not out.dtype.startswith(("f", "bf", "c")):
        return Arithmetic()
    return Arithmetic(others=float(out.elements))


def _kernel(instruction: Instruction, operands: Sequence[Array], out: Array) -> Arithmetic:
    target = instruction.target
    if target in _KERNELS and len(operands) >= 2:
        kind = _KERNELS[target]
        image, kernel, result = {
            "forward": (operands[0], operands[1], out), "input": (out, operands[1], operands[0]),
            "filter": (operands[0], out, operands[1]),
        }[kind]  # fmt: skip
        return Arithmetic(((_kind(operands[:2], instruction.rest), _convolution(instruction.rest, image, kernel, result)),))
    if target.startswith(("__cublas$", "__triton_gemm")) and len(operands) >= 2:
        text = instruction.rest.replace("\\", "")
        listed = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', text)
        axes = [int(n) for n in re.findall(r"\d+", listed[1])] if listed else []
        return Arithmetic(((_kind(operands[:2], text), 2.0 * out.elements * contracted(operands[0].shape, axes)),))
    if target.startswith("__cudnn$fmha") and len(operands) >= 3:
        return Arithmetic(((_kind(operands[:2], ""), _attention(instruction, operands)),))
    large = any(word in target for word in ("gemm", "matmul", "conv", "attention", "tpu_custom_call"))
    return Arithmetic(unknown=target if large else "")


def _attention(instruction: Instruction, operands: Sequence[Array]) -> float:
    """cuDNN's attention, of queries and keys of shape (batch, positions, heads, size).

    Two products in the forward pass; five in the backward pass, which computes the scores again. A causal mask saves half.
    """
    products = 5 if "Backward" in instruction.target else 2
    seen = 0.5 if "CAUSAL" in instruction.rest else 1.0
    return 2.0 * products * seen * operands[0].elements * operands[1].shape[1]


def _kind(operands: Sequence[Array], text: str) -> str:
    """The arithmetic of a product: float32 is rounded to TF32 (bfloat16 on a TPU) unless more precision was asked for."""
    kind = min((a.dtype for a in operands[:2]), key=lambda d: {"f64": 0, "f32": 1}.get(d, 2))
    precise = re.search(r'operand_precision(?:"?:\[|=\{)"?(highest|high)', text, re.IGNORECASE)
    if kind == "f32":
        return "float32" if precise else "tfloat32"
    return {"f64": "float64", "bf16": "bfloat16"}.get(kind, "float16")


def _numbers(text: str, key: str) -> list[int]:
    found = re.search(rf"{key}=\{{([\d,]*)\}}", text)
    return [int(n) for n in found[1].split(",") if n] if found else []


def _convolution(text: str, image: Array, kernel: Array, out: Array) -> float:
    """Two operations for each pair of an element of the kernel and of the image, other than padding and holes."""
    labels = _LABELS.search(text)
    if labels is None:
        return 0.0
    image_at, kernel_at, out_at = (dict(zip(word, range(len(word)), strict=True)) for word in labels.groups())
    if max(len(image_at) - len(image.shape), len(kernel_at) - len(kernel.shape), len(out_at) - len(out.shape)) > 0:
        return 0.0
    spatial = [c for c in labels[3] if c.isdigit()]
    window = _window(text, len(spatial))
    pairs = prod(
        _pairs(image.shape[image_at[c]], kernel.shape[kernel_at[c]], out.shape[out_at[c]], *window[i])
        for i, c in enumerate(spatial)
    )
    return 2.0 * pairs * out.shape[out_at["b"]] * out.shape[out_at["f"]] * kernel.shape[kernel_at["i"]]


def _window(text: str, count: int) -> list[tuple[int, int, int, int]]:
    """Stride, low padding, dilation of the image, and of the kernel, along each spatial axis."""
    found = re.search(r"window=\{([^}]*)\}", text)
    values = dict(part.split("=") for part in found[1].split() if "=" in part) if found else {}

    def along(key: str, default: str) -> list[str]:
        return values[key].split("x") if key in values else [default] * count

    padding = [int(p.split("_")[0]) for p in along("pad", "0_0")]
    strides, image, kernel = ([int(n) for n in along(key, "1")] for key in ("stride", "lhs_dilate", "rhs_dilate"))
    return list(zip(strides, padding, image, kernel, strict=True))


def _pairs(image: int, kernel: int, out: int, stride: int, padding: int, image_dilation: int, kernel_dilation: int) -> int:
    """How many (output, kernel) positions meet an element of the image along one axis."""
    span, found = (image - 1) * image_dilation + 1, 0
    for k in range(kernel):
        first = k * kernel_dilation - padding  # the position that output 0 reads
        if image_dilation == 1:
            low = -(first // stride) if first < 0 else 0  # the first output that reads the image
            high = (span - 1 - first) // stride
            found += max(0, min(out - 1, high) - low + 1)
        else:
            found += sum(0 <= first + o * stride < span and (first + o * stride) % image_dilation == 0 for o in range(out))
    return found
