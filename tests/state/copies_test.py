"""A state in which one worker's memory stands for all is refused."""

import functools

import gradsparse as gs
import jax
import numpy as np
import optax
import pytest
from tests import marks

WORKERS = 4
TX = optax.chain(
  gs.gradient_dropping(0.1, axis_name='batch', min_size=0), optax.sgd(0.1)
)
PARAMS = {'w': np.zeros((8, 8), np.float32)}


def gradients():
  draw = np.random.default_rng(0).normal(size=(WORKERS, 8, 8))
  return {'w': draw.astype(np.float32)}


def step(grads, state):
  return TX.update(grads, state)


@functools.cache
def stepped(axes):
  """The state after a step by pmap that has it along these axes."""
  state = TX.init(PARAMS)
  if axes == 0:
    state = jax.tree.map(lambda x: np.stack([x] * WORKERS), state)
  run = jax.pmap(
    step,
    axis_name='batch',
    in_axes=(0, axes),
    out_axes=(None, axes),
    devices=jax.devices()[:WORKERS],
  )
  return run(gradients(), state)[1]


def first_replica():
  """What comes of flax.jax_utils.unreplicate, a checkpoint and replicate."""
  return jax.tree.map(lambda x: np.stack([x[0]] * WORKERS), stepped(0))


def gone_on():
  """The same, after another step."""
  return jax.jit(jax.vmap(step, axis_name='batch', out_axes=(None, 0)))(
    gradients(), first_replica()
  )[1]


def lost(state):
  return gs.workers.resize(TX, state, 2)


READERS = {'pending': gs.pending, 'metrics': gs.metrics, 'resize': lost}


@pytest.mark.parametrize('name', READERS)
def test_memories_that_say_they_are_one_are_refused(name):
  with pytest.raises(ValueError, match=r'\[0, 1, 2, 3\].*runner=.pmap'):
    READERS[name](stepped(None))


@pytest.mark.parametrize('name', READERS)
def test_they_are_refused_in_variables_of_nnx(name):
  nnx = pytest.importorskip('flax.nnx')
  inside = jax.tree.map(nnx.OptState, stepped(None))
  with pytest.raises(ValueError, match=r'\[0, 1, 2, 3\].*runner=.pmap'):
    READERS[name](inside)


@pytest.mark.parametrize(
  'made', marks.few([first_replica, gone_on], first_replica)
)
@pytest.mark.parametrize('name', READERS)
def test_copies_of_one_memory_are_refused(name, made):
  with pytest.raises(ValueError, match=r'workers \[0\] for all 4 .*resize'):
    READERS[name](made())


@pytest.mark.parametrize('name', READERS)
def test_memories_of_all_workers_are_read(name):
  READERS[name](stepped(0))


def test_memories_of_some_workers_for_all_are_refused():
  half = jax.tree.map(lambda x: x[np.array([0, 1, 0, 1])], stepped(0))
  with pytest.raises(ValueError, match=r'\[0, 1\] for all 4'):
    gs.pending(half)


def test_nothing_is_owed_by_zeros():
  gs.metrics(jax.tree.map(np.zeros_like, stepped(0)))


def test_a_row_of_a_state_is_one_workers():
  row = jax.tree.map(lambda x: x[1], stepped(0))
  owed = gs.pending(stepped(0))['w'][1]
  np.testing.assert_array_equal(gs.pending(row)['w'], owed)


def test_one_worker_may_be_copied():
  one = jax.tree.map(lambda x: x[None], TX.init(PARAMS))
  run = jax.jit(jax.vmap(step, axis_name='batch', out_axes=(None, 0)))
  _, one = run({'w': gradients()['w'][:1]}, one)
  more = gs.workers.resize(TX, one, 3)
  for state in (more, jax.tree.map(lambda x: np.stack([x[0]] * 3), one)):
    np.testing.assert_allclose(
      np.mean(gs.pending(state)['w'], axis=0),
      gs.pending(one)['w'][0],
      rtol=1e-6,
    )


def test_a_scheme_without_memory_owes_nothing_that_could_be_lost():
  tx = gs.dense(axis_name='batch')
  state = gs.workers.init(tx, PARAMS, WORKERS, 'batch')
  numbered = state._replace(
    stats=state.stats._replace(worker=np.ones(WORKERS, np.int32))
  )
  assert gs.metrics(numbered)['residual_norm'] == 0
