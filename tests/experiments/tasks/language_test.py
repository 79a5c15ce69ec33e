"""A language model's loss, what it remembers, and its test."""

import math

from experiments import data
from experiments.data import language
from experiments.tasks import language as task
from experiments.training import gradients
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks

_SYMBOLS = 7


class _Fading(nn.Module):
  """What it has seen fades by half with each symbol."""

  def carry(self, batch):
    return jnp.zeros((batch, 3))

  @nn.compact
  def __call__(self, tokens, carry, *, train):
    del train
    seen = nn.Embed(_SYMBOLS, 3)(tokens)

    def step(carry, x):
      carry = 0.5 * carry + x
      return carry, carry

    carry, states = jax.lax.scan(step, carry, seen.swapaxes(0, 1))
    return nn.Dense(_SYMBOLS)(states.swapaxes(0, 1)), carry


def _made(characters=False, text=None):
  rng = np.random.default_rng(0)
  text = (
    rng.integers(0, _SYMBOLS, 83).astype(np.int32) if text is None else text
  )
  corpus = language.Corpus(text, text[:77], tuple('abcdefg'), 2)
  return task.Language(_Fading(), corpus, 2, 5, characters)


def _batches(made, count, **changes):
  settings = {'num_workers': 1, 'batch_size': 2, 'length': 5, 'seed': 0}
  sampler = language.Windows(made.corpus.train, **{**settings, **changes})
  return [
    jax.tree.map(lambda x: x[0], sampler.batch(step)) for step in range(count)
  ]


def _outcomes(made, batches, params):
  carry, found = made.carry(), []
  outcome = jax.jit(
    lambda carry, batch: gradients.plain(made, params, {}, carry, batch)
  )
  for batch in batches:
    got = outcome(carry, batch)
    carry = got.carry
    found.append(got)
  return found


def test_windows_one_after_the_other_are_one_long_text():
  made = _made()
  params = made.init(jax.random.key(0)).params
  short = _outcomes(made, _batches(made, 4), params)
  (whole,) = _outcomes(made, _batches(made, 1, length=20), params)
  losses = [one.loss for one in short]
  np.testing.assert_allclose(np.mean(losses), whole.loss, rtol=1e-6)
  np.testing.assert_allclose(short[-1].carry, whole.carry, rtol=1e-6)


def test_a_row_that_begins_anew_has_forgotten():
  made = _made()
  params = made.init(jax.random.key(0)).params
  per_epoch = 82 // 2 // 5
  found = _outcomes(made, _batches(made, per_epoch + 1), params)
  np.testing.assert_allclose(found[0].loss, found[per_epoch].loss, rtol=1e-6)
  np.testing.assert_allclose(found[0].carry, found[per_epoch].carry, rtol=1e-6)
  assert not np.allclose(found[0].carry, found[1].carry)


def test_second_moments_are_of_rows():
  made = _made()
  params = made.init(jax.random.key(0)).params
  batch = _batches(made, 2)[1]
  carry = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3)), jnp.float32)
  got = jax.jit(
    lambda: gradients.with_moments(made, params, {}, carry, batch)
  )()
  plain = jax.jit(lambda: gradients.plain(made, params, {}, carry, batch))()

  def of_row(row):
    one = jax.tree.map(lambda x: x[row : row + 1], batch.inputs)
    return gradients.plain(
      made, params, {}, carry[row : row + 1], data.Batch(one, batch.noise)
    ).grads

  rows = [jax.jit(of_row, static_argnums=0)(row) for row in range(2)]
  expected = jax.tree.map(lambda *g: sum(np.square(x / 2) for x in g), *rows)
  close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-9)
  jax.tree.map(close, got.second_moment, expected)
  jax.tree.map(close, got.grads, plain.grads)
  close(got.loss, plain.loss)
  close(got.carry, plain.carry)


@pytest.mark.parametrize('processes', marks.few([1, 3, 4, 12], 3))
def test_a_test_is_of_each_symbol_once(processes):
  made = _made()
  params = made.init(jax.random.key(0)).params
  test = made.make_test()
  total = sum(test(params, {}, part, processes) for part in range(processes))
  tested = made.scores(total)
  mean = tested['test/loss']
  assert tested['test/perplexity'] == pytest.approx(math.exp(mean))
  bits = _made(characters=True).scores(total)
  assert set(bits) == {'test/loss', 'test/bits_per_character'}
  assert bits['test/bits_per_character'] == pytest.approx(mean / math.log(2))
  # By hand, a row of the walk after the other: ten, by however many.
  text = made.corpus.test
  columns = -(-len(text) // 10)
  before = np.concatenate([[made.corpus.end], text])
  loss = 0.0
  for first in range(0, len(text), columns):
    targets = text[first : first + columns]
    logits, _ = made.model.apply(
      {'params': params},
      jnp.asarray(before[first : first + columns])[None],
      made.model.carry(1),
      train=False,
    )
    rows = np.asarray(jax.nn.log_softmax(logits[0]))
    loss -= rows[np.arange(len(targets)), targets].sum()
  assert mean == pytest.approx(loss / len(text), rel=1e-5)


def test_parameters_are_put_on_the_device_once(check_one_copy):
  made = _made()
  check_one_copy(made, made.init(jax.random.key(0)).params, {})


def test_a_model_that_has_diverged_has_a_perplexity_that_json_can_hold():
  assert 1e300 < _made().scores(np.asarray([1e9]))['test/perplexity'] < math.inf
