"""Text, in which a model predicts each symbol from those before it."""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any

from experiments import models
from experiments.data import language
from experiments.scores import entropy
from experiments.tasks import task
import jax
import jax.numpy as jnp
import numpy as np
import optax

# Rows into which a text that is tested on is cut, by all processes together: a
# row begins without what was before it, so a score depends on how many there
# are, and must not depend on how many processes there are.
_TEST_ROWS = 10


@dataclasses.dataclass(frozen=True)
class Language(task.Task):
  """A model that predicts the next symbol, see `task.Task`.

  A batch has `tokens` and `targets`, int32[batch, window], and `first`,
  bool[batch]: where it is set, nothing was before. Else the model goes on from
  the hidden state that the worker's last batch has left.

  A training step also tells `train/words`, the symbols of all workers.

  A test gives `test/loss`, the mean cross-entropy of a symbol in nats, and
  `test/perplexity` of words or `test/bits_per_character`.

  Attributes:
    model: see `experiments.models.create`.
    corpus: of the training, and of the test.
    batch_size: rows of a worker.
    window: symbols of a row in a step.
    characters: whether the symbols are characters.
  """

  corpus: language.Corpus
  batch_size: int
  window: int
  characters: bool = False

  def files(self) -> Mapping[str, bytes]:
    return task.symbols_file(self.corpus.symbols)

  def example(self) -> tuple[Any, ...]:
    return jnp.zeros((1, self.window), jnp.int32), self.model.carry(1)

  def carry(self) -> Any:
    return self.model.carry(self.batch_size)

  def outcome(self, params, statistics, carry, inputs, key):
    losses, carry = self._losses(params, carry, inputs, key)
    words = {'words': jnp.float32(losses.size)}
    return task.Outcome(losses.mean(), {}, statistics, carry, words)

  def make_test(self) -> task.Test:
    @jax.jit
    def total(params, carry, inputs):
      losses, carry = self._losses(params, carry, inputs)
      return jnp.sum(losses * inputs['weights']), carry

    def test(params, statistics, process, processes):
      del statistics
      carry = self.model.carry(-(-_TEST_ROWS // processes))
      sums = []
      for inputs in language.walk(
        self.corpus.test,
        self.corpus.end,
        rows=_TEST_ROWS,
        length=self.window,
        process=process,
        processes=processes,
      ):
        one, carry = total(params, carry, inputs)
        sums.append(one)
      return np.asarray([math.fsum(jax.device_get(sums))])

    return test

  def scores(self, total: np.ndarray) -> dict[str, float]:
    nats, symbols = total.item(), len(self.corpus.test)
    if self.characters:
      own = {'test/bits_per_character': entropy.bits_per_symbol(nats, symbols)}
    else:
      own = {'test/perplexity': entropy.perplexity(nats, symbols)}
    return {'test/loss': nats / symbols, **own}

  def _losses(self, params, carry, inputs, key=None):
    """float32[batch, window], and what the next batch begins with."""
    tokens, targets = inputs['tokens'], inputs['targets']
    begun = _begun(carry, inputs['first'])
    (logits, carry), _ = self.apply(params, {}, tokens, begun, key=key)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    return losses, carry


def _begun(carry: Any, first: jax.Array) -> Any:
  """Returns the hidden states, zero for the rows that begin anew."""
  return jax.tree.map(
    lambda x: jnp.where(first.reshape(-1, *[1] * (x.ndim - 1)), 0, x), carry
  )


def load(section, split, _):
  """See `experiments.tasks`."""
  return language.load(section.name, section.dir, split)


def build(config, corpus, **drawn):
  """See `experiments.tasks`."""
  length = config.train.bptt_length
  task = Language(
    models.create(config.model.name, len(corpus.symbols), 'language'),
    corpus,
    batch_size=config.train.batch_size,
    window=length,
    characters=config.data.name == 'ptb_characters',
  )
  return task, language.Windows(corpus.train, length=length, **drawn)
