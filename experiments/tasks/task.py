"""What the training loop asks of a task."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import json
from typing import Any, NamedTuple

from flax import linen as nn
import jax
import numpy as np

# Of `Task.files`.
SYMBOLS = 'symbols.json'
VOCABULARY = 'vocabulary.model'  # sentencepiece's

Inputs = Mapping[str, jax.Array]  # of a batch
# Of parameters, statistics, this process and how many there are.
Test = Callable[[Any, Any, int, int], np.ndarray]


class Variables(NamedTuple):
  """What a model begins with.

  Attributes:
    params: are trained.
    statistics: running averages of batch normalisation; empty where there are
      none.
  """

  params: Any
  statistics: Any


class Outcome(NamedTuple):
  """What one worker's batch gives.

  Attributes:
    loss: float32[], mean over the batch's examples; is differentiated.
    measured: float32[] each, by name; means over the examples.
    statistics: new running averages, as in `Variables`.
    carry: what the worker's next batch begins with, as `Task.carry` makes it.
    counts: float32[] each, by name; sums over the examples.
  """

  loss: jax.Array
  measured: Mapping[str, jax.Array]
  statistics: Any
  carry: Any
  counts: Mapping[str, jax.Array] = {}


def symbols_file(symbols: Sequence[str]) -> dict[str, bytes]:
  """Returns the file of what the classes of a model stand for, see `Task`.

  Args:
    symbols: words, characters, or pieces of words, by number.
  """
  return {SYMBOLS: json.dumps(symbols, ensure_ascii=False).encode()}


@dataclasses.dataclass(frozen=True)
class Task:
  """A model, the loss of its training and its test.

  Attributes:
    model: see `experiments.models.create`.
  """

  model: nn.Module

  @property
  def has_batch_axis(self) -> bool:
    """Whether `over_examples` returns a task of its own."""
    return hasattr(self.model, 'batch_axis')

  def files(self) -> Mapping[str, bytes]:
    """Returns what must be kept with the parameters to use them, by file name.

    `symbols.json` says what the classes of the model stand for, by number. None
    where the data set itself numbers its classes.
    """
    return {}

  def init(self, key: jax.Array) -> Variables:
    """Returns what the model begins with; can be traced."""
    made = self.model.init(key, *self.example(), train=False)
    return Variables(made['params'], made.get('batch_stats', {}))

  def example(self) -> tuple[Any, ...]:
    """Returns what the model is called with, of one short example."""
    raise NotImplementedError

  def apply(
    self, params: Any, statistics: Any, *inputs: Any, key: Any = None
  ) -> tuple[Any, Any]:
    """Returns what the model gives, and new running averages.

    Args:
      params: of the model.
      statistics: of batch normalisation.
      *inputs: of the model.
      key: from which dropout draws in training; None in a test.
    """
    variables = {'params': params, 'batch_stats': statistics}
    if key is None:
      return self.model.apply(variables, *inputs, train=False), statistics
    given, changed = self.model.apply(
      variables,
      *inputs,
      train=True,
      mutable=['batch_stats'],
      rngs={'dropout': key},
    )
    return given, changed.get('batch_stats', {})

  def carry(self) -> Any:
    """Returns what a worker's first batch begins with.

    Such as the hidden state of a recurrent network, which goes from batch to
    batch and is the worker's own; () where nothing does. Each array has an axis
    of the batch's examples first.
    """
    return ()

  def over_examples(self, axis_name: str) -> 'Task':
    """Returns the task whose batches are an axis of single examples.

    Args:
      axis_name: of the axis, over which batch normalisation takes its means.
    """
    if not self.has_batch_axis:
      return self
    model = self.model.clone(batch_axis=axis_name)
    return dataclasses.replace(self, model=model)

  def outcome(
    self, params: Any, statistics: Any, carry: Any, inputs: Inputs, key: Any
  ) -> Outcome:
    """Returns what a worker's batch gives in training.

    Args:
      params: of the model.
      statistics: of batch normalisation.
      carry: see `carry`.
      inputs: of a batch of this task; each array has an axis of examples first.
      key: from which dropout draws.
    """
    raise NotImplementedError

  def make_test(self) -> Test:
    """Returns a function that tests a model on one process' share.

    Its results add up over the processes to what `scores` takes.
    """
    raise NotImplementedError

  def scores(self, total: np.ndarray) -> dict[str, float]:
    """Returns what a test found, by names such as `test/loss`."""
    raise NotImplementedError
