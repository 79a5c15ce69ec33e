"""Runs one training step under three runners, and places its state.

A step is written once, for one worker, with a named axis:

  def step(params, opt_state, batch):
    own = gs.workers.local(params, 'workers')
    loss, grads = jax.value_and_grad(loss_fn)(own, batch)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss[None]

  opt_state = gs.workers.init(tx, params, num_workers)
  specs = gs.workers.specs(tx, params, num_workers)
  run = gs.workers.parallel(
      step, runner='shard_map', num_workers=num_workers,
      in_specs=(P(), specs, P('workers')),
      out_specs=(P(), specs, P('workers')))

`gs.workers.wrap` puts such a step into a `jax.shard_map` on the user's own
mesh.

Worker-local state (memories) has a leading worker axis outside the step and
none inside; shared state has none anywhere. The classes of a scheme's state
mark local fields (`sockets.ownership`). Other state is local if the update
types it varying between workers.
"""

from gradsparse.workers.agreement import DisagreementError
from gradsparse.workers.agreement import check_agreement
from gradsparse.workers.agreement import fingerprint
from gradsparse.workers.averaging import plan_average
from gradsparse.workers.axis import AXIS
from gradsparse.workers.placing import init
from gradsparse.workers.placing import params_spec
from gradsparse.workers.placing import shardings
from gradsparse.workers.placing import specs
from gradsparse.workers.placing import stack
from gradsparse.workers.resizing import resize
from gradsparse.workers.runners import RUNNERS
from gradsparse.workers.runners import Runner
from gradsparse.workers.runners import local
from gradsparse.workers.runners import mean
from gradsparse.workers.runners import parallel
from gradsparse.workers.wrapping import wrap

__all__ = (
  'AXIS',
  'DisagreementError',
  'RUNNERS',
  'Runner',
  'check_agreement',
  'fingerprint',
  'init',
  'local',
  'mean',
  'parallel',
  'params_spec',
  'plan_average',
  'resize',
  'shardings',
  'specs',
  'stack',
  'wrap',
)


def __dir__() -> list[str]:
  """Lists the public names only, without the modules that define them."""
  return sorted(__all__)
