"""Workers: one process for each contestant, in its own environment, that builds a model and runs it on request."""
