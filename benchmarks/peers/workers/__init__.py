"""One process for each contestant, in the contestant's own environment: it builds a model, and runs it when told to."""
