"""Outer steps by name: DiLoCo and SparseLoCo."""

from __future__ import annotations

from typing import Any

from gradsparse import arguments
from gradsparse.recipes import dense
from gradsparse.recipes import gradient_dropping
from gradsparse.recipes import shared_arguments
from gradsparse.transform.described import described
from gradsparse.wrappers.outer import Outer
from gradsparse.wrappers.outer import outer
import optax


@described
def diloco(
  *,
  axis_name: Any,
  sync_every: int = 50,
  learning_rate: Any = 0.7,
  momentum: float = 0.9,
) -> Outer:
  """DiLoCo: the dense mean, and Nesterov momentum as the outer optimizer.

    gs.outer(gs.dense(axis_name=axis_name),
             optax.sgd(learning_rate, momentum=momentum, nesterov=True),
             sync_every=sync_every)

  Learning rate and momentum are to be tuned for each `sync_every`.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> params = {'w': jnp.zeros((300, 100))}
  >>> plan = gs.plan(gs.diloco(axis_name='site'), params, num_workers=2)
  >>> print(plan.sent_bytes, 'bytes once in', plan.every, 'steps')
  120004 bytes once in 50 steps

  Args:
    axis_name: mapped axis of the workers; None is one worker.
    sync_every: H, steps from one exchange to the next.
    learning_rate: of the outer optimizer; may be a schedule over exchanges.
    momentum: of the outer optimizer.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range.

  References:
    Douillard et al., arXiv 2311.08105, algorithm 1.
  """
  _check_learning_rate(learning_rate)
  momentum = arguments.number(
    'momentum', momentum, arguments.LESS_THAN_ONE, traced=True
  )
  return outer(
    dense(axis_name=axis_name),
    optax.sgd(learning_rate, momentum=momentum, nesterov=True),
    sync_every=sync_every,
  )


@described
def sparse_loco(
  *,
  axis_name: Any,
  sync_every: int = 30,
  k: int = 64,
  tile: int = 64,
  mean: shared_arguments.Mean = 'senders',
  error_decay: float = 0.95,
  learning_rate: Any = 1.0,
) -> Outer:
  """SparseLoCo: the largest elements of each tile, with error feedback.

    scheme = gs.gradient_dropping(
      k / tile**2, scope='tile', tile=tile, values='table4', mean=mean,
      error_decay=error_decay, axis_name=axis_name)
    gs.outer(scheme, optax.sgd(learning_rate), sync_every=sync_every)

  An entry takes 10 bits at k = 64 of 4096: 8 for its place and 2 for its value.
  Leaves of fewer than two dimensions stay dense.

  Two algorithms have this name. The paper divides by the number of workers, the
  code of its authors divides each coordinate by the number of workers that sent
  it, which is the default here.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> params = {'w': jnp.zeros((512, 512))}
  >>> plan = gs.plan(gs.sparse_loco(axis_name='site'), params, num_workers=2)
  >>> print(f'{8 * plan.payload_bytes / (64 * 64):.2f} bits an entry')
  10.04 bits an entry

  Args:
    axis_name: mapped axis of the workers; None is one worker.
    sync_every: H, steps from one exchange to the next.
    k: elements that are sent of a tile of tile x tile elements.
    tile: the longest side of a tile. Each side is the largest divisor of its
      dimension that is not longer, and a tile with k elements or fewer is sent
      whole: all of a leaf whose dimensions are prime, for instance. `gs.plan`
      has the bytes.
    mean: 'workers' or 'senders', see `gs.gradient_dropping`.
    error_decay: factor on the residual at each exchange.
    learning_rate: of the outer optimizer; may be a schedule over exchanges.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range.

  References:
    Sarfi et al., arXiv 2508.15706.
  """
  _check_learning_rate(learning_rate)
  tile = arguments.whole_number('tile', tile, 1)
  k = arguments.whole_number('k', k, 1)
  if k > tile**2:
    raise ValueError(
      f'k must be at most tile * tile, {tile**2} for tile={tile}, got {k}'
    )
  scheme = gradient_dropping(
    k / tile**2,
    scope='tile',
    tile=tile,
    values='table4',
    mean=mean,
    error_decay=error_decay,
    axis_name=axis_name,
  )
  return outer(scheme, optax.sgd(learning_rate), sync_every=sync_every)


def _check_learning_rate(value: Any) -> None:
  """Checks a learning rate, or a schedule of it.

  Raises:
    TypeError: the value is neither a number nor a function.
    ValueError: the number is negative, or not finite.
  """
  if not callable(value):
    arguments.number(
      'learning_rate', value, arguments.NOT_NEGATIVE, traced=True
    )
