# Written by tools/async_to_sync.py from bloomlock/filters/_async/__init__.py; change that.
"""What users call: filters, their claims, and functions over filters by name."""
