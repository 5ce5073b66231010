"""Loads ``.npz`` files. The sizes in headers are compared with those of the file before memory is allocated."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import IO, TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import zipfile

_INFLATION = 1032  # the most bytes that deflate expands one to
_SLACK = 1 << 16
_BLOCK = 1 << 20

Check = Callable[[str, tuple[int, ...], np.dtype], None]


def load_npz(file: IO[bytes], names: tuple[str, ...] | None = None, check: Check | None = None) -> dict[str, np.ndarray]:
    """Loads the arrays of a file, by name.

    Args:
      file: open for reading, in binary.
      names: of the arrays that are read; None: all.
      check: called with name, shape and dtype of each array before it is read; may raise a ValueError.
    Raises: ValueError for a damaged file, arrays of Python objects, or too little memory.
    """
    import zipfile  # here, because few programs read such files

    made: dict[str, np.ndarray] = {}
    try:
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                if names is None or name in names:
                    made[name] = _array(archive, info, name, check)
    except ValueError:
        raise
    except MemoryError as error:
        raise ValueError("there is no memory for its arrays") from error
    except Exception as error:  # of a damaged file; zipfile, zlib and NumPy have a dozen kinds
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return made


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, check: Check | None) -> np.ndarray:
    if info.file_size > _INFLATION * info.compress_size + _SLACK:
        raise ValueError(f"array {name!r} claims {info.file_size} bytes, packed into {info.compress_size}")
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise ValueError(f"array {name!r} is in version {version} of the format, which plain arrays do not need")
        shape, is_fortran, dtype = readers[version](member)
        if dtype.hasobject:
            raise ValueError(f"array {name!r} holds Python objects")
        if check is not None:
            check(name, shape, dtype)
        size, left = math.prod(shape) * dtype.itemsize, info.file_size - member.tell()
        if size != left or any(n < 0 for n in shape):
            raise ValueError(f"array {name!r} claims to be {dtype}{list(shape)}, and the file holds {left} bytes of it")
        data = np.empty(size, np.uint8)
        at = 0
        while at < size:
            block = member.read(min(_BLOCK, size - at))
            if not block:
                raise ValueError(f"array {name!r} ends after {at} of {size} bytes")
            data[at : at + len(block)] = np.frombuffer(block, np.uint8)
            at += len(block)
    if not size:
        return np.empty(shape, dtype)
    return data.view(dtype).reshape(shape, order="F" if is_fortran else "C")
