# Written by tools/async_to_sync.py from bloomlock/locks/_async/__init__.py; change that.
"""What users call: the locks."""
