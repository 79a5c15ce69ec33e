"""1-bit Adam: a dense warm-up, then a momentum of one bit an element."""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any

from gradsparse import arguments
from gradsparse import codes
from gradsparse import compressors
from gradsparse import exchanges
from gradsparse import memories
from gradsparse.collectives import AxisName
from gradsparse.collectives import Comm
from gradsparse.memories.basic import zeros
from gradsparse.recipes import dense
from gradsparse.state.inspection import check_own
from gradsparse.state.scheme import OneBitAdamState
from gradsparse.traffic import counting
from gradsparse.transform import inputs
from gradsparse.transform.compressed_mean import compressed_mean
from gradsparse.transform.described import Described
from gradsparse.transform.described import described
from gradsparse.transform.layout import DensePaths
import jax
import jax.numpy as jnp


@described
def one_bit_adam(
  learning_rate: float | Callable[[Any], Any],
  *,
  freeze_step: int,
  b1: float = 0.9,
  b2: float = 0.999,
  eps: float = 1e-8,
  weight_decay: float = 0.0,
  bucket_size: int = 512,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  verify: bool = False,
) -> Described:
  """Adam whose momentum is exchanged with one bit an element.

  The first `freeze_step` updates are Adam's on the exact mean g of the
  gradients. After them the second moment v stays as it is, and each worker w
  sends the signs of its own momentum:

    m_w = b1 m + (1 - b1) g_w
    m   = C(mean over workers of C(m_w + e_w) + d)

  C keeps the sign of each element and the 2-norm of each bucket. The errors e_w
  and d of the two roundings are added to the next values. m is equal on all
  workers, and so are v and the update

    -learning_rate (m' / (sqrt(v') + eps) + weight_decay params)

  with Adam's bias corrections m' and v'; that of v stays as it was at the
  freeze. A worker sends 2 (P - 1) / P times the signs in an update.

  Adam cannot follow a scheme that sends few elements of a gradient: its second
  moment would be that of rare large numbers. Here the second moment is that of
  dense gradients, as it was when it was frozen.

  This is a whole optimizer: nothing needs to follow it. A gradient that is not
  finite on one worker makes the update NaN on all, and changes neither moments
  nor errors.

  >>> import gradsparse as gs
  >>> tx = gs.one_bit_adam(1e-3, freeze_step=100, axis_name='workers')
  >>> params = {'w': jnp.zeros((1000, 100))}
  >>> print(gs.plan(tx, params, num_workers=4))
  leaf   elements  dense B  payload B  ratio  transport
  ['w']   100,000  400,000     13,344   30.0  one_bit_adam, reduce-scatter
  total   100,000  400,000     13,344   30.0  sent by a worker: 20,004 B
  steps    density  payload B   sent B  ratio
  0 to 99        1    400,000  600,006    1.0
  100 on         1     13,344   20,004   30.0

  Args:
    learning_rate: a number, or a function of the number of accepted updates.
    freeze_step: updates before the second moment is frozen, at least 1.
    b1: decay of the momentum, in [0, 1).
    b2: decay of the second moment, in [0, 1). What is frozen is a mean over
      about 1 / (1 - b2) squares. With 0.95 a training broke in that step, with
      0.999 it did not (docs/outer_steps.md).
    eps: added to the root of the second moment, > 0.
    weight_decay: factor of the parameters in the update, at least 0.
    bucket_size: consecutive elements of the concatenated leaves that share a
      magnitude, at least 1. In the paper a tensor does.
    axis_name: mapped axis of the workers; None is one worker, which rounds like
      any other.
    min_size: leaves with fewer elements stay dense: they have dense Adam for
      ever, and their second moment is not frozen. None: no leaf stays dense.
    dense_paths: leaves that stay dense as well, see `gs.compressed_mean`. One
      bit cannot express zero: rows that never get a gradient, such as those of
      an unused embedding, belong here.
    verify: whether every message has a checksum, see `gs.compressed_mean`.

  Raises:
    TypeError: an argument is of the wrong kind; from update: a leaf is not
      floating-point.
    ValueError: an argument is out of range; from update: the state is another
      transformation's, or parameters are missing although there is weight
      decay.

  References:
    Tang et al., arXiv 2102.02888, algorithm 1. DeepSpeed's code differs: it
    has no bias corrections, rounds padding too, and forgets both errors when a
    checkpoint is loaded.
  """
  if not callable(learning_rate):
    learning_rate = arguments.number(
      'learning_rate', learning_rate, arguments.POSITIVE
    )
  freeze_step = arguments.whole_number('freeze_step', freeze_step, 1)
  b1 = arguments.number('b1', b1, arguments.LESS_THAN_ONE)
  b2 = arguments.number('b2', b2, arguments.LESS_THAN_ONE)
  eps = arguments.number('eps', eps, arguments.POSITIVE)
  decay = arguments.number('weight_decay', weight_decay, arguments.NOT_NEGATIVE)
  exact = dense(axis_name=axis_name, verify=verify)
  scheme = compressed_mean(
    memories.residual(),
    compressors.identity(
      'one_bit_adam', codes.one_bit.of_parts(bucket_size, magnitude=True)
    ),
    exchanges.reduce_scatter(),
    min_size=min_size,
    dense_paths=dense_paths,
    axis_name=axis_name,
    verify=verify,
  )

  def init(params):
    inputs.check_floating(params, 'parameters')
    return OneBitAdamState(
      jnp.int32(0), zeros(params), zeros(params), scheme.init(params)
    )

  def phase_at(step):
    return (step >= freeze_step).astype(jnp.int32)

  def exchanged(grads, state, stays):
    """The mean of gradients or of momenta, float32, and the scheme's state."""
    comm, before = Comm(axis_name), state.scheme

    def warm_up():
      empty = exact.init(grads)._replace(steps=before.steps, stats=before.stats)
      mean, after = exact.update(grads, empty)
      return mean, before._replace(steps=after.steps, stats=after.stats)

    def compressed():
      momenta = jax.tree.map(
        lambda dense, m, g: g if dense else _moved(b1, m, g),
        stays,
        state.mu,
        grads,
      )
      mean, after = scheme.update(momenta, before)
      # A rejected momentum is no error of a rounding: the moments keep it.
      accepted = after.stats.rejected_steps == before.stats.rejected_steps
      memory = jax.tree.map(
        lambda new, old: jnp.where(accepted, new, old),
        after.memory,
        before.memory,
      )
      return mean, after._replace(memory=memory)

    def of_one_type(phase):
      mean, after = phase()
      mean = jax.tree.map(lambda x: x.astype(jnp.float32), mean)
      return mean, after.typed(comm)

    phases = [
      functools.partial(of_one_type, phase) for phase in (warm_up, compressed)
    ]
    recorder = counting.active()
    if recorder is None:
      return comm.switch(phase_at(state.step), phases)
    return recorder.switch(phases, (1.0, 1.0), axis_name, phase_at)

  def update(updates, state, params=None, **extra):
    del extra
    check_own('one_bit_adam', state, OneBitAdamState)
    inputs.check_floating(updates, 'gradients')
    inputs.check_like(
      updates, state.mu, 'gradients', 'the parameters given to init'
    )
    if decay and params is None:
      raise ValueError(
        'params must be given to update where weight_decay is not 0, got None'
      )
    grads = jax.tree.map(jnp.asarray, updates)
    stays = scheme.layout(grads).is_dense()
    mean, after = exchanged(grads, state, stays)
    accepted = Comm(axis_name).uniform(
      after.stats.rejected_steps == state.scheme.stats.rejected_steps
    )
    frozen = state.step >= freeze_step
    step = state.step + jnp.where(accepted, 1, 0)
    rate = learning_rate
    if callable(rate):
      rate = rate(state.step)

    def leaf(dense, m, v, x, g, p):
      """The leaf's update, and its new moments."""
      is_frozen = frozen & (not dense)
      new_m = jnp.where(is_frozen, x, _moved(b1, m, x))
      new_v = jnp.where(is_frozen, v, _moved(b2, v, jnp.square(x)))
      counted = jnp.where(is_frozen, freeze_step, step)
      root = jnp.sqrt(new_v / (1 - b2 ** counted.astype(v.dtype)))
      out = new_m / (1 - b1 ** step.astype(m.dtype)) / (root + eps)
      if decay:
        out += decay * p.astype(out.dtype)
      return (
        jnp.where(accepted, -rate * out, jnp.nan).astype(g.dtype),
        jnp.where(accepted, new_m, m),
        jnp.where(accepted, new_v, v),
      )

    leaves = jax.tree.map(
      leaf, stays, state.mu, state.nu, mean, grads, params if decay else grads
    )
    out, mu, nu = (
      jax.tree.map(lambda _, new, i=i: new[i], grads, leaves) for i in range(3)
    )
    return out, OneBitAdamState(step, mu, nu, after)

  return Described.of(init, update)


def _moved(decay: float, average: jax.Array, new: jax.Array) -> jax.Array:
  """The moving average with a new value, float32."""
  return decay * average + (1 - decay) * new.astype(average.dtype)
