"""Sentences, which a model translates piece by piece."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from experiments import models
from experiments.data import buckets
from experiments.data import translation
from experiments.scores import bleu
from experiments.scores import decoding
from experiments.tasks import task
import jax
import jax.numpy as jnp
import numpy as np
import optax

_TEST_TOKENS = 2000  # of one side, that are tested together


@dataclasses.dataclass(frozen=True)
class Translation(task.Task):
  """A model that translates, see `task.Task`.

  A batch has `source` and `target`, int32[batch, length], and `weights`,
  float32[batch, length - 1], of the pieces of `target` but its first. They add
  up to the size of the batch, so that the mean over pairs is the mean over
  pieces.

  A training step also tells `train/words`, the pieces of all workers' targets.

  A test gives `test/loss`, the mean cross-entropy of a piece in nats,
  `test/sentence_loss`, that of a sentence, and `test/bleu`, of translations as
  they are written.

  Attributes:
    model: see `experiments.models.create`.
    corpus: of the training, and of the test.
    beam: sentences that are followed side by side where it translates.
    num_buckets: shapes of what is tested, at most.
  """

  corpus: translation.Corpus
  beam: int = 1
  num_buckets: int = buckets.MOST

  def files(self) -> Mapping[str, bytes]:
    return task.symbols_file(self.corpus.vocabulary.pieces) | {
      task.VOCABULARY: self.corpus.vocabulary.model
    }

  def example(self) -> tuple[Any, ...]:
    return (jnp.ones((1, 4), jnp.int32),) * 2

  def outcome(self, params, statistics, carry, inputs, key):
    losses = self._losses(params, inputs, key)
    words = jnp.sum(inputs['weights'] > 0).astype(jnp.float32)
    loss = losses.sum(axis=1).mean()
    return task.Outcome(loss, {}, statistics, carry, {'words': words})

  def make_test(self) -> task.Test:
    corpus = self.corpus
    model = decoding.of_flax(self.model)
    decode = decoding.make_beam_search(model, beam=self.beam)

    @jax.jit
    def total(params, inputs):
      return jnp.sum(self._losses(params, inputs))

    def test(params, statistics, process, processes):
      del statistics
      loss, pieces, said, meant = 0.0, 0.0, [], []
      for part in translation.walk(
        corpus.test,
        batch_tokens=_TEST_TOKENS,
        num_buckets=self.num_buckets,
        process=process,
        processes=processes,
      ):
        loss += float(total(params, part.inputs))
        pieces += part.inputs['weights'].sum(dtype=np.float64)
        found = decode({'params': params}, part.inputs['source']).tokens
        said += corpus.vocabulary.decode(found[: len(part.rows)])
        meant += [corpus.references[row] for row in part.rows]
      return np.array([loss, pieces, *bleu.counts(said, meant)])

    return test

  def scores(self, total: np.ndarray) -> dict[str, float]:
    loss, pieces, *counts = total.tolist()
    return {
      'test/loss': loss / pieces,
      'test/sentence_loss': loss / len(self.corpus.references),
      'test/bleu': bleu.score(np.array(counts)),
    }

  def _losses(self, params, inputs, key=None):
    """float32[batch, length - 1], weighted."""
    source, target = inputs['source'], inputs['target']
    before, after = target[:, :-1], target[:, 1:]
    logits, _ = self.apply(params, {}, source, before, key=key)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, after)
    return losses * inputs['weights']


def load(section, split, task):
  """See `experiments.tasks`."""
  fields = ('source', 'target', 'vocabulary', 'cache')
  given = {name: section[name] for name in fields}
  where = section.name, section.dir, split
  return translation.load(*where, trained=task and task.corpus, **given)


def build(config, corpus, **drawn):
  """See `experiments.tasks`."""
  section = config.data
  if section.tokens:
    drawn['batch_size'] = 0
  sampler = translation.Sampler(
    corpus.train,
    batch_tokens=section.tokens,
    max_length=section.max_length,
    num_buckets=section.buckets,
    **drawn,
  )
  name, classes = config.model.name, corpus.vocabulary.size
  model = models.create(name, classes, 'translation')
  return Translation(model, corpus, config.test.beam, section.buckets), sampler
