"""NumPy, imported at its first use. Only batches use it.

All modules import `np` from here and use it inside functions only.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
else:
    np = ModuleType("numpy", "What was used of NumPy so far.")

    def _find(name: str) -> object:
        found = getattr(import_module("numpy"), name)
        setattr(np, name, found)
        return found

    np.__getattr__ = _find

__all__ = ["np"]
