"""The recorded results of the schemes that `gs.advise` compares.

They are in recorded.json beside this file, which `python -m
experiments.advise_records` writes from experiments/results/accelerators.json
and experiments/results/papers.
"""

import json
import pathlib
from typing import NamedTuple


class Loss(NamedTuple):
  """The final result of a scheme compared with dense, with the same seeds.

  Attributes:
    row: the scheme's row in RESULTS.md.
    difference: from the dense row, with its interval.
    seeds: number of seeds.
    verdict: the comparison in words.
    as_good: whether it ended as well as dense; None where it cannot be told.
  """

  row: str
  difference: str
  seeds: int
  verdict: str
  as_good: bool | None


_FOUND = json.loads(
  pathlib.Path(__file__).with_name('recorded.json').read_text()
)
# Time from gradients to parameters, in steps of momentum SGD: XLA's estimate
# for a TPU v5e:2x4, resnet50, 8 workers.
STEPS_OF_SGD: dict[str, float] = _FOUND['steps_of_sgd']
# Task -> (the source of the differences, their unit).
TASKS: dict[str, tuple[str, str]] = {
  task: tuple(words) for task, words in _FOUND['tasks'].items()
}
# (task, row) -> result.
LOSSES = {
  (task, row): Loss(row, *found)
  for task, rows in _FOUND['losses'].items()
  for row, found in rows.items()
}
