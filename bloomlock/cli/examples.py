"""How examples stand in a help text."""

from __future__ import annotations


def examples(*lines: str) -> str:
    """Return commands as they follow the options in a help text, one a line.

    >>> examples("bloomlock ls", "bloomlock info urls").splitlines()[1:]
    ['Examples:', '  bloomlock ls', '  bloomlock info urls']
    """
    title = "Example:" if len(lines) == 1 else "Examples:"
    # The backspace tells click to leave the lines as they are.
    return "\n  ".join(["\b\n" + title, *lines])
