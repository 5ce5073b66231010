"""Builds the libraries into the wheel."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent))
import build_libraries


class LibrariesHook(BuildHookInterface):  # type: ignore[type-arg]
    """Where oneDNN's packages do not exist the wheel has no libraries, and says so when it is asked for them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or not build_libraries.is_supported():
            return
        if version == "editable":
            build_libraries.build(Path(self.root) / "oneflow_native" / "lib")
        else:
            self._folder = tempfile.TemporaryDirectory()
            for made in build_libraries.build(Path(self._folder.name)):
                build_data["force_include"][str(made)] = f"oneflow_native/lib/{made.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_{build_libraries.GLIBC.replace('.', '_')}_x86_64"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        folder = getattr(self, "_folder", None)
        if folder is not None:
            folder.cleanup()
