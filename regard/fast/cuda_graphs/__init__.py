"""CUDA graphs: capture, caches and shape buckets."""
