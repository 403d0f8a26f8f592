"""Faster implementations with the results of the reference modules; `REGARD_FAST=0` switches them off."""

from regard.fast.accelerate import accelerate, release_decoding_memory

__all__ = ["accelerate", "release_decoding_memory"]
