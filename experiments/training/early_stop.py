"""The end of a run whose tests find nothing better any more."""

from collections.abc import Mapping
import math
from typing import Any


class EarlyStop:
  """Counts tests in a row that found no smaller loss than all before.

  Attributes:
    due: whether there were as many as the run may have.
  """

  def __init__(self, patience: int, before: Mapping[str, Any] | None = None):
    """Begins to count, or goes on.

    Args:
      patience: tests in a row; 0: as many as there are.
      before: what `to_dict` returned at a checkpoint.
    """
    self._patience = patience
    before = before or {}
    best = before.get('best')
    self._best = math.inf if best is None else best
    self._in_a_row = before.get('in_a_row', 0)

  @property
  def due(self) -> bool:
    return 0 < self._patience <= self._in_a_row

  @property
  def found(self) -> bool:
    """Whether a test has found a loss."""
    return math.isfinite(self._best)

  def observe(self, loss: float) -> bool:
    """Takes the loss of a test; whether it is smaller than all before."""
    better = loss < self._best
    if better:
      self._best, self._in_a_row = loss, 0
    else:
      self._in_a_row += 1
    return better

  def to_dict(self) -> dict[str, Any]:
    """Returns what a checkpoint must hold, as JSON has it."""
    best = self._best if math.isfinite(self._best) else None
    return {'best': best, 'in_a_row': self._in_a_row}
