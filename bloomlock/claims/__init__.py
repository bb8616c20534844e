"""Claims: an item under a lease while it is worked on, and committed to the filter after that."""
