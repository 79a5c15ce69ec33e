"""Wrappers: optax transformations around a scheme or beside one, and QSVRG."""
