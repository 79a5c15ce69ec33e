"""QSVRG: quantised stochastic variance-reduced gradients for finite sums."""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import Any, NamedTuple

from gradsparse import arguments
from gradsparse.collectives import AxisName
from gradsparse.collectives import Comm
from gradsparse.compressors.qsgd import quantise
from gradsparse.compressors.qsgd import scales
from gradsparse.exchanges import common
from gradsparse.wire import fixed_width
import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp


class QSVRG(NamedTuple):
  """A finite-sum optimizer.

  Attributes:
    init: params -> state.
    epoch: (state, data) -> state; run it under the workers' axis.
    bytes_per_epoch: (params) -> bytes a worker's messages hold in an epoch.
  """

  init: Callable[[Any], QSVRGState]
  epoch: Callable[[QSVRGState, Any], QSVRGState]
  bytes_per_epoch: Callable[[Any], int]


class QSVRGState(NamedTuple):
  """State of `qsvrg`; the same on all workers.

  Attributes:
    params: y, the centre of the next epoch: the mean of the last one's
      iterates.
    epochs: int32, epochs done.
  """

  params: Any
  epochs: jax.Array


def qsvrg(
  loss_fn: Callable[[Any, Any], jax.Array],
  *,
  learning_rate: float,
  inner_steps: int,
  levels: int | None = None,
  axis_name: AxisName | None,
  seed: int = 0,
) -> QSVRG:
  """Minimises the mean of loss_fn over all examples of all workers.

  An epoch around y: all workers exchange their full gradients, unquantised,
  and get grad f(y). Then T times, each worker draws one of its examples j and
  sends a quantised, variance-reduced gradient, and all take the mean:

    u = Q_s(grad f_j(x) - grad f_j(y) + grad f(y));  x <- x - lr mean_w(u)

  and y becomes the mean of the epoch's iterates x_1 .. x_T (x_1 = y). For
  strongly convex f (l2-regularised), the error shrinks by a constant factor
  an epoch; plain QSGD stalls at a noise floor.

  Differs from the paper: gradients are means over examples where it has sums
  over m functions, and the draw j is from the worker's own shard.

  Args:
    loss_fn: (params, example) -> loss of one example, regulariser included.
    learning_rate: > 0.
    inner_steps: T, at least 1.
    levels: s of Q_s with the 2-norm over the whole vector; None is
      ceil(sqrt(n)), the paper's.
    axis_name: mapped axis of the workers, or None.
    seed: of draws and rounding.

  Returns:
    init and epoch. `epoch` takes this worker's shard: arrays with examples
    first, of equal size on all workers.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.

  References:
    Alistarh et al., arXiv 1610.02132, section 3.3 and theorem 3.6.
  """
  arguments.function('loss_fn', loss_fn)
  learning_rate = arguments.number(
    'learning_rate', learning_rate, arguments.POSITIVE
  )
  inner_steps = arguments.whole_number('inner_steps', inner_steps, 1)
  if levels is not None:
    levels = arguments.whole_number('levels', levels, 1)
  axis_name = arguments.axis_name(axis_name)
  seed = arguments.seed(seed)

  def levels_of(size):
    return levels or math.ceil(math.sqrt(size))

  def quantised_mean(flat, key, comm):
    """Mean over workers of Q_s, each through packed words."""
    s = levels_of(flat.shape[0])
    width = math.ceil(math.log2(2 * s + 1))
    norm = scales(flat[None], 'l2')
    level = quantise(flat[None], norm, s, key)[0]
    codes = fixed_width.pack((level + s).astype(jnp.uint32), width)
    words = common.to_words({'codes': codes, 'norm': norm})
    messages = comm.gather(words)

    def decode(message):
      part = common.from_words(message, {'codes': codes, 'norm': norm})
      raw = fixed_width.unpack(part['codes'], flat.shape[0], width)
      return (raw.astype(jnp.float32) - s) * (part['norm'][0] / s)

    return jnp.mean(jax.vmap(decode)(messages), axis=0)

  def init(params):
    return QSVRGState(params, jnp.zeros([], jnp.int32))

  def epoch(state, data):
    comm = Comm(axis_name)
    flat, unravel = ravel_pytree(state.params)
    centre = comm.local(flat)
    size = jax.tree.leaves(data)[0].shape[0]

    def gradient(point, example):
      grads = jax.grad(loss_fn)(unravel(point), example)
      return ravel_pytree(grads)[0]

    full = jnp.mean(jax.vmap(gradient, in_axes=(None, 0))(centre, data), axis=0)
    full = comm.mean(full)
    key = jax.random.fold_in(jax.random.key(seed), state.epochs)
    key = jax.random.fold_in(key, comm.index())

    def inner(carry, number):
      x, total = carry
      draw, rounding = jax.random.split(jax.random.fold_in(key, number))
      j = jax.random.randint(draw, (), 0, size)
      example = jax.tree.map(lambda a: a[j], data)
      own = comm.local(x)
      u = gradient(own, example) - gradient(centre, example) + full
      step = quantised_mean(u, rounding, comm)
      return (x - learning_rate * step, total + x), None

    start = (flat, jnp.zeros_like(flat))
    (_, total), _ = jax.lax.scan(inner, start, jnp.arange(inner_steps))
    return QSVRGState(unravel(total / inner_steps), state.epochs + 1)

  def bytes_per_epoch(params):
    size = sum(x.size for x in jax.tree.leaves(params))
    width = math.ceil(math.log2(2 * levels_of(size) + 1))
    message = 4 * (1 + fixed_width.words(size, width))
    return 4 * size + inner_steps * message

  return QSVRG(init, epoch, bytes_per_epoch)
