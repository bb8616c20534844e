"""What a filter object tells without asking the server; the same for threads and asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from bloomlock.runtime.clients import not_portable

from .parameters import Parameters

if TYPE_CHECKING:
    from bloomlock.descriptor import Descriptor

    from .core import FilterCore


class FilterBase(Parameters):
    """Name, parameters and strategy of a filter on a server as attributes."""

    _core: FilterCore

    @property
    def _descriptor(self) -> Descriptor:
        return self._core.descriptor

    @property
    def name(self) -> str:
        """The filter's name."""
        return self._core.keys.name

    @property
    def generation(self) -> int:
        """Changes whenever the filter is cleared or replaced; 0 before the first use."""
        return self._core.descriptor.generation

    @property
    def cleared(self) -> bool:
        """Whether the generation began with a clear.

        False: the filter was created where none was, or where part of it was lost.
        """
        return self._core.descriptor.cleared

    @property
    def strategy(self) -> str:
        """How updates reach Redis."""
        return self._core.strategy.name

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: its connections are of this process."""
        raise TypeError(not_portable(self))

    def __repr__(self) -> str:
        """Tell name and parameters; asks nothing of the server."""
        kind = type(self).__name__
        if self._core.view is None and self._core.wanted is None:
            return f"<{kind} {self.name!r}: not opened yet, {self.strategy}>"
        return f"<{kind} {self.name!r}: {self._shape()}, {self.strategy}>"
