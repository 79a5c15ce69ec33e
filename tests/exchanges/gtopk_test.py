"""One merge of two messages, beside its oracle."""

import functools
import importlib

import gradsparse as gs
from gradsparse.sockets import Sparse
from gradsparse.sockets.values import Space
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks
from tests.oracles import gtopk as oracle

# The package's name is that of the function.
gtopk = importlib.import_module('gradsparse.exchanges.gtopk')

_SIZE = 60


def _message(entries, slots, size=_SIZE):
  """Entries by index, and empty slots after them."""
  indices = np.full(slots, size, np.int32)
  values = np.zeros(slots, np.float32)
  indices[: len(entries)] = sorted(entries)
  values[: len(entries)] = [entries[i] for i in sorted(entries)]
  space = Space(((size,),), (slots,))
  return Sparse(jnp.asarray(values), jnp.asarray(indices), space)


def _entries(rng, count):
  """Few different values: many ties, and sums that are zero."""
  indices = rng.choice(_SIZE, count, replace=False).tolist()
  values = rng.integers(-2, 3, count).astype(np.float32)
  return dict(zip(indices, values, strict=True))


@pytest.mark.parametrize('limited', marks.few([False, True], False))
def test_a_merge_keeps_what_its_oracle_keeps(limited):
  slots = 20
  merge = jax.jit(
    lambda a, b, limit: gtopk.merge(a, b, slots, limit if limited else None)
  )
  rng = np.random.default_rng(0)
  zeros = 0
  for counts in ((20, 20), (20, 3), (0, 20), (4, 5), (0, 0), *[(20, 18)] * 9):
    a, b = (_entries(rng, count) for count in counts)
    limit = int(rng.integers(1, slots))
    expected = oracle.merge(a, b, limit if limited else slots)
    got = merge(_message(a, slots), _message(b, slots), limit)
    want = _message(expected, slots)
    np.testing.assert_array_equal(got.indices, want.indices)
    np.testing.assert_array_equal(got.values, want.values)
    zeros += sum(value == 0 for value in expected.values())
  assert zeros > 3 or limited  # kept, because something was sent


def test_a_large_merge_sorts_nothing():
  """It takes a tenth of the time of sorting, from some 10,000 entries on."""
  merge = jax.jit(functools.partial(gtopk.merge, slots=10_000))
  message = _message({}, 10_000, size=10**6)
  text = merge.lower(message, message).as_text()
  assert 'stablehlo.sort' not in text and 'top_k' not in text


@pytest.mark.slow
def test_a_long_result_goes_back_to_the_worker_that_folded():
  """Its mask goes beside rows of 128 words."""
  params = {'w': jnp.zeros(20_000)}
  tx = gs.gtopk(0.9, axis_name='w')
  grads = {'w': jax.random.normal(jax.random.key(0), (3, 20_000))}
  state = gs.workers.stack(tx.init(params), 3)
  updates, state = jax.jit(jax.vmap(tx.update, axis_name='w'))(grads, state)
  for x in updates['w'][1:]:
    np.testing.assert_array_equal(x, updates['w'][0])
  delivered = jnp.sum(grads['w'] - gs.pending(state)['w'], axis=0)
  np.testing.assert_allclose(updates['w'][0], delivered / 3, atol=1e-6)
