"""A message that arrives one step late: what the sockets must allow for.

The phases of a step are called one by one here: a memory lets go of what was
packed (`Memory.sent`) before it hears what arrived (`Memory.arrived`), and a
message is exchanged in the step after the one that packed it.
"""

import gradsparse as gs
from gradsparse import extend
from gradsparse.transform import messages
from gradsparse.transform import receive
from gradsparse.transform import send
from gradsparse.transform import step
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import replay

AXIS, WORKERS, STEPS = gs.workers.AXIS, 3, 5
SHAPES = {'bias': (4,), 'kernel': (6, 5)}

SCHEMES = {
  'residual': gs.gradient_dropping(0.2, min_size=5, axis_name=AXIS),
  'momentum': gs.dgc(0.2, min_size=5, axis_name=AXIS),
  'variance': gs.variance_based(
    0.5, values='float32', ladder=(1.0,), min_size=5, axis_name=AXIS
  ),
  'estimate': gs.ef21(0.2, min_size=5, axis_name=AXIS),
}


def gradients():
  rng = np.random.default_rng(0)
  draw = lambda shape: rng.normal(size=(STEPS, WORKERS, *shape))
  return {k: np.float32(draw(shape)) for k, shape in SHAPES.items()}


def one_worker(tx, grads):
  """STEPS steps, each with the mean of the step before.

  Returns:
    For each step (update, what was sent, memory, what it held before that).
  """
  scheme, memory = tx.scheme, tx.scheme.memory
  zeros = {k: jnp.zeros(shape) for k, shape in SHAPES.items()}
  layout, state = tx.layout(zeros), tx.init(zeros)
  comm, late, out = extend.Comm(AXIS), None, []
  yes = jnp.bool_(True)
  for number in range(STEPS):
    now = jax.tree.map(lambda g, t=number: g[t], grads)
    extra = {'second_moment': jax.tree.map(jnp.square, now)}
    outgoing = step.accumulate(scheme, comm, layout, now, state, extra)
    outgoing = messages.pack(
      scheme, comm, outgoing, send.at_rung(scheme, outgoing, -1)
    )
    buckets, is_dense = outgoing.buckets, outgoing.buckets.is_dense()
    own = [message.own for message in outgoing.messages]
    sent = receive.deliveries(outgoing, own, yes)
    new = memory.sent(outgoing.kept, sent)  # at once
    updates = zeros
    if late is not None:
      received = messages.exchange(scheme, comm, late)  # of the step before
      means = receive.means_of(late, received, comm.size)
      updates = buckets.cut(memory.update(new, means, is_dense))
      new = memory.arrived(new, means, is_dense, yes)
    late = outgoing
    new, kept = buckets.cut_state(new), buckets.cut_state(outgoing.kept)
    arrays = buckets.treedef.flatten_up_to(sent)
    told = buckets.tree(
      [d.dense(s) for d, s in zip(arrays, buckets.shapes, strict=True)]
    )
    out.append((updates, buckets.cut(told), new, kept))
    state = state._replace(steps=state.steps + 1, memory=new)
  return out


@pytest.fixture(scope='module', params=SCHEMES)
def run(request):
  """(name, steps), with a leading worker axis everywhere."""
  tx = SCHEMES[request.param]
  fn = jax.vmap(lambda grads: one_worker(tx, grads), axis_name=AXIS)
  per_worker = {k: np.swapaxes(g, 0, 1) for k, g in gradients().items()}
  compiled = jax.jit(fn).lower(per_worker).compile(replay.QUICKLY)
  return request.param, jax.tree.map(np.asarray, compiled(per_worker))


def test_what_was_sent_leaves_the_memory_at_once(run):
  _, steps = run
  for _, sent, after, kept in steps:
    owed = kept.pending()['kernel']
    np.testing.assert_allclose(
      after.pending()['kernel'], owed - sent['kernel'], atol=1e-6
    )
    assert np.any(sent['kernel'])


def test_the_mean_arrives_one_step_later(run):
  name, steps = run
  assert not any(np.any(x) for x in steps[0][0].values())
  total = np.zeros(SHAPES['kernel'])
  for (_, sent, *_), (updates, *_) in zip(steps, steps[1:], strict=False):
    mean = np.mean(sent['kernel'], axis=0)
    total += mean
    expected = total if name == 'estimate' else mean
    for update in updates['kernel']:
      np.testing.assert_allclose(update, expected, atol=1e-6)


def test_dense_leaves_are_late_too(run):
  name, steps = run
  momentum = np.zeros(SHAPES['bias'])
  for (_, sent, *_), (updates, *_) in zip(steps, steps[1:], strict=False):
    expected = np.mean(sent['bias'], axis=0)
    if name == 'momentum':
      expected = momentum = 0.9 * momentum + expected
    np.testing.assert_allclose(updates['bias'][1], expected, atol=1e-6)
