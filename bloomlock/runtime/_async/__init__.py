"""The part of the runtimes that is written once: requests, redirections, what a run has open."""
