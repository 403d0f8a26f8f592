"""Reproduce comparisons of the papers, and decide for each claim whether it holds."""
