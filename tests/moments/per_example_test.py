"""Sums and squares in one backward pass: against the gradient of each example.

A warning is an error here: what is meant to be known is not copied silently.
"""

import re
import warnings

import gradsparse as gs
from gradsparse.moments import products
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest
from tests import marks
from tests.moments.per_example import check
from tests.moments.per_example import close
from tests.moments.per_example import draw
from tests.moments.per_example import reference

pytestmark = pytest.mark.filterwarnings('error:second moments')
B = 4


# --- products ---------------------------------------------------------------


def nonlinear(y):
  return jnp.sum(jnp.sin(y) * jnp.arange(1.0, y.size + 1).reshape(y.shape))


@pytest.mark.parametrize(
  'equation, example, kernel',
  marks.few(
    [
      ('i,io->o', (3,), (3, 2)),
      ('i,oi->o', (3,), (2, 3)),
      ('ti,io->to', (5, 3), (3, 2)),
      ('it,oi->ot', (3, 5), (2, 3)),
      ('tij,jiop->topi', (5, 3, 2), (2, 3, 2, 4)),
      ('gti,gio->gto', (2, 5, 3), (2, 3, 4)),
      ('ti,ihd->htd', (5, 3), (3, 2, 4)),
      ('thd,hdo->to', (5, 2, 4), (2, 4, 3)),
    ],
    ('it,oi->ot', (3, 5), (2, 3)),
    ('gti,gio->gto', (2, 5, 3), (2, 3, 4)),
  ),
)
def test_dense_layers_of_all_forms(equation, example, kernel):
  a, b, out = equation.replace('->', ',').split(',')

  def loss(params, x):
    y = jnp.einsum(equation, x, params['right'])
    return nonlinear(y + jnp.einsum(f'{b},{a}->{out}', params['left'], x))

  params = {'left': draw(*kernel, seed=2), 'right': draw(*kernel, seed=3)}
  check(loss, params, draw(B, *example, seed=1))


@pytest.mark.parametrize(
  'example, kernel, options',
  marks.few(
    [
      ((1, 6, 5, 2), (3, 3, 2, 3), {}),
      ((2, 6, 5, 2), (3, 2, 2, 3), {'padding': 'VALID'}),
      ((1, 7, 6, 2), (3, 3, 2, 3), {'window_strides': (2, 3)}),
      ((1, 7, 6, 2), (3, 3, 2, 3), {'rhs_dilation': (2, 1)}),
      ((1, 4, 3, 2), (3, 3, 2, 3), {'lhs_dilation': (2, 3)}),
      ((1, 6, 5, 4), (3, 3, 2, 6), {'feature_group_count': 2}),
      ((1, 6, 5, 4), (3, 3, 1, 8), {'feature_group_count': 4}),
      ((1, 6, 5, 2), (3, 3, 2, 3), {'padding': ((-1, 2), (0, 1))}),
      ((1, 2, 6, 5), (3, 2, 3, 3), {'dimension_numbers': None}),
      ((1, 3, 3, 2), (3, 3, 2, 3), {'padding': 'VALID'}),
    ],
    ((1, 7, 6, 2), (3, 3, 2, 3), {'window_strides': (2, 3)}),
    ((1, 6, 5, 4), (3, 3, 2, 6), {'feature_group_count': 2}),
  ),
)
def test_convolutions_of_all_forms(example, kernel, options):
  options = {
    'window_strides': (1, 1),
    'padding': 'SAME',
    'dimension_numbers': ('NHWC', 'HWIO', 'NHWC'),
  } | options
  if 'lhs_dilation' in options:
    options['padding'] = ((1, 2), (0, 1))

  def loss(q, x):
    return nonlinear(jax.lax.conv_general_dilated(x, q, **options))

  check(loss, draw(*kernel), draw(B, *example, seed=1))


def test_convolutions_of_one_dimension():
  def loss(q, x):
    return nonlinear(
      jax.lax.conv_general_dilated(
        x, q, (2,), 'SAME', dimension_numbers=('NWC', 'WIO', 'NWC')
      )
    )

  check(loss, draw(3, 2, 4), draw(B, 2, 7, 2, seed=1))


@pytest.mark.parametrize(
  'mode', marks.few(['fill', 'promise_in_bounds'], 'fill')
)
def test_rows_that_are_looked_up_several_times(mode):
  at = np.array([[[0, 2], [2, 2]], [[1, -1], [4, 0]], [[3, 3], [3, 3]]])

  def loss(q, at):
    return nonlinear(q.at[at].get(mode=mode))

  check(loss, draw(5, 2, 3), at)


@pytest.mark.slow
def test_rows_out_of_bounds_have_no_gradient():
  at = np.array([[0, 7], [7, -9], [1, 1]])

  def loss(q, at):
    return nonlinear(q.at[at].get(mode='fill', fill_value=0))

  check(loss, draw(2, 3), at)


@pytest.mark.parametrize('backend', marks.few(['cpu', 'gpu'], 'cpu'))
@pytest.mark.parametrize('limit', marks.few([1, 100, 1 << 20], 100))
def test_blocks_of_examples(monkeypatch, backend, limit):
  """Gradients of 24 bytes an example: one, four and all six at a time."""
  monkeypatch.setattr(jax, 'default_backend', lambda: backend)
  monkeypatch.setattr(products, '_BLOCK_BYTES', limit)
  loss = lambda q, x: nonlinear(x @ q)
  fn = jax.jit(gs.value_and_grad_moments(loss))
  got = fn(draw(3, 2), draw(6, 5, 3, seed=1))
  close(got, reference(loss, draw(3, 2), draw(6, 5, 3, seed=1)))


# --- on the way to a product, and several of them ----------------------------


def test_parameters_that_are_turned_and_joined():
  def loss(p, x):
    joined = jnp.concatenate([p['a'].T, p['b'].reshape(3, 4)], axis=1)
    return nonlinear(x @ joined.astype(jnp.float32)[None].squeeze(0))

  params = {'a': draw(2, 3), 'b': draw(12).astype(jnp.bfloat16)}
  got = jax.jit(gs.value_and_grad_moments(loss))(params, draw(B, 3, seed=1))
  whole = jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), params)
  expected = reference(loss, whole, draw(B, 3, seed=1))
  close(got[2], expected[2])
  assert got[1]['b'].dtype == jnp.bfloat16
  assert got[2]['b'].dtype == jnp.float32


@pytest.mark.slow
def test_one_layer_that_is_used_several_times():
  def loss(p, x):
    for _ in range(3):
      x = jnp.tanh(x @ p)
    return nonlinear(x)

  check(loss, draw(3, 3), draw(B, 3, seed=1))
  check(loss, draw(3, 3), draw(B, 2, 3, seed=1), microbatch=2)


def tied(p, tokens):
  """A matrix that is looked up, and multiplied as it is and transposed."""
  x = jnp.tanh(p[tokens])
  y = nonlinear((x @ p.T) @ p) + nonlinear(p @ x.T)
  return y + nonlinear(p[tokens[:1]])


@pytest.mark.parametrize('microbatch', marks.few([None, 2], 2))
def test_a_matrix_that_is_looked_up_and_multiplied(microbatch):
  tokens = np.array([[0, 2, 2], [1, 1, 1], [4, 0, 3], [3, 3, 0]])
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    check(tied, draw(5, 2), tokens, microbatch=microbatch)


@pytest.mark.slow
def test_the_same_in_a_loop_in_another_precision_and_out_of_bounds():
  def loss(p, tokens):
    half = p.astype(jnp.bfloat16).astype(jnp.float32)

    def step(h, token):
      row = half.at[token].get(mode='fill', fill_value=0)
      return jnp.tanh(h + row), half.T.T @ h

    h, logits = jax.lax.scan(step, jnp.ones(2), tokens)
    return nonlinear(logits) + nonlinear(h @ half.T)

  tokens = np.array([[0, 7, 2], [1, 1, 1], [4, 9, 3]])
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    # bfloat16 rounds the gradient of each example in the reference.
    check(loss, draw(5, 2), tokens, tolerance=2e-2)


@pytest.mark.parametrize('reverse', marks.few([False, True], True))
def test_loops_within_loops(reverse):
  """An example's gradients of all steps are added before they are squared."""

  def loss(p, x):
    def inner(h, x):
      return jnp.tanh(jnp.concatenate([p['a'], p['b']]).T @ x + h), h

    @jax.jit
    def outer(h, xs):
      h, ys = jax.lax.scan(inner, h, xs)
      return jnp.tanh(h @ p['c'] + p['bias']), ys.sum()

    h, ys = jax.lax.scan(outer, jnp.zeros(3), x, reverse=reverse)
    return nonlinear(h) + ys.sum()

  params = {
    'a': draw(1, 3),
    'b': draw(1, 3, seed=1),
    'c': draw(3, 3, seed=2),
    'bias': draw(3, seed=3),
  }
  check(loss, params, draw(B, 3, 4, 2, seed=4))


# --- what is not known ------------------------------------------------------

UNKNOWN = {
  'cumsum': lambda p, x: nonlinear(x @ jnp.cumsum(p, 0)),
  'several places': lambda p, x: (
    nonlinear(x @ p) + nonlinear(jnp.tile(x, 3) @ p.reshape(9, 1))
  ),
  'mul': lambda p, x: nonlinear(x @ p) + jnp.sum(p * p),
  'several places ': lambda p, x: nonlinear(x @ p) + nonlinear(x[:, None] + p),
  'dot_general': lambda p, x: nonlinear(x @ (p @ p.T)),
  'concatenate': lambda p, x: nonlinear(
    jnp.concatenate([x, x]) @ jnp.concatenate([p, p])
  ),
  'slice': lambda p, x: nonlinear(x @ p[:, 1:]),
  # Elementwise, but with what is the same for all.
  'mul ': lambda p, x: nonlinear(x @ (np.tri(3, dtype=np.float32) * p)),
  'scan': lambda p, x: nonlinear(
    x @ jax.lax.scan(lambda c, _: (c * 1.5, None), p, None, length=2)[0]
  ),
  'remat2|checkpoint': lambda p, x: nonlinear(
    jax.checkpoint(lambda p: x @ p)(p)
  ),
}


@pytest.mark.parametrize(
  'why', marks.few(UNKNOWN, 'cumsum', 'several places', 'scan')
)
def test_an_unknown_use_is_exact_and_said_aloud(why):
  loss, batch = UNKNOWN[why], draw(B, 3, seed=1)
  params = {'known': draw(3, 2, seed=2), 'other': draw(3, 3)}

  def both(p, x):
    return loss(p['other'], x) + nonlinear(x @ p['known'])

  fn = jax.jit(gs.value_and_grad_moments(both))
  with pytest.warns(UserWarning, match='second moments: ') as said:
    got = fn(params, batch)
  close(got, reference(both, params, batch))
  (message,) = (str(w.message) for w in said)
  assert re.search(rf"parameter \['other'\] \({why.strip()}\)", message), (
    message
  )


def test_what_is_joined_with_an_unknown_one_is_not_known_either():
  def loss(p, x):
    joined = jnp.concatenate([p['a'], p['b']])
    return nonlinear(x @ joined) + jnp.sum(jnp.exp(p['a']))

  params, batch = {'a': draw(1, 2), 'b': draw(2, 2)}, draw(B, 3, seed=1)
  with pytest.warns(UserWarning, match="parameter \\['b'\\] \\(concatenate\\)"):
    got = jax.jit(gs.value_and_grad_moments(loss))(params, batch)
  close(got, reference(loss, params, batch))


def test_parameters_without_use_have_zeros():
  def loss(p, x):
    return nonlinear(x @ p['used']), p['seen']

  params = {'used': draw(3, 2), 'seen': draw(2, 2), 'unused': draw(2, 2)}
  fn = jax.jit(gs.value_and_grad_moments(loss, has_aux=True))
  (_, aux), grads, moments = fn(params, draw(B, 3, seed=1))
  np.testing.assert_array_equal(aux, np.stack([params['seen']] * B))
  for tree in (grads, moments):
    assert np.any(tree['used'])
    assert not np.any(tree['seen']) and not np.any(tree['unused'])


# --- surroundings -----------------------------------------------------------


@pytest.mark.parametrize('runner', marks.few(gs.workers.RUNNERS, 'shard_map'))
def test_moments_are_the_workers_own(runner):
  """Also with respect to parameters that all workers have."""

  def loss(p, x):
    step = lambda h, x: (jnp.tanh(h @ p['h'] + p['x'] @ x + p['bias']), None)
    h, _ = jax.lax.scan(step, 0 * x[0, :1].repeat(2), x)
    return nonlinear(h)

  params = {'h': draw(2, 2), 'x': draw(2, 3), 'bias': draw(2)}
  batch = draw(2, 4, 5, 3)
  fn = gs.workers.parallel(
    gs.value_and_grad_moments(loss, microbatch=2),
    runner=runner,
    num_workers=2,
    in_specs=(P(), P('workers')),
    out_specs=P('workers'),
  )
  got = fn(params, batch)
  for w in range(2):
    own = jax.tree.map(lambda x, w=w: x[w], got)
    close(own, reference(loss, params, batch[w]), 1e-4)


def test_the_axis_of_examples_is_checked():
  loss = lambda p, x: jnp.vdot(p, x)
  with pytest.raises(
    ValueError, match='microbatch must be None with axis_name'
  ):
    gs.value_and_grad_moments(loss, microbatch=2, axis_name='z')
  with pytest.raises(TypeError, match='axis_name must be'):
    gs.value_and_grad_moments(loss, axis_name=('a', 'b'))


@pytest.mark.parametrize(
  'kind', marks.few(['dense', 'convolution', 'lookup'], 'dense')
)
def test_float32_parameters_where_64_bits_are_enabled(kind):
  x = draw(B, 5, 3, seed=1)
  if kind == 'lookup':
    x = np.int32([[0, 2, 2], [1, 1, 1], [3, 0, 2], [2, 3, 1]])

  def loss(params, example):
    if kind == 'dense':
      return nonlinear(example @ params)
    if kind == 'lookup':
      return nonlinear(params[example])
    return nonlinear(
      jax.lax.conv_general_dilated(
        example[None], params, (1,), 'SAME', None, None, ('NHC', 'HIO', 'NHC')
      )
    )

  shape = {'dense': (3, 2), 'convolution': (3, 3, 2), 'lookup': (4, 2)}[kind]
  params = draw(*shape, seed=2)
  plain = jax.jit(gs.value_and_grad_moments(loss))(params, x)
  with jax.enable_x64(True):
    wide = jax.jit(gs.value_and_grad_moments(loss))(params, x)
  assert wide[2].dtype == jnp.float32
  close(wide[2], plain[2])
