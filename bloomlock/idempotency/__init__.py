"""Functions and messages that take effect once for each key, over claims."""
