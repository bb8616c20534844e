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
    "pottery",
    "rbloom",
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
        modules: Any = client.execute_command("MODULE", "LIST")
    server = told.get("server_name", "redis")
    number = told.get(f"{server}_version", told["redis_version"])
    return {
        "server": f"{server} {number}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        **{package: _version(package) for package in PACKAGES},
        **dict(sorted(map(_module, modules))),
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


def _module(told: Any) -> tuple[str, str]:
    """Return the name and the version of a module, which is one number for all three parts."""
    texts = told if isinstance(told, dict) else dict(zip(told[::2], told[1::2], strict=True))
    named = {key.decode() if isinstance(key, bytes) else key: texts[key] for key in texts}
    name, number = named["name"], named["ver"]
    name = name.decode() if isinstance(name, bytes) else name
    parts = (number // 10_000, number // 100 % 100, number % 100)
    return f"module {name}", ".".join(map(str, parts))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
