"""A message that arrives one step late: what the sockets must allow for.

The loop is written here, by the sockets alone: a memory lets go of what was
sent (`Memory.sent`) before it hears what arrived (`Memory.arrived`).
"""

import gradsparse as gs
from gradsparse import extend
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
  memory, compressor, exchange = tx.scheme[:3]
  zeros = {k: jnp.zeros(shape) for k, shape in SHAPES.items()}
  layout, state = tx.layout(zeros), memory.init(zeros)
  whole, comm = layout.is_dense(), extend.Comm(AXIS)
  late, out = None, []

  def joined(compressed, dense):
    numbers = (*layout.compressed, *layout.dense)
    return layout.tree(dict(zip(numbers, (*compressed, *dense), strict=True)))

  for step in range(STEPS):
    now = jax.tree.map(lambda g, t=step: g[t], grads)
    extra = {'second_moment': jax.tree.map(jnp.square, now)}
    kept = memory.accumulate(now, state, extra, whole)
    flat = layout.treedef.flatten_up_to(memory.signals(now, kept, whole))
    key = jax.random.key(step)
    leaves = extend.MessageLeaves(layout.compressed_shapes)
    ctx = extend.Context(leaves, comm.size, jnp.int32(step), key, key)
    signals = [flat[i] for i in layout.compressed]
    dense = [flat[i].value for i in layout.dense]
    if compressor.ladder:
      ctx = ctx._replace(prepared=compressor.ladder.look(signals, ctx))
      ctx = ctx._replace(rung=compressor.ladder.rungs(ctx.shapes)[-1])
    rounded = compressor.code.round(compressor.select(signals, ctx), ctx)
    own = compressor.code.decode(rounded, ctx, 1)
    message = extend.Message(
      compressor.code.pack(rounded, ctx),
      rounded,
      own,
      compressor.code,
      ctx,
      dense,
      jnp.bool_(True),
    )
    sent = joined(
      own.deliveries(), [extend.Full(x, is_dense=True) for x in dense]
    )
    state = memory.sent(kept, sent)  # at once
    updates = zeros
    if late is not None:
      back = exchange.run(late, comm)  # the message of the step before
      means = joined(
        [x / back.weight for x in back.total],
        [x / comm.size for x in back.dense],
      )
      updates = memory.update(state, means, whole)
      state = memory.arrived(state, means, whole, jnp.bool_(True))
    late = message
    told = joined(
      [d.dense(s) for d, s in zip(own.deliveries(), ctx.shapes, strict=True)],
      dense,
    )
    out.append((updates, told, state, kept))
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
