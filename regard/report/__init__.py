"""HTML report of a training run."""

from regard.report.html import ReportSample, format_html_document, load_macros
from regard.report.run_report import compute_head_attention, write_heatmap, write_report, write_translation_page

__all__ = [
    "ReportSample",
    "compute_head_attention",
    "format_html_document",
    "load_macros",
    "write_heatmap",
    "write_report",
    "write_translation_page",
]
