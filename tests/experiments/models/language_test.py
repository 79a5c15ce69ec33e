"""Language models have the published sizes, and are what their paper trains."""

import warnings

from experiments import models
from experiments.models import language
from experiments.program import errors
import gradsparse as gs
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest


def _made(model, time=5):
  tokens = jnp.zeros((1, time), jnp.int32)
  return model.init(jax.random.key(0), tokens, model.carry(1), train=False)


@pytest.mark.parametrize(
  ('name', 'parameters', 'of_vectors'),
  [
    ('lstm_ptb', 51_034_000, 34_000),  # DGC's table 4: 194.68 MiB
    ('lstm_ptb_untied', 66_034_000, 34_000),  # gTop-k's table V
    ('lstm_small', 2_000_000 + 2 * (2 * 200 * 800 + 2 * 800) + 10_000, 13_200),
  ],
)
def test_parameters_of_ten_thousand_words(name, parameters, of_vectors):
  model = models.create(name, 10_000, 'text')
  leaves = jax.tree.leaves(jax.eval_shape(lambda: _made(model))['params'])
  assert sum(leaf.size for leaf in leaves) == parameters
  assert sum(leaf.size for leaf in leaves if leaf.ndim == 1) == of_vectors


def test_a_model_of_another_kind_of_data_is_refused():
  with pytest.raises(
    errors.ConfigError, match='lstm_ptb.* for text, got .resn'
  ):
    models.create('resnet8', 10, 'text')
  with pytest.raises(errors.ConfigError, match="for images, got 'lstm_small'"):
    models.create('lstm_small', 10)


def _by_hand(params, tokens, layers):
  """Logits of one row, a symbol after the other, gate by gate."""
  sigmoid = lambda x: 1 / (1 + np.exp(-x))
  x = params['Embed_0']['embedding'][tokens]
  for layer in range(layers):
    own = params[f'LSTM_{layer}']
    units = own['recurrent'].shape[0]
    cell, out, outs = np.zeros(units), np.zeros(units), []
    for t in range(len(tokens)):
      gates = x[t] @ own['inputs'] + own['input_bias']
      gates = gates + out @ own['recurrent'] + own['recurrent_bias']
      i, f, g, o = gates.reshape(4, units)
      cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
      out = sigmoid(o) * np.tanh(cell)
      outs.append(out)
    x = np.stack(outs)
  return x @ params['Embed_0']['embedding'].T + params['bias']


def test_logits_are_those_of_lstm_cells():
  model = language.LanguageLSTM(6, units=4)
  tokens = np.array([3, 1, 4, 1, 5])
  variables = jax.tree.map(
    lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape),
    _made(model),
  )
  logits, _ = jax.jit(
    lambda v: model.apply(v, tokens[None], model.carry(1), train=False)
  )(variables)
  params = jax.tree.map(lambda x: np.asarray(x, np.float64), variables)
  expected = _by_hand(params['params'], tokens, layers=2)
  np.testing.assert_allclose(logits[0], expected, rtol=1e-5, atol=1e-6)


def test_what_is_dropped_is_dropped_in_training_only():
  model = language.LanguageLSTM(6, units=8, dropout=0.5)
  variables, tokens = _made(model), jnp.array([[1, 2, 3]])

  def logits(train, seed):
    rngs = {'dropout': jax.random.key(seed)}
    return model.apply(
      variables, tokens, model.carry(1), train=train, rngs=rngs
    )[0]

  np.testing.assert_array_equal(logits(False, 0), logits(False, 1))
  assert not np.array_equal(logits(True, 0), logits(True, 1))


@pytest.mark.parametrize('tied', [True, False])
def test_second_moments_are_exact(tied):
  """Slowly of a tied embedding, whose two places have no rule together."""
  model = language.LanguageLSTM(7, units=3, tied=tied, dropout=0.0)
  params = _made(model)['params']
  rng = np.random.default_rng(0)
  tokens, targets = rng.integers(0, 7, (2, 4, 5))

  def loss(params, example):
    tokens, targets = example
    logits, _ = model.apply(
      {'params': params}, tokens[None], model.carry(1), train=True
    )
    return optax.softmax_cross_entropy_with_integer_labels(
      logits[0], targets
    ).mean()

  with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter('always')
    _, grads, moment = jax.jit(gs.value_and_grad_moments(loss))(
      params, (tokens, targets)
    )
  slow = [str(each.message) for each in said if 'moments' in str(each.message)]
  assert len(slow) == tied and all('embedding' in text for text in slow)
  own = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0)))(
    params, (tokens, targets)
  )
  close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-8)
  jax.tree.map(lambda g, o: close(g, o.mean(0)), grads, own)
  jax.tree.map(lambda m, o: close(m, ((o / 4) ** 2).sum(0)), moment, own)
