"""Format and size of an encoded image, read from its header before a decoder allocates memory.

Supported are formats whose header bounds what OpenCV's decoder allocates: the decoder notices where header and data disagree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

PLAIN_COST = 6  # bytes per pixel: OpenCV decodes three channels of 8 bits, and copies them


class Header(NamedTuple):
    """The content of a header.

    ``cost`` bounds the memory that OpenCV takes per pixel while it decodes, in bytes. ``scans`` is the number of passes over all
    pixels. ``is_whole`` is False where the end of the file is missing.
    """

    format: str
    width: int
    height: int
    cost: int = PLAIN_COST
    scans: int = 1
    is_whole: bool = True


def read_header(data: bytes | memoryview, any_depth: bool = False) -> Header:
    """Reads the header of an encoded image.

    Args:
      data: all bytes of the file.
      any_depth: whether more than 8 bits per channel are kept (OpenCV's IMREAD_ANYDEPTH).
    Raises: ValueError with the reason why it cannot be decoded.
    """
    data = memoryview(data)
    head = bytes(data[:12])
    for name, magic, parse in _FORMATS:
        if magic.match(head):
            return parse(data, any_depth)._replace(format=name)
    if head[4:8] == b"ftyp":
        raise ValueError(f"{head[8:12].decode('ascii', 'replace').upper()} is not read; convert it to JPEG, PNG or WebP")
    raise ValueError(f"it has no format that OpenCV knows; it begins with {head[:8]!r}")


def _number(data: memoryview, at: int, size: int, order: Literal["big", "little"], *, signed: bool = False) -> int:
    if at + size > len(data):
        raise ValueError("it ends inside its header")
    return int.from_bytes(data[at : at + size], order, signed=signed)


def _png(data: memoryview, any_depth: bool) -> Header:
    if bytes(data[12:16]) != b"IHDR":
        raise ValueError("it is a PNG without a header")
    width, height, depth = _number(data, 16, 4, "big"), _number(data, 20, 4, "big"), _number(data, 24, 1, "big")
    at, is_whole = 8, False  # decoders allocate memory for a chunk before they read it
    while at + 12 <= len(data) and not is_whole:
        at += 12 + _number(data, at, 4, "big")
        is_whole = at <= len(data) and bytes(data[at - 8 : at - 4]) == b"IEND"
    return Header("", width, height, 2 * PLAIN_COST if depth == 16 and any_depth else PLAIN_COST, is_whole=is_whole)


def _jpeg(data: memoryview, any_depth: bool) -> Header:
    """Walks over the segments before the first scan, as libjpeg does: a thumbnail in one of them has a size of its own."""
    raw = bytes(data)
    frame, at = _jpeg_segment(raw, 2, _FRAMES)
    if not at:
        raise ValueError("it is a JPEG that ends before its size" if frame is None else "it is a JPEG without a size")
    height, width, components = _number(data, at + 3, 2, "big"), _number(data, at + 5, 2, "big"), _number(data, at + 7, 1, "big")
    factors = [(s >> 4, s & 15) for s in (_number(data, at + 9 + 3 * i, 1, "big") for i in range(components))]
    widest, highest = max((h for h, _ in factors), default=1), max((v for _, v in factors), default=1)
    _, scan = _jpeg_segment(raw, at + _number(data, at, 2, "big"), (0xDA,))
    # a scan of all components that is not progressive: libjpeg reads no other one
    is_only_one = frame in _SEQUENTIAL and raw[scan + 2 : scan + 3] == bytes([components]) if scan else False
    scans, cost = 1 if is_only_one else _count_scans(raw[at:]), PLAIN_COST
    if scans > 1:  # all coefficients, of two bytes, are kept until the last scan
        samples = sum(h * v for h, v in factors) / max(widest * highest, 1)
        cost = max(cost, 3 + round(2 * samples + 0.5))
    is_whole = raw.endswith(b"\xff\xd9") or raw.rfind(b"\xff\xd9", at) >= 0
    return Header("", width, height, cost, max(scans, 1), is_whole)


_FRAMES = (*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0))  # markers of segments with the size
_SEQUENTIAL = (0xC0, 0xC1)  # those of Huffman-coded frames that are not progressive


def _jpeg_segment(raw: bytes, at: int, wanted: Sequence[int]) -> tuple[int | None, int]:
    """The marker of the next segment that has one of those, and where its length is.

    0 in place of that, and another marker, where the pixels come first; None and 0 at the end of the file.
    """
    while True:
        at = raw.find(b"\xff", at)
        while 0 <= at < len(raw) and raw[at] == 0xFF:  # any number of fill bytes may precede the marker's code
            at += 1
        if not 0 <= at < len(raw):
            return None, 0
        marker, at = raw[at], at + 1
        if marker in wanted:
            return marker, at
        if marker in (0xDA, 0xD9):
            return marker, 0
        if marker not in (0x00, 0x01) and not 0xD0 <= marker <= 0xD8:  # of these no segment follows
            at += int.from_bytes(raw[at : at + 2], "big")


def _count_scans(data: bytes) -> int:
    """How often FF DA occurs: ``data.count``, which takes ten times as long because FF is frequent in a JPEG."""
    pairs = (np.frombuffer(data, "<u2", (len(data) - odd) // 2, odd) for odd in (0, 1) if len(data) > odd)
    return sum(int(np.count_nonzero(each == 0xDAFF)) for each in pairs)


def _gif(data: memoryview, any_depth: bool) -> Header:
    return Header("", _number(data, 6, 2, "little"), _number(data, 8, 2, "little"), 2 * PLAIN_COST)


def _bmp(data: memoryview, any_depth: bool) -> Header:
    if _number(data, 14, 4, "little") == 12:  # OS/2
        return Header("", _number(data, 18, 2, "little"), _number(data, 20, 2, "little"))
    return Header("", abs(_number(data, 18, 4, "little", signed=True)), abs(_number(data, 22, 4, "little", signed=True)))


def _webp(data: memoryview, any_depth: bool) -> Header:
    chunk = bytes(data[12:16])
    if chunk == b"VP8X":
        width, height = (1 + _number(data, at, 3, "little") for at in (24, 27))
        is_animated = bool(_number(data, 20, 1, "little") & 2)
        return Header("", width, height, 3 * PLAIN_COST if is_animated else PLAIN_COST + 2)
    if chunk == b"VP8L":
        bits = _number(data, 21, 4, "little")
        return Header("", 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF), PLAIN_COST + 2)
    if chunk == b"VP8 ":
        return Header("", _number(data, 26, 2, "little") & 0x3FFF, _number(data, 28, 2, "little") & 0x3FFF)
    raise ValueError(f"it is a WebP that begins with a chunk {chunk!r}")


_TIFF_SIZES = {1: 1, 3: 2, 4: 4, 16: 8}  # of unsigned integers, by their type's number
_WIDTH, _HEIGHT, _BITS, _SAMPLES, _TILE_WIDTH, _TILE_HEIGHT = 256, 257, 258, 277, 322, 323


def _tiff(data: memoryview, any_depth: bool) -> Header:
    order: Literal["big", "little"] = "little" if data[0] == 0x49 else "big"
    is_big = _number(data, 2, 2, order) == 43
    start = _number(data, 8, 8, order) if is_big else _number(data, 4, 4, order)
    count, start = (_number(data, start, 8, order), start + 8) if is_big else (_number(data, start, 2, order), start + 2)
    entry, offset = (20, 12) if is_big else (12, 8)
    if count * entry > len(data):
        raise ValueError("it is a TIFF whose directory is longer than the file")
    found: dict[int, int] = {}
    for at in range(start, start + count * entry, entry):
        tag, kind, values = _number(data, at, 2, order), _number(data, at + 2, 2, order), _number(data, at + 4, offset - 4, order)
        if tag not in (_WIDTH, _HEIGHT, _BITS, _SAMPLES, _TILE_WIDTH, _TILE_HEIGHT) or kind not in _TIFF_SIZES or not values:
            continue
        size, place = _TIFF_SIZES[kind], at + offset
        if size * values > entry - offset:
            place = _number(data, place, entry - offset, order)
        found[tag] = max(found.get(tag, 0), _number(data, place, size, order))
    width, height, tile = found.get(_WIDTH, 0), found.get(_HEIGHT, 0), (found.get(_TILE_WIDTH, 0), found.get(_TILE_HEIGHT, 0))
    if tile[0] * tile[1] > width * height:
        width, height = tile
    samples = found.get(_SAMPLES, 1) * -(-max(found.get(_BITS, 1), 8) // 8)  # bytes
    return Header("", width, height, max(PLAIN_COST + 4, 3 * samples))


def _jpeg_2000(data: memoryview, any_depth: bool) -> Header:
    best = Header("", 0, 0)
    for found in re.finditer(rb"\xff\x4f\xff\x51", data):  # a start of codestream; there should be one
        at = found.end() + 4
        left, top = _number(data, at + 8, 4, "big"), _number(data, at + 12, 4, "big")
        width, height = _number(data, at, 4, "big") - left, _number(data, at + 4, 4, "big") - top
        cost = 4 * _number(data, at + 32, 2, "big") + 4
        if width * height * cost >= best.width * best.height * best.cost:
            best = Header("", width, height, cost)
    if best.width <= 0 or best.height <= 0:
        raise ValueError("it is a JPEG 2000 without a size")
    return best


_COMMENT = re.compile(rb"#[^\n\r]*")


def _netpbm(data: memoryview, any_depth: bool) -> Header:
    head = bytes(data[:65536])
    if head[1:2] in b"Ff":
        numbers = re.match(rb"P[Ff]\s+(\d{1,9})\s+(\d{1,9})\s", head)
        cost = 4 * PLAIN_COST
    elif head[1:2] == b"7":
        names = (b"WIDTH", b"HEIGHT", b"DEPTH")
        sizes = [max(map(int, re.findall(rb"%s\s+(\d{1,9})" % name, head)), default=0) for name in names]
        return Header("", sizes[0], sizes[1], max(4 * sizes[2], 2 * PLAIN_COST))
    else:
        numbers = re.match(rb"P[1-6]\s+(\d{1,9})\s+(\d{1,9})\s", _COMMENT.sub(b" ", head))
        cost = 2 * PLAIN_COST if any_depth else PLAIN_COST
    if numbers is None:
        raise ValueError("it is a Netpbm image without a size")
    return Header("", int(numbers[1]), int(numbers[2]), cost)


def _radiance(data: memoryview, any_depth: bool) -> Header:
    sizes = [(int(m[2]), int(m[1])) for m in re.finditer(rb"-Y\s*\+?(\d+)\s*\+X\s*\+?(\d+)", data)]
    if not sizes:
        raise ValueError("it is a Radiance HDR without a size")
    width, height = max(sizes, key=lambda size: size[0] * size[1])
    return Header("", width, height, 4 * PLAIN_COST)


def _sun_raster(data: memoryview, any_depth: bool) -> Header:
    return Header("", _number(data, 4, 4, "big"), _number(data, 8, 4, "big"))


_FORMATS: tuple[tuple[str, re.Pattern[bytes], Callable[[memoryview, bool], Header]], ...] = tuple(
    (name, re.compile(magic, re.DOTALL), parse)
    for name, magic, parse in (
        ("JPEG", rb"\xff\xd8\xff", _jpeg),
        ("PNG", rb"\x89PNG\r\n\x1a\n", _png),
        ("WebP", rb"RIFF....WEBP", _webp),
        ("GIF", rb"GIF8[79]a", _gif),
        ("BMP", rb"BM", _bmp),
        ("TIFF", rb"II[*+]\0|MM\0[*+]", _tiff),
        ("JPEG 2000", rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51", _jpeg_2000),
        ("Netpbm", rb"P[1-7Ff]\s", _netpbm),
        ("Radiance HDR", rb"#\?R(ADIANCE|GBE)", _radiance),
        ("Sun raster", rb"\x59\xa6\x6a\x95", _sun_raster),
    )
)
