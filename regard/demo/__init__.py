"""`regard demo`: train, evaluate and inspect a small model of any task on synthetic data."""

from regard.demo.demo import Demo, run_demo

__all__ = ["Demo", "run_demo"]
