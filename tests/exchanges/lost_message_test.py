"""An exchange to which one worker's message does not come: nothing is lost."""

import gradsparse as gs
from gradsparse import extend
import jax
import jax.numpy as jnp
import numpy as np

AXIS, WORKERS, LOST = 'workers', 4, 1


def without_one():
  """The mean of the messages that came, whose number is the weight."""

  def run(message, comm):
    came = comm.index() != LOST
    own = message.own.only_if(came)
    return extend.Exchanged(
      total=comm.sum(own.add_to(own.zeros())),
      dense=comm.sum(message.dense),
      weight=comm.size - 1,
      ok=comm.sum((~message.ok).astype(jnp.float32)) == 0,
      delivered=own,
      extras=extend.Extras(message.dense_bytes),
    )

  return extend.Exchange('without_one', run)


def test_a_message_that_is_lost_stays_pending():
  scheme = gs.compressed_mean(
    extend.memories.residual(),
    extend.compressors.top_k(0.25, extend.codes.sparse()),
    without_one(),
    axis_name=AXIS,
    min_size=0,
  )
  like = {'w': jnp.zeros((4, 5))}
  step = jax.jit(
    jax.vmap(scheme.update, (0, 0), axis_name=AXIS, axis_size=WORKERS)
  )
  init = jax.vmap(lambda _: scheme.init(like), axis_name=AXIS)
  state = init(jnp.arange(WORKERS))
  rng = np.random.default_rng(0)
  flowed, returned = np.zeros((WORKERS, 4, 5)), np.zeros((4, 5))
  for _ in range(6):
    grads = np.float32(rng.normal(size=(WORKERS, 4, 5)))
    means, state = step({'w': grads}, state)
    assert np.all(means['w'] == means['w'][:1])
    flowed += grads
    returned += np.asarray(means['w'][0])
  pending = np.asarray(gs.pending(state)['w'])
  delivered = flowed - pending
  np.testing.assert_allclose(delivered[LOST], 0, atol=1e-5)
  assert np.count_nonzero(returned) > 5
  np.testing.assert_allclose(
    (WORKERS - 1) * returned, delivered.sum(0), atol=1e-5
  )
