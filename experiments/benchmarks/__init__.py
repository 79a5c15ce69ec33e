"""Measurements of speed, on hosts that `experiments.cluster` provides."""
