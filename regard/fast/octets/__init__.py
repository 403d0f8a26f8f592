"""A Transformer decoded in bytes, by kernels of our own for processors of ARM's."""
