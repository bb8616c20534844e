"""NumPy, imported at its first use. Only batches use it.

All modules import `np` from here and use it inside functions only.
"""

from __future__ import annotations

import os
import threading
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
else:
    np = ModuleType("numpy", "What was used of NumPy so far.")
    # A fork waits for an import that is under way: the child would wait for its end for ever.
    _importing = threading.RLock()
    os.register_at_fork(
        before=_importing.acquire,
        after_in_parent=_importing.release,
        after_in_child=_importing.release,
    )

    def _find(name: str) -> object:
        with _importing:
            found = getattr(import_module("numpy"), name)
        setattr(np, name, found)
        return found

    np.__getattr__ = _find

__all__ = ["np"]
