"""The HTML report of a run."""

from regard.report.outcome import draw, write_outcome, write_page
from regard.report.page import Shown, page

__all__ = ["Shown", "draw", "page", "write_outcome", "write_page"]
