"""Locks of other systems, as in docs/foreign-locks.md, and private servers of those systems."""
