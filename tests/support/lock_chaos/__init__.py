"""Locks under faults: workers in processes of their own, their history, and its checker."""
