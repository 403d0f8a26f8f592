"""Fast decoding: KV cache, int8, shortlists and device search."""
