"""Plots: attention heat maps, weights over images and words, beam decoding steps, bar charts and curves."""

from regard.plot.attention_overlay import AttentionOverlay, WeightedWords, plot_attention_overlay, plot_weighted_words
from regard.plot.charts import PredictedSeries, plot_bars, plot_bleu_by_length, plot_curves, plot_predicted_series
from regard.plot.heatmap import (
    DecodingStep,
    format_alignment_matrix,
    plot_decoding_steps,
    plot_heatmap,
    plot_heatmaps,
    write_decoding_animation,
    write_figure,
)

__all__ = [
    "AttentionOverlay",
    "DecodingStep",
    "PredictedSeries",
    "WeightedWords",
    "format_alignment_matrix",
    "plot_attention_overlay",
    "plot_bars",
    "plot_bleu_by_length",
    "plot_curves",
    "plot_decoding_steps",
    "plot_heatmap",
    "plot_heatmaps",
    "plot_predicted_series",
    "plot_weighted_words",
    "write_decoding_animation",
    "write_figure",
]
