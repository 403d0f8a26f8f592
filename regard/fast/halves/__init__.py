"""Matrix products of single precision that are counted in half precision, on a CPU that does so faster."""
