"""A recurrent decoder with input feeding over whole targets, as one function with a way back of its own."""
