"""Utterances, which a model transcribes frame by frame."""

from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

from experiments import data
from experiments import models
from experiments.data import buckets
from experiments.data import speech
from experiments.scores import ctc
from experiments.scores import word_errors
from experiments.tasks import task
import jax
import jax.numpy as jnp
import numpy as np
import optax

_LOG_EPSILON = -1e5  # optax's own
_FRAMES = 1024  # of an utterance that is thought of only


@dataclasses.dataclass(frozen=True)
class Speech(task.Task):
  """A model that writes what was said, see `task.Task`.

  A batch has `features`, float32[batch, frames, bins], and `frames`,
  int32[batch], how many are no padding; `labels`, int32[batch, length], and
  `characters`, int32[batch], likewise. Its loss is that of connectionist
  temporal classification (Graves et al. 2006), in nats an utterance.

  A test gives `test/loss` and `test/wer`, the word error rate of what the best
  path says (not of a search with a language model).

  Attributes:
    model: see `experiments.models.create`.
    corpus: of the training, and of the test.
    test_batch: utterances in one call of a test.
    num_buckets: shapes of such calls, at most.
  """

  corpus: speech.Corpus
  test_batch: int = 32
  num_buckets: int = buckets.MOST

  @property
  def stride(self) -> int:
    """How many frames the model takes for one that it gives."""
    run = functools.partial(self.model.init_with_output, train=False)
    inputs = jax.random.key(0), *self.example(_FRAMES)
    (logits, _), _ = jax.eval_shape(run, *inputs)
    return _FRAMES // logits.shape[1]

  def files(self) -> Mapping[str, bytes]:
    return task.symbols_file(('', *self.corpus.train.alphabet.symbols))

  def outcome(self, params, statistics, carry, inputs, key):
    losses, _, _, statistics = self._heard(params, statistics, inputs, key)
    return task.Outcome(losses.mean(), {}, statistics, carry)

  def _heard(self, params, statistics, inputs, key=None):
    """Losses, logits, how many frames they have, and new averages."""
    (logits, frames), statistics = self.apply(
      params, statistics, inputs['features'], inputs['frames'], key=key
    )
    labels = inputs['labels']
    losses = optax.ctc_loss(
      logits,
      _padding(frames, logits.shape[1]),
      labels,
      _padding(inputs['characters'], labels.shape[1]),
      blank_id=ctc.BLANK,
      # Like the logits: under shard_map a loop begins as it goes on.
      log_epsilon=jnp.full_like(logits, _LOG_EPSILON, shape=()),
    )
    return losses, logits, frames, statistics

  def make_test(self) -> task.Test:
    examples = self.corpus.test
    heard = jax.jit(self._heard)

    def test(params, statistics, process, processes):
      loss, said, meant = 0.0, [], []
      for part in speech.walk(
        examples,
        batch_size=self.test_batch,
        num_buckets=self.num_buckets,
        process=process,
        processes=processes,
      ):
        count = len(part.rows)
        found = heard(params, statistics, part.inputs)
        losses, logits, frames, _ = jax.device_get(found)
        loss += losses[:count].sum(dtype=np.float64)
        paths = ctc.greedy(logits[:count], frames[:count])
        said += [examples.alphabet.decode(path) for path in paths]
        meant += [examples.utterances[row].text for row in part.rows]
      return np.array([loss, *word_errors.counts(said, meant)])

    return test

  def scores(self, total: np.ndarray) -> dict[str, float]:
    loss = total[0].item() / len(self.corpus.test.utterances)
    return {'test/loss': loss, 'test/wer': word_errors.rate(total[1:])}

  def example(self, frames: int = 64) -> tuple[Any, ...]:
    features = jnp.zeros((1, frames, self.corpus.train.bins))
    return features, jnp.full(1, frames, jnp.int32)


def _padding(lengths: jax.Array, most: int) -> jax.Array:
  """float32[batch, most], 1 behind the end."""
  return (jnp.arange(most) >= lengths[:, None]).astype(jnp.float32)


def load(section, split, _):
  """See `experiments.tasks`."""
  return speech.load(section.name, section.dir, split, section.transcripts)


def build(config, corpus, **drawn):
  """See `experiments.tasks`."""
  num_buckets = config.data.buckets
  classes = corpus.train.alphabet.classes
  model = models.create(config.model.name, classes, 'speech')
  task = Speech(model, corpus, num_buckets=num_buckets)
  sampler = speech.Sampler(
    corpus.train, num_buckets=num_buckets, stride=task.stride, **drawn
  )
  return task, data.Ahead(sampler, speech.AHEAD, config.train.steps)
