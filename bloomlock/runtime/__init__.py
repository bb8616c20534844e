"""The only place that touches a client: one module for threads, one for asyncio."""
