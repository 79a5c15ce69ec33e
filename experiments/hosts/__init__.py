"""Which processes make a run, and which device each worker has."""
