"""What every filter promises; a subclass for each backend inherits it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, ClassVar

import pytest
from contract.backends import ATTEMPTS, FILTERS, REFUSES, Place
from contract.filter_extras import ExtrasContract
from contract.filter_faults import FaultsContract
from contract.filter_items import ItemsContract
from contract.filter_life import LifeContract
from contract.filter_races import RacesContract
from proxy import Proxy

from bloomlock.errors import ConfigurationError

if TYPE_CHECKING:
    import servers


class FilterContract(ItemsContract, LifeContract, RacesContract, FaultsContract, ExtrasContract):
    """The whole contract.

    A test that needs a feature which the backend refuses or does not promise is not collected; what
    is refused is asked for by `test_what_is_refused`.

    Attributes:
        backend: The key of FILTERS.
    """

    backend: ClassVar[str]

    def __init_subclass__(cls) -> None:
        table = REFUSES.get(cls.backend, {})
        for name in dir(cls):
            if getattr(getattr(cls, name), "needs", set()) & table.keys():
                setattr(cls, name, None)
        if not any(table.values()):
            cls.test_what_is_refused_changes_nothing_and_says_so_in_one_sentence = None

    @staticmethod
    def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
        if "refused" in metafunc.fixturenames:
            table = REFUSES.get(metafunc.cls.backend, {})
            metafunc.parametrize("refused", [name for name, says in table.items() if says])

    @pytest.fixture
    def place(self, request: pytest.FixtureRequest, all_servers: servers.Running):
        backend = FILTERS[self.backend]
        with ExitStack() as stack:
            if backend.server == "memory":
                address = None
            elif backend.server == "cluster":
                address = request.getfixturevalue("cluster")
            else:
                bloom = backend.server == "bloom"
                kind = "valkey" if bloom else backend.server
                address = all_servers.url(kind, bloom=bloom)
            place = Place(backend, address, stack)
            if place.r is not None:
                place.r.flushall()
            yield place

    @pytest.fixture
    def proxy(self, place: Place):
        with Proxy(place.address, handshake=False) as made:
            yield made

    @pytest.fixture
    def timed(self, stopped):
        """A place whose server has a clock that the test sets; `place.at(seconds)`."""
        _, stop_at, url = stopped(FILTERS[self.backend].server)
        with ExitStack() as stack:
            place = Place(FILTERS[self.backend], url, stack)
            place.at = lambda seconds: stop_at(2_000_000_000 + seconds)
            place.at(0)
            yield place

    def test_what_is_refused_changes_nothing_and_says_so_in_one_sentence(self, place, refused):
        made = place.make()
        made.add("a")
        before = {} if place.r is None else place.contents()
        with pytest.raises(ConfigurationError, match=REFUSES[self.backend][refused]) as caught:
            ATTEMPTS[refused](place)
        assert "\n" not in str(caught.value)
        assert before == ({} if place.r is None else place.contents())
        assert made.add_many(["a", "b"]) == [False, True]
