"""A density that changes: by a schedule, by another scheme, by optax."""

import chex
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests import replay
from tests.replay import AXIS
from tests.simulation import PARAMS
from tests.simulation import gradients
from tests.simulation import simulated


@pytest.mark.slow
def test_another_density_goes_on_with_the_same_state():
  """Rebuilding for each stage does what a schedule in the program does."""
  make = lambda density: gs.dgc(density, min_size=0, axis_name=AXIS)
  stages = ((0, 0.5), (2, 0.1))
  state, scheduled = simulated(make(gs.schedules.DensitySchedule(stages)))
  first_state, first = simulated(make(0.5))
  last_state, last = simulated(make(0.1))
  chex.assert_trees_all_equal_shapes_and_dtypes(first_state, last_state)
  chex.assert_trees_all_equal_shapes_and_dtypes(first_state, state)
  rebuilt = first_state
  for t, step in enumerate((first, first, last, last)):
    grads = gradients(seed=t)
    expected, state = scheduled(grads, state)
    updates, rebuilt = step(grads, rebuilt)
    chex.assert_trees_all_close(updates, expected, rtol=1e-6)
    chex.assert_trees_all_close(
      gs.pending(rebuilt), gs.pending(state), rtol=1e-6, atol=1e-6
    )
  sent = np.count_nonzero(updates['kernel'][0])
  assert 12 <= sent <= 24  # two workers, k = 12


# --- inject_hyperparams -----------------------------------------------------

STATIC = ('axis_name', 'min_size', 'nesterov', 'factor_masking', 'error_decay')


@pytest.mark.slow
def test_inject_hyperparams_changes_density_and_momentum_between_steps():
  injected = optax.inject_hyperparams(gs.dgc, static_args=STATIC)
  tx = injected(0.25, momentum=0.9, min_size=0, axis_name=AXIS)
  state, step = simulated(tx)
  plain_state, plain = simulated(gs.dgc(0.25, min_size=0, axis_name=AXIS))
  grads = gradients()
  updates, state = step(grads, state)
  expected, plain_state = plain(grads, plain_state)
  chex.assert_trees_all_close(updates, expected, rtol=1e-6)

  # The same program, other numbers.
  state.hyperparams['density'] = jnp.full(2, 0.05)
  state.hyperparams['momentum'] = jnp.full(2, 0.5)
  _, plain = simulated(gs.dgc(0.05, momentum=0.5, min_size=0, axis_name=AXIS))
  grads = gradients(seed=1)
  updates, state = step(grads, state)
  expected, plain_state = plain(grads, plain_state)
  chex.assert_trees_all_close(updates, expected, rtol=1e-6)
  chex.assert_trees_all_close(
    gs.pending(state), gs.pending(plain_state), rtol=1e-6
  )


def test_inject_hyperparams_of_what_must_be_static_says_so():
  tx = optax.inject_hyperparams(gs.dgc, static_args='error_decay')(
    0.25, min_size=0, axis_name=None
  )
  with pytest.raises(TypeError, match='min_size.*static_args'):
    jax.eval_shape(tx.update, PARAMS, tx.init(PARAMS))


# --- bytes of a schedule inside of one program ------------------------------

N, WORKERS, WARMUP = 1000, 3, 4


@pytest.mark.slow
def test_a_linear_warmup_ends_with_the_bytes_of_a_fixed_density():
  """Through the butterfly, in which one of three workers sends more."""
  schedule = gs.schedules.LinearDropRatio(0.99, WARMUP)
  tx = gs.gtopk(schedule, axis_name=replay.AXIS)
  params = np.zeros(N, np.float32)
  specs = gs.workers.specs(tx, params, WORKERS)
  mesh = jax.make_mesh(
    (WORKERS,),
    (replay.AXIS,),
    axis_types=(AxisType.Auto,),
    devices=jax.devices()[:WORKERS],
  )

  def put(tree, specs):
    return jax.tree.map(
      lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec)), tree, specs
    )

  state = put(gs.workers.init(tx, params, WORKERS), specs)
  fn = gs.workers.parallel(
    lambda state, g: tx.update(g, state),
    runner='shard_map',
    num_workers=WORKERS,
    in_specs=(specs, replay.OWN),
    out_specs=(P(), specs),
  )
  rng = np.random.default_rng(0)
  grads = put(np.float32(rng.normal(size=(WORKERS, N))), replay.OWN)
  compiled = fn.lower(state, grads).compile(replay.QUICKLY)

  sent = []
  for t in range(WARMUP + 2):
    _, state = compiled(state, grads)
    metrics, plan = gs.metrics(state), gs.plan(tx, params, WORKERS, step=t)
    assert metrics['payload_bytes'] == plan.payload_bytes
    assert metrics['sent_bytes'] == plan.sent_bytes
    wanted = np.ceil(N * float(schedule(t)) - 1e-3)
    assert metrics['sent_elements'] <= wanted
    sent.append(plan.sent_bytes)
  fixed = gs.plan(gs.gtopk(0.01, axis_name=replay.AXIS), params, WORKERS)
  assert sent[WARMUP:] == [fixed.sent_bytes] * 2
  assert len(set(sent)) > 2
  assert plan.over_run(len(sent)).sent_bytes == sum(sent) / len(sent)
  (branches,) = gs.audit(compiled).branches
  assert branches == tuple(sent for _, sent in plan.rungs)
  assert fixed.sent_bytes == branches[0]
