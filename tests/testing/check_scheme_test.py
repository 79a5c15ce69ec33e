"""`check_scheme` passes what is right, and names the law that is broken."""

import gradsparse as gs
from gradsparse import extend
import jax
import jax.numpy as jnp
import pytest
from tests import schemes

TREES = {'small': {'w': (12, 10), 'b': (7,)}}
ONE = dict(num_workers=(2,), runners=('simulate',), trees=TREES)


def top_k(**changes):
  compressor = extend.compressors.top_k(
    0.1, extend.codes.sparse(), scope='global', name='mine'
  )
  return compressor._replace(**changes)


def make(memory=None, compressor=None, exchange=None):
  def scheme(axis_name):
    return gs.compressed_mean(
      memory or extend.memories.residual(),
      compressor or top_k(),
      exchange or extend.exchanges.all_gather(),
      axis_name=axis_name,
    )

  return scheme


def test_a_right_scheme_passes_and_says_what_was_checked():
  cases = gs.testing.check_scheme(make(), **ONE)
  assert cases == [gs.testing.Case('small', 2, 'simulate')]
  assert str(cases[0]) == '2 workers, simulate, small'


def forgetful():
  """Lets go of more than was sent."""
  memory = extend.memories.residual()

  def sent(state, delivered):
    state = memory.sent(state, delivered)
    return state._replace(residual=jax.tree.map(lambda x: x / 2, state[0]))

  return make(memory._replace(sent=sent))


def halved():
  """Makes something else of the mean."""
  memory = extend.memories.residual()

  def run(message, comm):
    back = extend.exchanges.all_gather().run(message, comm)
    return back._replace(mean=[x / 2 for x in back.mean])

  return make(memory, None, extend.Exchange('halved', run))


def own_opinion():
  """Each worker adds its rank."""

  def run(message, comm):
    back = extend.exchanges.all_gather().run(message, comm)
    rank = comm.index().astype(jnp.float32)
    mean = [comm.replicated(x + rank) for x in back.mean]
    return back._replace(mean=mean)

  return make(None, None, extend.Exchange('own opinion', run))


def boasting():
  """Reports half of what it sends."""

  def run(message, comm):
    back = extend.exchanges.all_gather().run(message, comm)
    if comm.recorder is None:
      return back
    return back._replace(message_bytes=back.message_bytes // 2)

  return make(None, None, extend.Exchange('boasting', run))


def narrowing():
  """Its state comes back in another type."""
  memory = extend.memories.residual()

  def arrived(state, means, whole, accepted):
    return jax.tree.map(lambda x: x.astype(jnp.float16), state)

  return make(memory._replace(arrived=arrived))


def partial():
  """Says that it is unbiased, and sends the largest only."""
  return make(extend.memories.no_memory(), top_k(unbiased=True))


def trusting():
  """Does not look whether others are healthy."""

  def run(message, comm):
    back = extend.exchanges.all_gather().run(message, comm)
    return back._replace(healthy=comm.replicated(jnp.bool_(True)))

  return make(None, None, extend.Exchange('trusting', run))


@pytest.mark.parametrize(
  'broken, law, said',
  [
    (forgetful, 1, 'delivered and is pending'),
    (halved, 1, "the update of ['b']"),
    (own_opinion, 4, 'the update of worker 1'),
    (boasting, 5, 'the plan says'),
    (narrowing, 6, 'float16'),
    (partial, 2, 'in the mean over'),
    (trusting, 4, 'a worker has a NaN'),
  ],
)
def test_a_broken_law_is_named_with_case_and_numbers(broken, law, said):
  with pytest.raises(AssertionError) as e:
    gs.testing.check_scheme(broken(), **ONE)
  assert str(e.value).startswith(f'law {law} (')
  assert said in str(e.value)


def test_a_law_that_does_not_apply_is_left_out():
  gs.testing.check_scheme(forgetful(), exempt=(1,), **ONE)


def test_nothing_to_check_is_an_error():
  dgc = lambda axis_name: gs.dgc(0.1, axis_name=axis_name)
  with pytest.raises(ValueError, match='none of the trees'):
    gs.testing.check_scheme(dgc, trees={'vector': (5,)})
  with pytest.raises(ValueError, match='steps must be at least 3'):
    gs.testing.check_scheme(dgc, steps=2)


@pytest.mark.slow
@pytest.mark.parametrize('setting', schemes.SETTINGS, ids=lambda s: s.name)
def test_every_recipe_passes(setting):
  exempt = (1,) if setting.facts.exempt else ()
  gs.testing.check_scheme(setting.make, num_workers=(1, 3), exempt=exempt)
