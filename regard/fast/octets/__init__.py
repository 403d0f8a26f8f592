"""A Transformer decoded in bytes, by kernels of our own, on processors that multiply bytes: ARM's, Intel's, AMD's."""
