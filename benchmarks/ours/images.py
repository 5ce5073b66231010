"""JPEG images from part files: decode, random crop to 224 x 224, flip, normalise, batch; in threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cv2
import numpy as np

from oneflow.data import images
from oneflow.data.crops import RandomWindows, coin_flips
from oneflow.data.decoders import decode_bytes, image_decoder_random_crop_resize
from oneflow.data.parts import part_paths
from oneflow.data.source import RecordSource

MEAN, STD = (123.68, 116.779, 103.939), (58.393, 57.12, 57.375)


def make(folder: str, parts: int, batch: int, threads: int, scaled: bool = False) -> tuple[Callable[[int], None], Any]:
    cv2.setNumThreads(1)
    source, windows = RecordSource(part_paths(folder, parts)), RandomWindows(1)
    normalize, pool, call = images.Normalizer(3, MEAN, STD), ThreadPoolExecutor(threads), 0

    def run(steps: int) -> None:
        nonlocal call
        for _ in range(steps):
            encoded = decode_bytes(source.take(batch), "encoded")
            draws, flips = windows.draw(call, batch), coin_flips(2, call, batch)
            out = np.empty((batch, 3, 224, 224), np.float32)

            def one(i: int, encoded: Any = encoded, draws: Any = draws, flips: Any = flips, out: Any = out) -> None:
                part = image_decoder_random_crop_resize(encoded[i], windows, draws[i], 224, 224, scaled=scaled)
                normalize(part, out[i], mirror=bool(flips[i]))

            list(pool.map(one, range(batch)))
            call += 1

    return run, None
