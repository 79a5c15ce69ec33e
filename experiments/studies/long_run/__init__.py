"""Very many steps of a small model: nothing may grow or drift.

`python -m experiments.studies.long_run` takes them (`run`), and says what does
not hold (`verdict`).
"""
