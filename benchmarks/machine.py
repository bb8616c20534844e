"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .place import connect

PACKAGES = (
    "bloomlock",
    "redis",
    "hiredis",
    "mmh3",
    "numpy",
    "scrapy-redis-bloomfilter",
    "python-redis-lock",
)


def machine() -> dict[str, Any]:
    """Return processor, cores, load and system."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def versions(url: str) -> dict[str, str]:
    """Return the versions of the server, Python and the packages."""
    with connect(url) as client:
        told: Any = client.info("server")
    server = told.get("server_name", "redis")
    number = told.get(f"{server}_version", told["redis_version"])
    return {
        "server": f"{server} {number}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        **{package: _version(package) for package in PACKAGES},
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
