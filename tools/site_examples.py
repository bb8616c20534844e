"""An extension of griffe: examples of docstrings are code on the site, and not quotations."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n.+)*", re.MULTILINE)
"""From its first line to the next empty one."""


class Examples(Extension):
    """Puts a fence around each example."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of an object that was found."""
        if obj.docstring is not None:
            text = obj.docstring.value
            obj.docstring.value = EXAMPLE.sub(r"\1```pycon\n\g<0>\n\1```", text)
