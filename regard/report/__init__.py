"""The HTML report of a run."""

from regard.report.page import Shown, page

__all__ = ["Shown", "page"]
