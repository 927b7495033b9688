"""`vivace chat`: talk to a running server, or to a model in this process, from a terminal."""
