"""Fast training: packed Transformers, linear cross-entropy, recurrent layers and decoders."""
