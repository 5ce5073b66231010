"""MNIST: batches of handwritten digits, from this package or from the user's file."""

from __future__ import annotations

import hashlib
import io
import os
import sys
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

import numpy as np

from .._base import check
from .._base.bars import ForgivingFile
from .._base.files import read_regular
from .._base.frames import shows_user_frames
from .._base.refuse import refuse, shown
from .._base.whole_files import replacing
from ..errors import ArgumentError, DataError, DownloadError
from ._npz import load_npz
from .epoch import EpochArray

FILE = "mnist.npz"
_MOST_BYTES = 256 << 20  # of the file; its arrays have 55 MB
PACKAGED = os.path.join(os.path.dirname(os.path.abspath(__file__)), FILE)
ORIGINAL_SHA256 = "63d4344077849053dc3036b247fa012b2b381de53fd055a66b539dffd76cf08e"
PACKAGED_SHA256 = "06af5dfe73b70e3bc1c36439982b18a8d76803db9b544f6fdf838a37fbb01b64"  # the same digits, compressed again

Pair = tuple[EpochArray, EpochArray]


class Digits(NamedTuple):
    """The arrays of ``mnist.npz``: images uint8 (n, 28, 28) in 0 (black) to 255, labels uint8 (n,) in 0 to 9."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


@shows_user_frames
def load_mnist(
    train_batch_size: int = 100,
    test_batch_size: int = 100,
    data_format: str = "NCHW",
    url: str | None = None,
    hash_check: str | None = None,
    out_dir: str | os.PathLike[str] = ".",
) -> tuple[Pair, Pair]:
    """Loads MNIST in batches, in the file's order, scaled to x / 255. Prints the path of the file.

    Without ``url`` nothing is downloaded: the digits come from ``mnist.npz`` in ``out_dir`` if it exists, and otherwise from
    the copy in this package.

    Args:
      train_batch_size: divides 60000.
      test_batch_size: divides 10000.
      data_format: "NCHW" for images (1, 28, 28), "NHWC" for (28, 28, 1).
      url: source of a download of ``mnist.npz`` into ``out_dir``, unless it exists there.
      hash_check: the SHA-256 that the file must have; None accepts the file in general use and the packaged one.
      out_dir: a directory.
    Returns: ((train_images, train_labels), (test_images, test_labels)). Images float32 (batches, batch_size, 1, 28, 28) in
      [0, 1], labels int32 (batches, batch_size). The arrays are EpochArrays: the end of a loop over one waits for every
      call that the loop submitted.
    Raises:
      ArgumentError: a batch size that does not divide, or an argument of the wrong kind.
      DataError: the file has another checksum, or is not an mnist.npz.
      DownloadError: the download failed.
    Example: >>> (train_images, train_labels), (test_images, test_labels) = flow.data.load_mnist(100)
    """
    check_batching(train_batch_size, test_batch_size, data_format)
    path, digits = _read(url, hash_check, out_dir)
    print(f"File {FILE} already exist, path: {path}")
    return batches(digits, train_batch_size, test_batch_size, data_format, lambda gray: gray / 255)


def read_mnist(url: str | None = None, hash_check: str | None = None, out_dir: str | os.PathLike[str] = ".") -> Digits:
    """Loads MNIST without scaling and batching, uint8. Finds and verifies the file as ``load_mnist`` does, but prints nothing.

    Returns: a named tuple (x_train, y_train, x_test, y_test).
    Example: >>> flow.data.read_mnist().x_test[0]   # a seven
    """
    return _read(url, hash_check, out_dir)[1]


def batches(
    digits: Digits,
    train_batch_size: int,
    test_batch_size: int,
    data_format: str,
    scale: Callable[[np.ndarray], np.ndarray],
) -> tuple[Pair, Pair]:
    """Batches of digits, like those of ``load_mnist``, with another scaling.

    Args:
      scale: function of gray values, float32, that returns the scaled values; elementwise.
    Example: >>> flow.data.mnist_batches(flow.data.read_mnist(), 100, 100, "NCHW", lambda gray: (gray - 128) / 255)
    """
    check_batching(train_batch_size, test_batch_size, data_format)

    def pair(images: np.ndarray, labels: np.ndarray, size: int) -> Pair:
        scaled = np.empty(images.shape, np.float32)
        for i in range(0, len(images), 500):  # in pieces that stay in the cache, without a temporary as large as the images
            scaled[i : i + 500] = scale(images[i : i + 500].astype(np.float32))
        shape = (size, 1, 28, 28) if data_format == "NCHW" else (size, 28, 28, 1)
        return EpochArray(scaled.reshape(-1, *shape)), EpochArray(labels.astype(np.int32).reshape(-1, size))

    return pair(digits.x_train, digits.y_train, train_batch_size), pair(digits.x_test, digits.y_test, test_batch_size)


def check_batching(train_batch_size: int, test_batch_size: int, data_format: str) -> None:
    """Raises ArgumentError unless MNIST can be divided into such batches."""
    for argument, size, count in (("train_batch_size", train_batch_size, 60000), ("test_batch_size", test_batch_size, 10000)):
        _, problem = check.integer(size, low=1, high=count)
        if problem:
            refuse(ArgumentError, f"{argument} {problem}")
        if count % size:
            sizes = [n for n in range(1, count + 1) if count % n == 0]
            near = sorted(sorted(sizes, key=lambda n: abs(n - size))[:5])
            refuse(
                ArgumentError, f"{argument}={size} does not divide MNIST's {count} images",
                hint=f"use one of {', '.join(map(str, near))}",
            )  # fmt: skip
    if not isinstance(data_format, str) or data_format not in ("NCHW", "NHWC"):
        refuse(ArgumentError, f'data_format must be "NCHW" or "NHWC", got {shown(data_format)}')


# --- the file


def _read(url: str | None, hash_check: str | None, out_dir: str | os.PathLike[str]) -> tuple[str, Digits]:
    folder, problem = check.path(out_dir)
    if problem:
        refuse(ArgumentError, f"out_dir {problem}")
    if hash_check is not None and (not isinstance(hash_check, str) or len(hash_check) != 64):
        refuse(ArgumentError, f"hash_check must be a SHA-256 in 64 hexadecimal digits, got {shown(hash_check)}")
    if url is not None and not isinstance(url, str):
        refuse(ArgumentError, f"url must be a str, got {shown(url)}")
    path = os.path.join(folder, FILE)
    wanted = {ORIGINAL_SHA256, PACKAGED_SHA256} if hash_check is None else {hash_check.lower()}
    if not os.path.exists(path):
        if url is not None:
            _download(url, path, wanted)
        else:
            path = PACKAGED
    try:
        data = read_regular(path, _MOST_BYTES)
    except OSError as error:
        refuse(DataError, f"MNIST cannot be read: {error.strerror}", found=[("file", path)])
    _verify(data, path, wanted)
    return path, _unpack(data, path)


def _verify(data: bytes, path: str, wanted: set[str]) -> None:
    found = hashlib.sha256(data).hexdigest()
    if found in wanted:
        return
    if path == PACKAGED:
        rule, hint = (
            "the MNIST of this package does not have the requested checksum",
            "leave hash_check out, or give the file's url=",
        )
    else:
        rule, hint = f"sha256 verification failed, remove {path} and try again", "pass the file's own checksum as hash_check="
    refuse(DataError, rule, found=_checksums(path, wanted, found), hint=hint)


def _checksums(path: str, wanted: set[str], found: str) -> list[tuple[str, str]]:
    return [("file", path), ("expected", " or ".join(sorted(wanted))), ("found", found)]


def _unpack(data: bytes, path: str) -> Digits:
    def check(name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        count = 60000 if name.endswith("train") else 10000
        expected = (count, 28, 28) if name.startswith("x") else (count,)
        if shape != expected or dtype.kind not in "iu" or (dtype != np.uint8 and name.startswith("x")):
            found = [("expected", f"uint8 {expected}"), ("found", f"{dtype} {shape}")]
            refuse(DataError, f"{path} is not an mnist.npz: its array {name!r} has another shape or dtype", found=found)

    try:
        arrays = load_npz(io.BytesIO(data), Digits._fields, check)
    except DataError:
        raise
    except ValueError as error:
        refuse(DataError, f"{path} is not an mnist.npz: {error}", found=[("expected", f"arrays {', '.join(Digits._fields)}")])
    missing = [name for name in Digits._fields if name not in arrays]
    if missing:
        refuse(DataError, f"{path} is not an mnist.npz: it has no array {missing[0]!r}", found=[("found", ", ".join(arrays))])
    return Digits(**arrays)


def _download(url: str, path: str, wanted: set[str]) -> None:
    """Downloads and verifies the file. Leaves nothing behind where it raises."""
    from http.client import HTTPException  # imported late, like urllib and tqdm: only downloads need them
    from urllib.error import HTTPError

    folder = os.path.dirname(path) or os.curdir
    if not os.path.isdir(folder):
        refuse(ArgumentError, f"out_dir {folder!r} is not a directory", hint="create it first, or choose another out_dir")
    try:
        with replacing(path, durable=True) as partial:
            with open(partial, "xb") as file:
                found = _fetch(url, file)
            if found not in wanted:
                rule = "sha256 verification failed: the download is not the requested file"
                refuse(
                    DataError, rule, found=_checksums(url, wanted, found), hint="check url and hash_check; nothing was written"
                )
    except DataError:
        raise
    except (OSError, ValueError, HTTPException) as error:  # an unknown scheme is a ValueError
        reason: object = getattr(error, "reason", None) or error
        if isinstance(error, HTTPError):  # it keeps the connection open; and "HTTP Error 404: ..." is clearer than its reason
            reason = str(error)
            error.close()
        refuse(
            DownloadError, f"cannot download {FILE}: {reason}", found=[("url", url), ("to", path)], cause=error,
            hint=f"leave url= out to use the MNIST of this package, or put the file at {path} yourself",
        )  # fmt: skip


def _fetch(url: str, file: BinaryIO) -> str:
    from urllib.request import urlopen

    from tqdm import tqdm

    digest = hashlib.sha256()
    with urlopen(url, timeout=30) as response:
        length = response.headers.get("Content-Length")
        total = int(length) if length and length.isdigit() else None
        done = 0
        with tqdm(total=total, unit="B", unit_scale=True, desc=FILE, file=ForgivingFile(sys.stderr)) as bar:
            while chunk := response.read(1 << 16):
                done += len(chunk)
                if done > _MOST_BYTES:
                    raise OSError(f"it has more than {_MOST_BYTES} bytes")
                file.write(chunk)
                digest.update(chunk)
                bar.update(len(chunk))
    if total is not None and done != total:
        raise OSError(f"the connection ended after {done} of {total} bytes")
    return digest.hexdigest()
