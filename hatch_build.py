"""Builds the compiled core, bloomlock/_speed.c, when the package is built or installed editable.

Where it cannot be built the package is installed without it, and Python code does the same.
BLOOMLOCK_PURE=1 leaves it out, for a wheel that fits every machine.
"""

from __future__ import annotations

import os
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

SOURCE = "bloomlock/_speed.c"
LIMITED_API = 0x030B0000
TAG = "cp311-abi3"
EDITABLE = "editable"
"""What hatchling calls an install that leaves the package in the source tree."""


class BuildHook(BuildHookInterface[Any]):
    """Compiles the core: for an editable install in the source tree, else for the wheel alone."""

    _folder: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the core, or say why not and go on."""
        if version == EDITABLE:
            # What is there may be of another source.
            for old in Path(self.root, "bloomlock").glob("_speed*.so"):
                old.unlink()
        if os.environ.get("BLOOMLOCK_PURE", "0") not in {"", "0"}:
            return
        if sysconfig.get_config_var("Py_GIL_DISABLED"):
            self._skip("this Python has no global lock, which it needs")
            return
        self._folder = tempfile.TemporaryDirectory()
        target = Path(self.root if version == EDITABLE else self._folder.name)
        try:
            built = compile_core(Path(self.root), target, self.metadata.version)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a compiler fails in many ways
            self._skip(str(error))
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"{TAG}-{platform()}"
        if version != EDITABLE:
            build_data["force_include"][str(built)] = f"bloomlock/{built.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled for the wheel."""
        del version, build_data, artifact_path
        if self._folder is not None:
            self._folder.cleanup()

    def _skip(self, why: str) -> None:
        self.app.display_warning(f"bloomlock goes without its compiled core: {why}")


def compile_core(root: Path, target: Path, version: str) -> Path:
    """Compile the core of a source tree into the package folder in `target`; return the file."""
    from setuptools import Distribution, Extension  # noqa: PLC0415 - may be missing
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415

    macros = [
        ("Py_LIMITED_API", hex(LIMITED_API)),
        ("BLOOMLOCK_VERSION", f'"{version}"'),
    ]
    core = Extension(
        "bloomlock._speed",
        [str(root / SOURCE)],
        define_macros=macros,
        extra_compile_args=[] if os.name == "nt" else ["-O3"],
        py_limited_api=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        command = build_ext(Distribution({"name": "bloomlock", "ext_modules": [core]}))
        command.build_lib = str(target)
        command.build_temp = folder
        command.ensure_finalized()
        command.run()
    return target / "bloomlock" / Path(command.get_ext_filename("bloomlock._speed")).name


def platform() -> str:
    """Return the platform of a wheel that is built here, for machines like this one."""
    return next(tag for tag in platform_tags() if "manylinux" not in tag and "musllinux" not in tag)
