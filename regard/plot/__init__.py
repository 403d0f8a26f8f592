"""Plots: attention heat maps, weights over images and words, beam decoding steps, bar charts and curves."""
