"""Recipes that send the elements that satisfy a rule.

The number of these elements depends on the data, so a message has the smallest
size of a ladder that is large enough for every worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gradsparse import arguments
from gradsparse import codes
from gradsparse import compressors
from gradsparse import exchanges
from gradsparse import memories
from gradsparse.codes.sparse import VALUES
from gradsparse.collectives import AxisName
from gradsparse.compressors import rule
from gradsparse.memories.variance import ROUNDING
from gradsparse.recipes import shared_arguments
from gradsparse.transform.layout import DensePaths


@shared_arguments.recipe
def strom(
  threshold: float,
  *,
  mean: shared_arguments.Mean = 'workers',
  error_decay: float = 1.0,
  ladder: Sequence[float] = rule.LADDER,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  verify: bool = False,
) -> shared_arguments.Sockets:
  """Sends sign(r) tau where the residual exceeds a fixed threshold tau.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> grads = {'w': jnp.array([3.0, -1.0, 0.5, -4.0])}
  >>> tx = gs.strom(2.0, axis_name=None)
  >>> updates, state = tx.update(grads, tx.init(grads))
  >>> print(updates['w'], gs.pending(state)['w'])
  [ 2.  0.  0. -2.] [ 1.  -1.   0.5 -2. ]

  Args:
    threshold: tau, in units of the gradient, > 0.
    {mean}
    {error_decay}
    {ladder}
    {axis_name}
    {min_size}
    {dense_paths}
    {verify}

  Returns:
    An optax transformation. Its update turns this worker's gradients into the
    mean over workers of their decoded messages: tau, -tau or zero. The update
    is equal on all workers and has the gradient's sign.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range.

  References:
    Strom, Interspeech 2015.
  """
  return (
    memories.residual(error_decay),
    compressors.by_rule(
      rule.strom(threshold),
      codes.signs_of(threshold),
      name='strom',
      ladder=ladder,
      positive=(threshold,),
    ),
    exchanges.all_gather(mean),
  )


@shared_arguments.recipe
def variance_based(
  alpha: float,
  *,
  decay: float = 0.999,
  values: shared_arguments.Values = 'exponent4',
  indices: shared_arguments.Indices | None = None,
  rounding: Literal['keep', 'paper'] = 'keep',
  mean: shared_arguments.Mean = 'workers',
  error_decay: float = 1.0,
  ladder: Sequence[float] = rule.LADDER,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  seed: int = 0,
  verify: bool = False,
) -> shared_arguments.Sockets:
  """Sends unambiguous elements: those with r^2 > alpha v.

  v is the sum of the squared contributions of single examples to r. The update
  takes a step's squares as `second_moment`, a tree like the gradients (see
  `gs.value_and_grad_moments`). Elements that are not sent are zero for the
  optimizer that follows; weight decay belongs after the exchange.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> grads = {'w': jnp.array([3.0, -1.0, 0.5, -4.0])}
  >>> moment = {'w': jnp.array([0.1, 1.0, 1.0, 1.0])}
  >>> tx = gs.variance_based(1.0, axis_name=None)
  >>> state = tx.init(grads)
  >>> updates, state = tx.update(grads, state, second_moment=moment)
  >>> print(updates['w'], gs.pending(state)['w'])
  [ 4.  0.  0. -4.] [-1.  -1.   0.5  0. ]

  Args:
    alpha: the factor on v (eq. 3), > 0; the paper uses 1, 1.5 and 2.
    decay: factor on v in each step, in (0, 1]; the paper's zeta. With
      `error_decay` less than 1 its square is a factor on v, too.
    {values: 'qsgd4', 4 bits, and 'ternary', 1 bit, which round at random
      without bias (sections 4.2 and 4.5). Rounding errors stay in the memory
      and are sent later (but see `rounding`)}
    indices: the code of a coordinate. 'word28', 28 bits, which with the value's
      4 bits make a word (as printed; needs values='exponent4'); 'elias_fano',
      fewer bits; 'run_length', 16 bits (needs values='float32'). None is
      'word28' for 'exponent4', else 'elias_fano'. With any code, a message of
      all elements has a bitmap instead, and so has a message of an eighth or
      more if a value takes 8 bits or fewer.
    rounding: 'keep' leaves rounding errors in r; 'paper' drops them (needs
      values='exponent4').
    {mean}
    {error_decay}
    {ladder}
    {axis_name}
    {min_size}
    {dense_paths}
    {seed: the random roundings of 'qsgd4' and 'ternary', which differ between
      steps and between workers}
    {verify}

  Returns:
    An optax transformation. Its update turns this worker's gradients into the
    mean over workers of the r that they sent, and zero where none sent
    anything. The update is equal on all workers and has the gradient's sign.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range, or two arguments do not go
      together; from update: `second_moment` is missing.

  References:
    Tsuzuku et al., arXiv 1802.06058, algorithm 1 and section 4.2.
  """
  arguments.one_of('values', values, VALUES)
  arguments.one_of('rounding', rounding, ROUNDING)
  if refused := ROUNDING[rounding].refuses(values):
    raise ValueError(f'rounding={rounding!r} {refused}, got {values!r}')
  if indices is None:
    indices = 'word28' if values == 'exponent4' else 'elias_fano'
  return (
    memories.variance(decay, alpha, rounding, error_decay),
    compressors.by_rule(
      rule.variance(alpha),
      codes.sparse(indices, values),
      name='variance_based',
      ladder=ladder,
      positive=(alpha,),
    ),
    exchanges.all_gather(mean),
  )


@shared_arguments.recipe
def variance_strom(
  alpha: float,
  *,
  threshold: float,
  decay: float = 0.999,
  mean: shared_arguments.Mean = 'workers',
  error_decay: float = 1.0,
  ladder: Sequence[float] = rule.LADDER,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  verify: bool = False,
) -> shared_arguments.Sockets:
  """The hybrid: sign(r) tau where |r| > tau and r^2 > alpha v.

  As for `variance_based`, v is the sum of the squared contributions of single
  examples to r, and the update takes a step's squares as `second_moment`.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> grads = {'w': jnp.array([3.0, -1.0, 0.5, -4.0])}
  >>> moment = {'w': jnp.array([9.5, 1.0, 1.0, 1.0])}
  >>> tx = gs.variance_strom(1.0, threshold=2.0, axis_name=None)
  >>> state = tx.init(grads)
  >>> updates, state = tx.update(grads, state, second_moment=moment)
  >>> print(updates['w'], gs.pending(state)['w'])
  [ 0.  0.  0. -2.] [ 3.  -1.   0.5 -2. ]

  Args:
    alpha: the factor on v in the variance criterion, > 0.
    threshold: tau, in units of the gradient, > 0.
    decay: factor on v in each step, in (0, 1]. With `error_decay` less than 1
      its square is a factor on v, too.
    {mean}
    {error_decay}
    {ladder}
    {axis_name}
    {min_size}
    {dense_paths}
    {verify}

  Returns:
    An optax transformation. Its update turns this worker's gradients into the
    mean over workers of their decoded messages: tau, -tau or zero. The update
    is equal on all workers and has the gradient's sign.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range; from update: `second_moment` is
      missing.

  References:
    Tsuzuku et al., arXiv 1802.06058, section 4.5.
  """
  return (
    memories.variance(decay, error_decay=error_decay),
    compressors.by_rule(
      rule.variance_strom(alpha, threshold),
      codes.signs_of(threshold),
      name='variance_strom',
      ladder=ladder,
      positive=(alpha, threshold),
    ),
    exchanges.all_gather(mean),
  )


@shared_arguments.recipe
def ada_comp(
  *,
  bin_size: int | None = None,
  mean: shared_arguments.Mean = 'workers',
  error_decay: float = 1.0,
  ladder: Sequence[float] = rule.LADDER,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  verify: bool = False,
) -> shared_arguments.Sockets:
  """AdaComp: sends the elements that this step lifts to their bin's maximum.

  An element is sent if |H| >= the bin's max |G|, where G is gradient plus
  residual and H is G plus the gradient once more. Its value is the sign of G
  times the mean of the leaf's bin maxima.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> grads = {'w': jnp.array([3.0, -1.0, 0.5, -4.0])}
  >>> tx = gs.ada_comp(bin_size=2, axis_name=None)
  >>> updates, state = tx.update(grads, tx.init(grads))
  >>> print(updates['w'], gs.pending(state)['w'])
  [ 3.5  0.   0.  -3.5] [-0.5 -1.   0.5 -0.5]

  Args:
    bin_size: elements of a bin, at least 1; None is 50 for leaves of three or
      more dimensions (convolutions) and 500 otherwise.
    {mean}
    {error_decay}
    {ladder}
    {axis_name}
    {min_size}
    {dense_paths}
    {verify}

  Returns:
    An optax transformation. Its update turns this worker's gradients into the
    mean over workers of their decoded messages, and zero where none sent
    anything. The update is equal on all workers and has the gradient's sign.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range.

  References:
    Chen et al., AAAI 2018, arXiv 1712.02679, algorithm 2.
  """
  return (
    memories.residual(error_decay),
    compressors.by_rule(
      rule.ada_comp(bin_size),
      codes.sparse('elias_fano', 'sign2'),
      name='ada_comp',
      ladder=ladder,
    ),
    exchanges.all_gather(mean),
  )
