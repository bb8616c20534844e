"""The only place that touches a client: written for asyncio in `_async`, and made for threads."""
