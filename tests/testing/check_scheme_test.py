"""`check_scheme` passes what is right, and names the law that is broken."""

import gradsparse as gs
from gradsparse import extend
import jax
import jax.numpy as jnp
import optax
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


@pytest.mark.slow
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
    return back._replace(total=jax.tree.map(lambda x: x / 2, back.total))

  return make(memory, None, extend.Exchange('halved', run))


def own_opinion():
  """Each worker adds its rank."""

  def run(message, comm):
    back = extend.exchanges.all_gather().run(message, comm)
    rank = comm.index().astype(jnp.float32)
    total = jax.tree.map(lambda x: comm.replicated(x + rank), back.total)
    return back._replace(total=total)

  return make(None, None, extend.Exchange('own opinion', run))


def boasting():
  """Reports half of what it sends."""

  def run(message, comm):
    back = extend.exchanges.all_gather().run(message, comm)
    if comm.recorder is None:
      return back
    half = back.extras.message_bytes // 2
    return back._replace(extras=back.extras._replace(message_bytes=half))

  return make(None, None, extend.Exchange('boasting', run))


def accumulating(fn):
  """A memory that takes gradients in by `fn`."""
  memory = extend.memories.residual()

  def accumulate(grads, state, extra, whole):
    return state._replace(residual=jax.tree.map(fn, state.residual, grads))

  return make(memory._replace(accumulate=accumulate))


def halving():
  return accumulating(lambda e, g: e + g / 2)


def starting_anew():
  return accumulating(lambda e, g: g)


def heedless():
  """What all share moves in a rejected step too."""
  memory = extend.memories.estimate()

  def arrived(state, means, whole, accepted):
    return state._replace(mean=jax.tree.map(lambda x: x + 1, state.mean))

  return make(memory._replace(arrived=arrived))


def garbled():
  """Does not read what it writes."""
  code = extend.codes.sparse()

  def unpack(words, like, ctx):
    s = code.unpack(words, like, ctx)
    return extend.Sparse(s.values[::-1], s.indices, s.space)

  return make(None, top_k(code=code._replace(unpack=unpack)))


def unsorted():
  """A Sparse whose entries are in no order."""
  right = top_k()

  def select(signals, ctx):
    s = right.select(signals, ctx)
    return extend.Sparse(s.values[::-1], s.indices[::-1], s.space)

  code = extend.codes.plain.of_known_places()
  return make(None, top_k(select=select, code=code))


def silent():
  """Makes nothing of the mean."""
  memory = extend.memories.residual()

  def update(state, means, whole):
    return jax.tree.map(jnp.zeros_like, means)

  return make(memory._replace(update=update))


def partial():
  """Says that it is unbiased, and sends the largest only."""
  return make(extend.memories.no_memory(), top_k(unbiased=True))


def trusting():
  """Does not look whether others are healthy."""

  def run(message, comm):
    back = extend.exchanges.all_gather().run(message, comm)
    return back._replace(ok=comm.replicated(jnp.bool_(True)))

  return make(None, None, extend.Exchange('trusting', run))


@pytest.mark.parametrize(
  'broken, law, said',
  [
    (forgetful, 1, 'the pending value'),
    pytest.param(
      silent, 1, 'the update (mean gradient less', marks=pytest.mark.slow
    ),
    pytest.param(halving, 1, 'the memory accumulates', marks=pytest.mark.slow),
    pytest.param(
      starting_anew,
      1,
      'pending value after memory.accumulate',
      marks=pytest.mark.slow,
    ),
    pytest.param(
      garbled, 1, 'what `unpack` makes of `pack`', marks=pytest.mark.slow
    ),
    pytest.param(unsorted, 1, 'do not ascend', marks=pytest.mark.slow),
    pytest.param(
      heedless, 6, 'the shared part of state.memory', marks=pytest.mark.slow
    ),
    pytest.param(halved, 1, "the update of ['b']", marks=pytest.mark.slow),
    (own_opinion, 4, 'the update of worker 1'),
    pytest.param(boasting, 5, 'the plan says', marks=pytest.mark.slow),
    pytest.param(partial, 2, 'in the mean over', marks=pytest.mark.slow),
    pytest.param(trusting, 4, 'a worker has a NaN', marks=pytest.mark.slow),
  ],
)
def test_a_broken_law_is_named_with_case_and_numbers(broken, law, said):
  with pytest.raises(AssertionError) as e:
    gs.testing.check_scheme(broken(), **ONE)
  assert str(e.value).startswith(f'law {law} (')
  assert said in str(e.value)


@pytest.mark.slow
def test_a_law_that_does_not_apply_is_left_out():
  gs.testing.check_scheme(forgetful(), exempt=(1,), **ONE)


@pytest.mark.slow
def test_a_leaf_that_is_a_scalar_may_come_first():
  trees = {'scalar first': {'a': (), 'w': (9, 7)}}
  gs.testing.check_scheme(make(), **{**ONE, 'trees': trees})


def test_what_is_no_scheme_is_refused():
  with pytest.raises(TypeError, match='must be a CompressedMean'):
    gs.testing.check_scheme(lambda axis_name: optax.sgd(0.1))


def test_nothing_to_check_is_an_error():
  dgc = lambda axis_name: gs.dgc(0.1, axis_name=axis_name)
  with pytest.raises(ValueError, match='trees must have a leaf'):
    gs.testing.check_scheme(dgc, trees={'vector': (5,)})
  with pytest.raises(ValueError, match='steps must be at least 3'):
    gs.testing.check_scheme(dgc, steps=2)


# tests/laws_test.py has all settings.
@pytest.mark.slow
@pytest.mark.parametrize('setting', schemes.FIRST, ids=lambda s: s.name)
def test_every_recipe_passes(setting):
  exempt = (1,) if setting.facts.exempt else ()
  gs.testing.check_scheme(setting.make, num_workers=(1, 3), exempt=exempt)
