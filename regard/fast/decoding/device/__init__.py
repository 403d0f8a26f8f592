"""Beam search that stays on the GPU: fixed shapes at fixed addresses, replayed as CUDA graphs.

A step computes the same as in `regard.search`. A sentence that is done stays in the batch until many are; which
hypotheses were extended, and by which token, is copied to the host once every few steps and traced back there.
"""
