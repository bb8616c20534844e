"""The algorithms of the filters, and their public classes."""
