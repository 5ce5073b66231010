"""The class of Blobs under its old path, which annotations use."""

from __future__ import annotations

from ...graph.node import Blob as BlobDef

__all__ = ["BlobDef"]
