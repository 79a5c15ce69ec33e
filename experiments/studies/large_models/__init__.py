"""Models that are larger than this machine, by shapes alone.

`python -m experiments.studies.large_models` makes the tables of
docs/large_models.md.

  model   a transformer: its parameters, how they are sharded, its loss
  steps   one training step of it, compiled for a mesh and never run
  plans   what schemes would send, and trees of few and of many leaves
  page    the tables
"""
