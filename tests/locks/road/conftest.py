"""A machine that is busy does not make a server look silent here."""

from __future__ import annotations

import pytest

from bloomlock.locks.protocol import waiting


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an attempt that does not wait be answered late: the scenarios are about lost replies."""
    monkeypatch.setattr(waiting, "GRACE_SECONDS", 60.0)
