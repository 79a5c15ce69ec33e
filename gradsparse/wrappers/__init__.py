"""Optax transformations around or next to a scheme, and QSVRG."""
