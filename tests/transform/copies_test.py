"""Transformations and their states pass through what copies or saves them."""

import copy
import dataclasses

import gradsparse as gs
import jax
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests import marks
from tests import schemes

DGC = gs.dgc(0.3, axis_name='workers', min_size=0)
TRANSFORMATIONS = {
  'scheme': DGC,
  'schedule': gs.dgc(gs.schedules.dgc_warmup(0.1, 8), axis_name='workers'),
  'accumulate': gs.accumulate(DGC, every=2),
  'clip': gs.clip_local_norm(0.3, axis_name='workers'),
  'local': gs.local_gradient(DGC),
  'sharded': gs.sharded(DGC, P()),
  'chain': optax.chain(DGC, optax.sgd(0.1)),
}


@dataclasses.dataclass
class Config:
  tx: optax.GradientTransformation


def _pickled(tx):
  cloudpickle = pytest.importorskip('cloudpickle')
  return cloudpickle.loads(cloudpickle.dumps(tx))


COPIES = {
  'deepcopy': copy.deepcopy,
  'cloudpickle': _pickled,
  'tree map': lambda tx: jax.tree.map(lambda x: x, tx),
  'asdict': lambda tx: dataclasses.asdict(Config(tx))['tx'],
}


@pytest.mark.parametrize('way', marks.few(COPIES, 'cloudpickle', 'tree map'))
@pytest.mark.parametrize('name', TRANSFORMATIONS)
def test_a_copy_is_what_the_original_is(name, way):
  tx = TRANSFORMATIONS[name]
  made = COPIES[way](tx)
  assert type(made) is type(tx)
  if name != 'chain':
    assert repr(made) == repr(tx)
  state = made.init({'w': np.zeros((4, 5), np.float32)})
  assert jax.tree.structure(state) == jax.tree.structure(
    tx.init({'w': np.zeros((4, 5), np.float32)})
  )


def test_a_copy_of_a_scheme_tells_what_it_delivered():
  made = jax.tree.map(lambda x: x, DGC)
  assert made.scheme is DGC.scheme
  assert made.step is DGC.step
  assert made.layout is DGC.layout


@pytest.mark.parametrize(
  'name', marks.few(schemes.BY_NAME, *schemes.FIRST_NAMES)
)
def test_a_state_is_a_plain_tree_of_arrays(name):
  setting = schemes.BY_NAME[name]
  tx, params = setting.make(), setting.params
  state = tx.init(params)
  # Flax saves no classes but those that are registered: none of ours is.
  serialization = pytest.importorskip('flax.serialization')
  again = serialization.from_bytes(state, serialization.to_bytes(state))
  jax.tree.map(np.testing.assert_array_equal, again, state)
  # A memory and what an exchange owes are copies of the parameters.
  ones = jax.tree.map(np.ones_like, params)
  marked = optax.tree.map_params(
    tx, lambda _, one: one, state, ones, transform_non_params=lambda _: 0
  )
  numbers = jax.tree.leaves(marked)
  arrays = [x for x in numbers if isinstance(x, np.ndarray)]
  floats = tx.scheme.memory.floats + bool(jax.tree.leaves(state.exchange))
  assert len(arrays) == floats * len(jax.tree.leaves(params))


def test_a_state_without_memory_has_the_shapes_of_its_parameters():
  params = {'w': np.zeros((4, 5)), 's': np.zeros(()), 'none': None}
  state = gs.dense(axis_name=None).init(params)
  assert not jax.tree.leaves(state.memory)
  owed = gs.pending(state)
  assert jax.tree.map(np.shape, owed) == {'w': (4, 5), 's': (), 'none': None}


def test_a_state_of_other_shapes_is_refused_by_serialization():
  serialization = pytest.importorskip('flax.serialization')
  tx = gs.dense(axis_name=None)
  saved = serialization.to_bytes(tx.init({'w': np.zeros((4, 5))}))
  with pytest.raises(ValueError, match='5,4'):
    serialization.from_bytes(tx.init({'w': np.zeros((5, 4))}), saved)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Model:
  """Parameters in a class of their own, as Flax and Equinox have them."""

  w: jax.Array


def test_a_scheme_whose_label_no_leaf_has_is_no_placeholder():
  params = Model(np.ones((4, 5), np.float32))
  dense = gs.dense(axis_name='workers')
  tx = optax.partition({'none': DGC, 'all': dense}, Model('all'))
  state = gs.workers.init(tx, params, 2)
  assert state.inner_states['none'].inner_state.dense_leaves == {}
