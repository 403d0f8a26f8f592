"""Kernels in C (`native/`) and Triton (`triton/`)."""
