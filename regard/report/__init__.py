"""The HTML report of a run."""

from regard.report.outcome import draw, heads, write_outcome, write_page
from regard.report.page import Shown, page

__all__ = ["Shown", "draw", "heads", "page", "write_outcome", "write_page"]
