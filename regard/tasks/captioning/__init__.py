"""Image captioning: a sentence for an image or for a grid of image features."""
