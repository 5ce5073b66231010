"""The class of Blobs, under its path of old: annotations use it."""

from __future__ import annotations

from ...graph.node import Blob as BlobDef

__all__ = ["BlobDef"]
