"""The HTML report of a run."""

from regard.report.outcome import draw, heads, write_outcome, write_page
from regard.report.page import Shown, document, page

__all__ = ["Shown", "document", "draw", "heads", "page", "write_outcome", "write_page"]
