"""Vectors with labels and samples, in the files that TensorBoard's page PROJECTOR reads."""

from __future__ import annotations

import math
import os
import re
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from .._base.files import read_regular
from .._base.refuse import refuse, shown
from ..data.arrays import as_array
from ..errors import ArgumentError, DataError, ModeError
from ._graph import checked_directory

SAMPLE_TYPES = ("image", "audio", "text")
_LARGEST_LIST = 1 << 26  # bytes
_MOST_PIXELS = 8192  # TensorBoard's limit for a side of the image of all samples


@dataclass(eq=False)
class Tensor:
    """An array; ``set_tensor`` fills it."""

    value: np.ndarray | None = None


@dataclass(eq=False)
class Projection:
    """Vectors of one step; ``set_projector`` fills it."""

    tag: str = ""
    step: int = 0
    value: Tensor = field(default_factory=Tensor)
    label: Tensor = field(default_factory=Tensor)


@dataclass(eq=False)
class Sample:
    """What the vectors stand for; ``set_sample`` fills it."""

    name: str = ""
    sample_type: str = ""
    x: Tensor = field(default_factory=Tensor)


@dataclass(eq=False)
class SummaryProjector:
    """What one file of a projector holds."""

    projector: Projection = field(default_factory=Projection)
    sample: Sample = field(default_factory=Sample)


class Projector:
    """Writes vectors for TensorBoard's page PROJECTOR, which shows their directions of largest variance, t-SNE and UMAP.

    Args:
      logdir: a directory, which is made where it does not exist: what ``tensorboard --logdir`` is given. The vectors go into
        ``<logdir>/projector``.
    Raises: ArgumentError: ``logdir`` is not a path.
    Example:
      >>> projector = flow.summary.Projector("./runs")
      >>> projector.create_embedding_projector()
      >>> projector.embedding_projector(value=np.eye(3, dtype=np.float32), label=np.arange(3), tag="rows", step=1)
    """

    def __init__(self, logdir: str | None = None):
        self._logdir = checked_directory("Projector", logdir)
        self._embedding = self._exception = ""

    @property
    def logdir(self) -> str:
        """The directory it was made with."""
        return self._logdir

    @property
    def embedding_filename(self) -> str:
        """The directory of ``embedding_projector``; "" before ``create_embedding_projector``."""
        return self._embedding

    @property
    def exception_filename(self) -> str:
        """The directory of ``exception_projector``; "" before ``create_exception_projector``."""
        return self._exception

    def create_embedding_projector(self) -> None:
        """Begins a directory for ``embedding_projector``."""
        self._embedding = self._begun("projector")

    def create_exception_projector(self) -> None:
        """Begins a directory for ``exception_projector``."""
        self._exception = self._begun("projector.gradit")

    def embedding_projector(
        self,
        value: Any = None,
        label: Any = None,
        tag: str | None = None,
        step: int | None = None,
        sample_name: str | None = None,
        sample_type: str | None = None,
        x: Any = None,
    ) -> None:
        """Writes vectors, in place of those of this tag that were written before.

        Args:
          value: array (N, D); further axes are joined with D.
          label: array (N,), shown beside the vectors; None for none.
          tag: the name of the vectors; None: "embedding".
          step: int >= 0; None: 0.
          sample_name: the name of the samples.
          sample_type: "image", "audio" or "text"; None for no samples.
          x: array (N, ...) of what the vectors stand for. Images, (N, H, W) or (N, H, W, C), uint8 or floats in [0, 1], are shown
            in place of points; texts stand beside them; of audio the name alone is kept.
        Raises:
          ArgumentError: an argument of another type, shape or range.
          ModeError: before ``create_embedding_projector``.
        """
        made = self._made("embedding_projector", value, tag or "embedding", step, label, sample_name, sample_type, x)
        self.write_projector(self._embedding, made)

    def exception_projector(
        self,
        value: Any = None,
        tag: str | None = None,
        step: int | None = None,
        sample_name: str | None = None,
        sample_type: str | None = None,
        x: Any = None,
    ) -> None:
        """``embedding_projector`` without labels, in a directory of its own: for values that should be looked at.

        Args: those of ``embedding_projector``.
        Raises: what ``embedding_projector`` raises.
        """
        made = self._made("exception_projector", value, tag or "exception", step, None, sample_name, sample_type, x)
        self.write_projector(self._exception, made)

    # --- the parts of it

    def set_tensor(self, tensor: Any, value: Any) -> None:
        """Puts an array into the field of a message.

        Args:
          tensor: with an attribute ``value``.
          value: array, or a list of texts.
        """
        is_text = isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value)
        tensor.value = np.array(value) if is_text else as_array(value, "value")

    def set_projector(self, pro: Any, tag: str, step: int, value: Any, label: Any = None) -> None:
        """Puts vectors and labels into a message.

        Args:
          pro: with attributes ``tag``, ``step``, ``value`` and ``label``, the latter two as for ``set_tensor``.
          tag, step, value, label: those of ``embedding_projector``.
        """
        if not isinstance(tag, str) or not tag:
            refuse(ArgumentError, f"Projector: tag must be a str, got {shown(tag)}")
        if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or step < 0:
            refuse(ArgumentError, f"Projector: step must be an int >= 0, got {shown(step)}")
        pro.tag, pro.step = tag, int(step)
        self.set_tensor(pro.value, value)
        if pro.value.value.ndim < 2 or pro.value.value.dtype.kind not in "fiub":
            refuse(ArgumentError, f"Projector: value must be numbers (N, D), got {pro.value.value.dtype} {pro.value.value.shape}")
        if label is not None:
            self.set_tensor(pro.label, label)
            if pro.label.value.shape != pro.value.value.shape[:1]:
                rule = f"there must be one label per vector, got shape {pro.label.value.shape} for {pro.value.value.shape}"
                refuse(ArgumentError, f"Projector: {rule}")

    def set_sample(self, sample: Any, name: str, x: Any, sample_type: str) -> None:
        """Puts samples into a message.

        Args:
          sample: with attributes ``name``, ``sample_type`` and ``x``, the latter as for ``set_tensor``.
          name, x, sample_type: those of ``embedding_projector``.
        """
        if not isinstance(sample_type, str) or sample_type not in SAMPLE_TYPES:
            refuse(ArgumentError, f"Projector: sample_type must be one of {', '.join(SAMPLE_TYPES)}, got {shown(sample_type)}")
        if name is not None and not isinstance(name, str):
            refuse(ArgumentError, f"Projector: sample_name must be a str, got {shown(name)}")
        sample.name, sample.sample_type = name or sample_type, sample_type
        self.set_tensor(sample.x, x)

    def write_projector(self, filename: str | None = None, projector: Any = None) -> None:
        """Writes the files of a message, and the list of all vectors in ``<logdir>/projector_config.pbtxt``.

        Args:
          filename: the directory, of ``embedding_filename`` or ``exception_filename``.
          projector: a message with ``projector`` and ``sample``.
        Raises: ModeError: nothing was begun.
        """
        if not filename or projector is None:
            refuse(ModeError, "Projector: there is nothing to write to", hint="call create_embedding_projector() first")
        pro, sample = projector.projector, projector.sample
        directory = os.path.join(filename, re.sub(r"[^\w.-]", "_", pro.tag))
        os.makedirs(directory, exist_ok=True)
        vectors = pro.value.value.reshape(len(pro.value.value), -1)
        with open(os.path.join(directory, "tensors.tsv"), "w", encoding="utf-8") as file:
            np.savetxt(file, vectors.astype(np.float64), fmt="%.9g", delimiter="\t")
        _write_metadata(os.path.join(directory, "metadata.tsv"), pro, sample)
        sprite = _write_sprite(os.path.join(directory, "sprite.png"), sample)
        self._list(directory, pro, sprite)

    def _made(
        self, what: str, value: Any, tag: str, step: int | None, label: Any, name: Any, sample_type: Any, x: Any
    ) -> SummaryProjector:
        if value is None:
            refuse(ArgumentError, f"Projector.{what} needs a value, an array (N, D)")
        made = SummaryProjector()
        self.set_projector(made.projector, tag, 0 if step is None else step, value, label)
        if sample_type is not None:
            self.set_sample(made.sample, name, x, sample_type)
            samples, vectors = made.sample.x.value, made.projector.value.value
            if samples is None or vectors is None or len(samples) != len(vectors):
                refuse(ArgumentError, f"Projector.{what}: x must hold one sample per vector")
        return made

    def _begun(self, name: str) -> str:
        directory = os.path.join(self._logdir, "projector", f"{name}.{int(time.time())}")
        os.makedirs(directory, exist_ok=True)
        return directory

    def _list(self, directory: str, pro: Any, sprite: tuple[int, int] | None) -> None:
        """Enters the vectors into TensorBoard's list, in place of an older entry of theirs."""
        path, place = os.path.join(self._logdir, "projector_config.pbtxt"), os.path.relpath(directory, self._logdir)
        entries = re.findall(r"^embeddings \{\n.*?^\}\n", _text_of(path), re.MULTILINE | re.DOTALL)
        tensor_path = f"{place}/tensors.tsv".replace(os.sep, "/")
        rows = [f'  tensor_name: "{_escaped(pro.tag)}:{pro.step}"', f'  tensor_path: "{_escaped(tensor_path)}"']
        if os.path.exists(os.path.join(directory, "metadata.tsv")):
            rows.append(f'  metadata_path: "{_escaped(f"{place}/metadata.tsv".replace(os.sep, "/"))}"')
        if sprite is not None:
            size = "".join(f"    single_image_dim: {n}\n" for n in sprite)
            image = _escaped(f"{place}/sprite.png".replace(os.sep, "/"))
            rows.append(f'  sprite {{\n    image_path: "{image}"\n{size}  }}')
        entries = [e for e in entries if f'"{_escaped(tensor_path)}"' not in e]
        with open(path, "w", encoding="utf-8") as file:
            file.write("".join([*entries, "\n".join(["embeddings {", *rows, "}\n"])]))


def _text_of(path: str) -> str:
    """The content of an earlier list; empty where there is none."""
    try:
        return read_regular(path, _LARGEST_LIST).decode()
    except FileNotFoundError as error:
        if not os.path.islink(path):
            return ""
        why = str(error.strerror)
    except OSError as error:
        why = error.strerror or str(error)
    except ValueError as error:
        why = f"it is not text: {error}"
    refuse(DataError, f"Projector: TensorBoard's list of vectors cannot be read: {why}", found=[("file", path)],
           hint="remove it, or choose another logdir")  # fmt: skip


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def _write_metadata(path: str, pro: Any, sample: Any) -> None:
    columns = {}
    if pro.label.value is not None:
        columns["label"] = pro.label.value
    if sample.sample_type == "text":
        columns[sample.name] = sample.x.value.reshape(len(sample.x.value), -1)[:, 0]
    elif sample.sample_type:
        columns[sample.name] = np.arange(len(sample.x.value))
    if not columns:
        if os.path.exists(path):
            os.remove(path)
        return
    rows = [[re.sub(r"\s", " ", str(v)) for v in row] for row in zip(*columns.values(), strict=True)]
    lines = ["\t".join(row) for row in ([list(columns)] if len(columns) > 1 else []) + rows]  # one column has no heading
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def _write_sprite(path: str, sample: Any) -> tuple[int, int] | None:
    """All samples in one image, row after row; returns the width and height of one."""
    if sample.sample_type != "image":
        return None
    pixels = np.asarray(sample.x.value)
    pixels = pixels[..., None] if pixels.ndim == 3 else pixels
    if pixels.ndim != 4 or pixels.shape[3] not in (1, 3, 4):
        refuse(ArgumentError, f"Projector: images must have shape (N, H, W) or (N, H, W, C), got {pixels.shape}")
    if pixels.dtype != np.uint8:
        pixels = (np.clip(pixels, 0.0, 1.0) * 255 + 0.5).astype(np.uint8)
    pixels = np.repeat(pixels, 3, axis=3) if pixels.shape[3] == 1 else pixels
    count, height, width, channels = pixels.shape
    side = math.ceil(math.sqrt(count))
    if side * max(height, width) > _MOST_PIXELS:
        refuse(ArgumentError, f"Projector: {count} images of {height} x {width} pixels are too many for TensorBoard",
               hint=f"smaller images: side by side they may have {_MOST_PIXELS} x {_MOST_PIXELS} pixels")  # fmt: skip
    whole = np.zeros((side * side, height, width, channels), np.uint8)
    whole[:count] = pixels
    rows = whole.reshape(side, side, height, width, channels).transpose(0, 2, 1, 3, 4)
    Image.fromarray(rows.reshape(side * height, side * width, channels)).save(path, "PNG")
    return width, height
