"""The contract of filters on every backend: strategies, kinds, faces and servers."""

from __future__ import annotations

from contract.backends import FILTERS
from contract.filter_contract import FilterContract
from contract.filter_kinds import AsyncContract, GrowthContract, WindowContract

OF_KINDS = {"window": WindowContract, "growth": GrowthContract, "asyncio": AsyncContract}
for backend in FILTERS:
    # One class for each: TestAtomic, TestLua.
    title, more = f"Test{backend.title()}", OF_KINDS.get(backend)
    bases = (more, FilterContract) if more else (FilterContract,)
    globals()[title] = type(title, bases, {"backend": backend, "__module__": __name__})
