"""Webhooks behind FastAPI: each event is handled once, whichever worker it reaches.

uvicorn fastapi_app:app --workers 2
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI, HTTPException, Request

from bloomlock import AsyncBloomFilter, ClaimState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Keep one filter for each worker, which has an event loop of its own."""
    async with AsyncBloomFilter("events", capacity=1_000_000) as app.state.events:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/events/{event}")
async def receive(event: str, request: Request) -> dict[str, str]:
    """Handle an event unless that was done; the sender repeats what is answered by an error."""
    async with await request.app.state.events.claim(event) as claim:
        if claim:
            print(f"worker {os.getpid()} handles {event}", flush=True)  # the work
    if claim.state is ClaimState.BUSY:
        raise HTTPException(409, "another worker handles this event")
    return {"state": claim.state}
