"""A schedule inside of one program: what is planned, reported and compiled."""

import gradsparse as gs
import jax
from jax.sharding import AxisType
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest
from tests import replay

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
