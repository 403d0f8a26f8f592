"""A Transformer over sentences laid end to end, without padding, and without the logits ever being written whole."""
