"""Recipes: the complete configuration of a run, in YAML. Nothing here needs PyTorch."""
