"""Locks in Redis."""
