"""The contract of filters on every backend: strategies, kinds, faces and servers."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from contract.backends import FILTERS
from contract.filter_contract import FilterContract
from contract.filter_kinds import AsyncContract, GrowthContract, WindowContract
from moved_clock import stopped_server


@pytest.fixture(scope="module")
def clocked_server(tmp_path_factory):
    """Gives, by its kind, a server whose clock a test sets."""
    started = {}
    with ExitStack() as stack:

        def find(kind):
            if kind not in started:
                folder = tmp_path_factory.mktemp("clock")
                started[kind] = stack.enter_context(stopped_server(kind, folder))
            return started[kind]

        yield find


OF_KINDS = {"window": WindowContract, "growth": GrowthContract, "asyncio": AsyncContract}
for backend in FILTERS:
    # One class for each: TestAtomic, TestLua.
    title, more = f"Test{backend.title()}", OF_KINDS.get(backend)
    bases = (more, FilterContract) if more else (FilterContract,)
    globals()[title] = type(title, bases, {"backend": backend, "__module__": __name__})
