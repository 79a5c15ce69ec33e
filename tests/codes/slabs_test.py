"""Codes of whole leaves on TPUs, which are decoded and added up in slabs."""

import gradsparse as gs
from gradsparse import codes
from gradsparse import extend
from gradsparse.backend import platforms
from gradsparse.backend import repeating
from gradsparse.wire import planar
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks

# Rows that fill slabs of every width; with rows left over; buckets that end
# within a row; and a small leaf.
SHAPES = [(512, 128), (3, 3, 64, 64), (100, 250), (7, 9)]
CODES = {
  'qsgd': lambda: codes.qsgd.of_leaves(7),
  'qsgd_elias': lambda: codes.qsgd.of_leaves(7, code='elias'),
  'one_bit': codes.one_bit.of_leaves,
  'ternary': codes.ternary,
  'signs': lambda: codes.signs(1.0),
}


def leaves_of(seed):
  key = jax.random.key(seed)
  return [
    jax.random.normal(jax.random.fold_in(key, n), shape)
    for n, shape in enumerate(SHAPES)
  ]


@pytest.fixture
def on_tpus(monkeypatch):
  """Within the test CPUs get the form of TPUs."""

  def turn():
    jax.clear_caches()
    monkeypatch.setattr(platforms, 'name', lambda: 'tpu')
    monkeypatch.setattr(repeating, '_LARGE', 1)

  yield turn
  jax.clear_caches()


def through(name, leaves=None):
  """The words of a message, and the leaves that it decodes to."""
  leaves, key = leaves or leaves_of(0), jax.random.key(1)
  ctx = extend.Context(
    extend.MessageLeaves(tuple(SHAPES)),
    8,
    jnp.int32(0),
    key,
    key,
    prepared=jnp.float32([jnp.max(jnp.abs(x)) for x in leaves]),
  )
  code = CODES[name]()
  rounded = code.round(extend.Leaves(leaves), ctx)
  words = code.pack(rounded, ctx)
  decoded = code.decode(code.unpack(words, rounded, ctx), ctx, 1)
  return words, decoded.arrays


@pytest.mark.parametrize('name', marks.few(CODES, 'signs'))
def test_a_message_has_the_bits_of_cpus(name, on_tpus):
  run = through
  if name in ('ternary', 'signs'):
    # The others have products that XLA may join with an addition.
    # With leaves that are given: XLA would compute what is made of constants.
    given = leaves_of(0)
    run = lambda name: jax.jit(lambda leaves: through(name, leaves))(given)
  words, leaves = run(name)
  on_tpus()
  same, again = run(name)
  jax.tree.map(np.testing.assert_array_equal, words, same)
  # The exchange adds slabs up, and joins their sum.
  slabs = sum(isinstance(y, planar.Slabs) for y in again)
  assert slabs == (3 if name in ('qsgd', 'one_bit') else 0)
  for x, y in zip(leaves, again, strict=True):
    if isinstance(y, planar.Slabs):
      y = y.joined(x.shape)
    np.testing.assert_array_equal(y.reshape(x.shape), x)


def test_levels_of_a_stream_and_of_its_fallback_have_one_type(on_tpus):
  on_tpus()
  _, leaves = jax.eval_shape(lambda: through('qsgd_elias'))
  assert [x.shape for x in leaves] == SHAPES


@pytest.mark.slow
@pytest.mark.parametrize('recipe', ['qsgd', 'one_bit_sgd'])
def test_the_mean_of_workers_is_that_of_cpus(recipe, on_tpus):
  arguments = {'levels': 7} if recipe == 'qsgd' else {}
  tx = getattr(gs, recipe)(axis_name='data', min_size=0, **arguments)
  grads = jax.tree.map(lambda *x: jnp.stack(x), *map(leaves_of, range(3)))
  params = leaves_of(0)

  def mean():
    specs = gs.workers.specs(tx, params, 3, 'data')
    run = gs.workers.parallel(
      lambda grads, state: tx.update(grads, state)[0],
      in_specs=(jax.P('data'), specs),
      out_specs=jax.P(),
      runner='simulate',
      num_workers=3,
      axis_name='data',
    )
    return run(grads, gs.workers.init(tx, params, 3, 'data'))

  expected = mean()
  on_tpus()
  for x, y in zip(mean(), expected, strict=True):
    # XLA may join a product with an addition.
    np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)
