"""The lock protocol: what one lock is on the server and how it changes. No I/O, no clock."""
