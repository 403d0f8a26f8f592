"""A beam search that never leaves the device: fixed shapes at fixed addresses, recorded as CUDA graphs.

What one step does is the same as in `regard.search`, and so is what is found. A sentence that is done stays where it is
until many are; which hypotheses were extended, and by what, is copied to the host once every few steps, and read there.
"""
