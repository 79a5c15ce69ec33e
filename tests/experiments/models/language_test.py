"""Language models have the published sizes, and see the words before only."""

import functools

from experiments import models
from experiments.models import gpt
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.experiments.models import sequences


@pytest.mark.parametrize(
  ('name', 'classes', 'parameters', 'vectors'),
  [
    ('lstm_1500', 10_000, 51_034_000, 34_000),  # DGC, table 4: 194.68 MB
    ('lstm_1500_untied', 10_000, 66_034_000, 34_000),  # gTop-k
    ('lstm_200', 10_000, 2_653_200, 13_200),
    ('gpt_200k', 50, 197_184 + 50 * 64, 9 * 64),
    ('gpt_800k', 50, 787_584 + 50 * 128, 9 * 128),
    ('gpt_10m', 50, 10_621_824 + 50 * 384, 13 * 384),
  ],
)
def test_parameters(name, classes, parameters, vectors):
  model = models.create(name, classes)
  tokens = jnp.zeros((2, 3), jnp.int32)
  carry = model.carry(2)

  def run():
    variables = model.init(jax.random.key(0), tokens, carry, train=False)
    return variables['params'], model.apply(
      variables, tokens, carry, train=False
    )

  params, (logits, after) = jax.eval_shape(run)
  assert sequences.sizes(params) == (parameters, vectors)
  assert logits.shape == (2, 3, classes)
  assert jax.tree.structure(after) == jax.tree.structure(carry)
  assert all(x.shape[0] == 2 for x in jax.tree.leaves(carry))


def test_every_language_model_is_tested():
  cases = test_parameters.pytestmark[0].args[1]
  assert {name for name, *_ in cases} == set(models.LANGUAGE)


def test_dgcs_ratio_follows_from_two_sets_of_biases():
  model, tokens = models.create('lstm_1500', 10_000), jnp.zeros((1, 1), int)
  made = jax.eval_shape(
    lambda: model.init(jax.random.key(0), tokens, model.carry(1), train=False)
  )
  assert round(sequences.dgc_ratio(made['params'])) == 462  # its table 4


_LSTM = models.LanguageLSTM(7, units=4, dropout=0.5, limit=0.5)
_GPT = models.GPT(7, width=8, layers=2, heads=2, dropout=0.5)
_TOKENS = np.random.default_rng(0).integers(0, 7, (2, 6))


@pytest.fixture(scope='module', params=[_LSTM, _GPT], ids=['lstm', 'gpt'])
def made(request):
  """A model, and its variables, large enough for differences to be seen."""
  model = request.param
  variables = jax.jit(
    lambda: model.init(jax.random.key(0), _TOKENS, model.carry(2), train=False)
  )()
  return model, jax.tree.map(lambda x: 3 * x, variables)


@functools.partial(jax.jit, static_argnames=('model', 'train'))
def _applied(model, variables, tokens, carry, rngs=None, train=False):
  return model.apply(variables, tokens, carry, train=train, rngs=rngs)


def _logits(made, tokens, **options):
  model, variables = made
  carry = model.carry(len(tokens))
  return np.asarray(_applied(model, variables, tokens, carry, **options)[0])


def test_a_word_changes_nothing_before_it(made):
  before = _logits(made, _TOKENS)
  other = _TOKENS.copy()
  other[:, 3] = (other[:, 3] + 1) % 7
  after = _logits(made, other)
  np.testing.assert_allclose(after[:, :3], before[:, :3], atol=1e-6)
  assert np.all(np.abs(after[:, 3:] - before[:, 3:]).max(axis=-1) > 1e-4)


def test_texts_of_a_batch_do_not_meet(made):
  whole = _logits(made, _TOKENS)
  np.testing.assert_allclose(whole[:1], _logits(made, _TOKENS[:1]), atol=1e-5)


@pytest.mark.slow
def test_dropout_is_for_training_only(made):
  def trained(seed):
    key = {'dropout': jax.random.key(seed)}
    return _logits(made, _TOKENS, train=True, rngs=key)

  np.testing.assert_array_equal(trained(0), trained(0))
  assert np.abs(trained(0) - trained(1)).max() > 1e-3
  assert np.abs(trained(0) - _logits(made, _TOKENS)).max() > 1e-3


@pytest.mark.slow
def test_windows_that_pass_the_hidden_state_on_are_one_text():
  model = _LSTM
  variables = sequences.drawn(
    lambda: model.init(jax.random.key(0), _TOKENS, model.carry(2), train=False)
  )
  whole, last = model.apply(variables, _TOKENS, model.carry(2), train=False)
  first, carry = model.apply(
    variables, _TOKENS[:, :4], model.carry(2), train=False
  )
  second, carry = model.apply(variables, _TOKENS[:, 4:], carry, train=False)
  np.testing.assert_allclose(
    np.concatenate([first, second], axis=1), whole, atol=1e-6
  )
  for a, b in zip(jax.tree.leaves(carry), jax.tree.leaves(last), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-6)
    assert np.any(np.abs(a) > 1e-3)


@pytest.mark.slow
def test_no_dropout_between_the_steps_of_a_layer():
  """With all else dropped, a hidden state still goes on as it was."""
  model = _LSTM.clone(dropout=1.0)
  variables = sequences.drawn(
    lambda: model.init(jax.random.key(0), _TOKENS, model.carry(2), train=False)
  )
  carry = jax.tree.map(lambda x: x + 0.5, model.carry(2))

  def after(carry, **options):
    return model.apply(variables, _TOKENS, carry, **options)[1]

  key = {'dropout': jax.random.key(0)}
  dropped = after(carry, train=True, rngs=key)
  others = after(model.carry(2), train=True, rngs=key)
  # Inputs are gone: texts differ no more. The states they began with do.
  for x, y in zip(
    jax.tree.leaves(dropped), jax.tree.leaves(others), strict=True
  ):
    np.testing.assert_allclose(x[0], x[1], atol=1e-6)
    assert np.abs(x - y).max() > 1e-4


def test_the_embedding_is_the_output_where_it_is_tied():
  def leaves(model):
    made = jax.eval_shape(
      lambda: model.init(jax.random.key(0), _TOKENS, model.carry(2), train=True)
    )
    return sorted(
      x.shape for x in jax.tree.leaves(made['params']) if 7 in x.shape
    )

  model = _LSTM.clone(dropout=0.0)
  assert leaves(model) == [(7,), (7, 4)]
  assert leaves(model.clone(tied=False)) == [(4, 7), (7,), (7, 4)]
  assert leaves(_GPT.clone(dropout=0.0)) == [(7, 8)]


def test_attention_depends_on_distances_only():
  """Rotated by their positions, vectors have products of the difference."""
  q, k = (sequences.draw(1, 1, 1, 8, seed=seed) for seed in (0, 1))
  repeated = [np.broadcast_to(x, (1, 9, 1, 8)) for x in (q, k)]
  q, k = (gpt._rotated(jnp.asarray(x))[0, :, 0] for x in repeated)
  products = np.asarray(q @ k.T)
  for distance in range(-4, 5):
    diagonal = np.diagonal(products, distance)
    np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-4)
  assert np.ptp(products[0]) > 0.1
