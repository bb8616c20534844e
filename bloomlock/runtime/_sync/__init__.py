# Written by tools/async_to_sync.py from bloomlock/runtime/_async/__init__.py; change that.
"""The part of the runtimes that is written once: requests, redirections, what a run has open."""
