"""Fast decoding: KV cache, int8, shortlists, NumPy search and device search."""
