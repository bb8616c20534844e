"""Results as JSON files, one for each suite, and what they were measured on."""

from __future__ import annotations

import json
import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .place import connect

if TYPE_CHECKING:
    import redis

FOLDER = Path(__file__).parent / "results"
_FIGURES = re.compile(r"\[\n[^\[\]{}\"]*\]")


def save(folder: Path, result: dict[str, Any]) -> None:
    """Write the result of a suite over its last one."""
    folder.mkdir(parents=True, exist_ok=True)
    text = _FIGURES.sub(_in_a_line, json.dumps(result, indent=1)) + "\n"
    (folder / f"{result['suite']}.json").write_text(text, "utf-8")


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """Return all results of a folder by the names of their suites."""
    found = (json.loads(file.read_text("utf-8")) for file in sorted(folder.glob("*.json")))
    return {result["suite"]: result for result in found}


def _in_a_line(figures: re.Match[str]) -> str:
    return f"[{' '.join(figures[0][1:-1].split())}]"


PACKAGES = (
    "bloomlock",
    "redis",
    "hiredis",
    "mmh3",
    "numpy",
    "scrapy",
    "scrapy-redis",
    "scrapy-redis-bloomfilter",
    "pottery",
    "rbloom",
    "python-redis-lock",
    "valkey-glide",
    "idemkit",
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
        server = server_of(client)
        modules: Any = client.execute_command("MODULE", "LIST")
    return {
        "server": server,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        **{package: _version(package) for package in PACKAGES},
        **dict(sorted(map(_module, modules))),
    }


def server_of(client: redis.Redis) -> str:
    """Return the name of a server and its version."""
    fields: Any = client.info("server")
    name = fields.get("server_name", "redis")
    return f"{name} {fields.get(f'{name}_version', fields['redis_version'])}"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or "unknown"


def _module(reply: Any) -> tuple[str, str]:
    """Return the name and the version of a module, which is one number for all three parts."""
    texts = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
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
