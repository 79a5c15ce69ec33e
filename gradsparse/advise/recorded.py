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
    task: the task of the training.
    row: the scheme's row in the task's table.
    mean: the difference from the dense row.
    half: half of its interval over seeds; None if it has none.
    difference: both as text.
    seeds: number of seeds.
    verdict: whether it is as good as dense, in the words of RESULTS.md.
    as_good: whether it ended as well as dense; None if that is open.
  """

  task: str
  row: str
  mean: float
  half: float | None
  difference: str
  seeds: int
  verdict: str
  as_good: bool | None


def _numbers(difference: str) -> tuple[float, float | None]:
  mean, _, half = difference.partition(' ± ')
  return float(mean), float(half) if half else None


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
  (task, row): Loss(task, row, *_numbers(found[0]), *found)
  for task, rows in _FOUND['losses'].items()
  for row, found in rows.items()
}
