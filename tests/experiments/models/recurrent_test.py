"""Cells and layers, against Flax's own and against loops in NumPy."""

import itertools

from experiments import models
from experiments.models import projected_lstm
from experiments.models import recurrent
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks

_UNITS = 3
_FLAX = {  # its cell, and its names of the gates in our order
  'lstm': (nn.OptimizedLSTMCell, 'ifgo'),
  'gru': (nn.GRUCell, 'rzn'),
}


def _draw(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _made(layer, x):
  """Parameters of a layer, all drawn anew: biases too."""
  shapes = jax.eval_shape(lambda: layer.init(jax.random.key(0), x))
  return jax.tree.map(lambda s: 0.5 * _draw(*s.shape), shapes)


def _flax_variables(variables, name):
  """The same parameters as a `nn.RNN` of Flax's cell has them."""
  ours = variables['params']['cells_0']
  gates = _FLAX[name][1]

  def split(array):
    return np.split(np.asarray(array), len(gates), axis=-1)

  bias = sum(v for key, v in ours.items() if key.startswith('bias'))
  # An LSTM's biases are beside U there, a GRU's beside W.
  beside = 'h' if name == 'lstm' else 'i'
  cell = {}
  for side, kernel in (('i', 'input'), ('h', 'recurrent')):
    kernels = split(ours[kernel]['kernel'])
    for gate, k, b in zip(gates, kernels, split(bias), strict=True):
      cell[side + gate] = {'kernel': k}
      if side == beside:
        cell[side + gate]['bias'] = b
  if name == 'gru':
    cell['hn']['bias'] = np.zeros(_UNITS, np.float32)
  return {'params': {'cell': cell}}


@pytest.mark.parametrize(
  ('name', 'bias_sets', 'backwards'),
  marks.few(
    [
      (*cell, backwards)
      for cell in (('lstm', 2), ('gru', 1))
      for backwards in (False, True)
    ],
    ('lstm', 2, False),
    ('gru', 1, True),
  ),
)
def test_layers_compute_what_flaxs_do(name, bias_sets, backwards):
  x, lengths = _draw(4, 6, 5), np.array([6, 1, 4, 3])
  cell = recurrent.CELLS[name](_UNITS, bias_sets=bias_sets)
  layer = recurrent.Layer((cell,), backwards=backwards)
  variables = _made(layer, x)
  mask = np.arange(6) < lengths[:, None]
  found, state = layer.apply(variables, x, mask=mask)
  flax_layer = nn.RNN(
    _FLAX[name][0](_UNITS),
    reverse=backwards,
    keep_order=True,
    return_carry=True,
  )
  carry, expected = flax_layer.apply(
    _flax_variables(variables, name), x, seq_lengths=lengths
  )
  expected = np.where(mask[..., None], expected, 0)
  np.testing.assert_allclose(found, expected, atol=1e-5)
  # Flax's LSTM has its memory first.
  carry = carry[::-1] if name == 'lstm' else (carry,)
  for ours, flaxs in zip(state, carry, strict=True):
    np.testing.assert_allclose(ours, flaxs, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'layer_norm', 'depth'),
  marks.few(
    itertools.product(['lstm', 'gru'], [False, True], [1, 3]),
    ('lstm', True, 1),
    ('gru', False, 3),
  ),
)
def test_a_sequence_in_two_parts_is_the_whole(name, layer_norm, depth):
  x = _draw(2, 5, 4)
  cells = tuple(
    recurrent.CELLS[name](_UNITS, layer_norm=layer_norm) for _ in range(depth)
  )
  layer = recurrent.Layer(cells)
  variables = _made(layer, x)
  assert len(variables['params']) == depth
  whole, last = layer.apply(variables, x)
  begin, state = layer.apply(variables, x[:, :2])
  end, state = layer.apply(variables, x[:, 2:], state)
  np.testing.assert_allclose(
    np.concatenate([begin, end], axis=1), whole, atol=1e-6
  )
  np.testing.assert_allclose(state[0], last[0], atol=1e-6)
  np.testing.assert_array_equal(last[0], whole[:, -1])


@pytest.mark.slow
def test_layer_norm_is_over_all_gates_and_before_the_biases():
  x, (h,) = _draw(2, 1, 4), (_draw(2, _UNITS, seed=1),)
  layer = recurrent.Layer((recurrent.GRU(_UNITS, layer_norm=True),))
  variables = _made(layer, x)
  p = jax.tree.map(np.asarray, variables['params']['cells_0'])

  def normed(a, kind):
    a = a @ p[kind]['kernel']
    a = (a - a.mean(-1, keepdims=True)) / a.std(-1, keepdims=True)
    return a * p[f'{kind}_norm']['scale']

  def sigmoid(a):
    return 1 / (1 + np.exp(-a))

  r, z, n = np.split(normed(x[:, 0], 'input') + p['bias_0'], 3, axis=-1)
  own_r, own_z, own_n = np.split(normed(h, 'recurrent'), 3, axis=-1)
  z = sigmoid(z + own_z)
  expected = (1 - z) * np.tanh(n + sigmoid(r + own_r) * own_n) + z * h
  found, _ = layer.apply(variables, x, (jnp.asarray(h),))
  np.testing.assert_allclose(found[:, 0], expected, atol=1e-4)


def test_a_projected_lstm_looks_at_its_memory():
  x, units = _draw(2, 4, 5), 3
  cell = projected_lstm.ProjectedLSTM(units, projection=2)
  layer = recurrent.Layer((cell,))
  variables = _made(layer, x)
  p = jax.tree.map(np.asarray, variables['params']['cells_0'])

  def sigmoid(a):
    return 1 / (1 + np.exp(-a))

  output, memory = np.zeros((2, 2)), np.zeros((2, units))
  for step in range(4):
    gates = x[:, step] @ p['input']['kernel'] + p['bias_0']
    gates = gates + output @ p['recurrent']['kernel']
    i, f, g, o = np.split(gates, 4, axis=-1)
    i, f = i + p['peephole_i'] * memory, f + p['peephole_f'] * memory
    memory = sigmoid(f) * memory + sigmoid(i) * np.tanh(g)
    output = sigmoid(o + p['peephole_o'] * memory) * np.tanh(memory)
    output = output @ p['project']['kernel']
  found, state = layer.apply(variables, x)
  np.testing.assert_allclose(found[:, -1], output, atol=1e-5)
  np.testing.assert_allclose(state[1], memory, atol=1e-5)


@pytest.mark.slow
def test_the_large_lstms_begin_as_the_named_codes_do():
  for name in ('lstm_1500', 'lstm_1500_untied'):
    large = models.create(name, 10)
    # As many units, and no more than what they begin with is looked at.
    assert large.units == 1500 and large.lstm_limit == 1500**-0.5
    small = large.clone(units=40, layers=1)
    tokens = jnp.zeros((1, 2), jnp.int32)
    made = small.init(jax.random.key(0), tokens, small.carry(1), train=False)[
      'params'
    ]
    for path, leaf in jax.tree_util.tree_leaves_with_path(made):
      where, largest = jax.tree_util.keystr(path), np.abs(leaf).max()
      if 'bias' in where:
        assert largest == 0
      else:
        limit = 1500**-0.5 if 'LSTM' in where else 0.1
        assert 0.9 * limit < largest <= limit, (where, largest)


def test_initial_weights_are_within_their_limit():
  drawn = np.asarray(recurrent.uniform(0.1)(jax.random.key(0), (50, 40)))
  assert drawn.min() < -0.099 < 0.099 < drawn.max()
  assert np.abs(drawn).max() <= 0.1
