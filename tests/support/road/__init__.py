"""The locks of docs/broken-locks.md, and the gate that breaks them."""
