"""Recipes whose messages are summed on their way to the workers."""

from __future__ import annotations

from typing import Literal

from gradsparse import arguments
from gradsparse import codes
from gradsparse import compressors
from gradsparse import exchanges
from gradsparse import memories
from gradsparse.codes.sparse import VALUES
from gradsparse.collectives import AxisName
from gradsparse.compressors.top_k import Density
from gradsparse.recipes import shared_arguments
from gradsparse.transform.layout import DensePaths

WIRE_DTYPES = ('float32', 'bfloat16')


@shared_arguments.recipe
def dense(
  *,
  wire_dtype: Literal['float32', 'bfloat16'] = 'float32',
  axis_name: AxisName | None,
  verify: bool = False,
) -> shared_arguments.Sockets:
  """The baseline: the exact mean, by one all-reduce.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> tx = gs.dense(wire_dtype='bfloat16', axis_name='workers')
  >>> params = {'w': jnp.zeros((1000, 100))}
  >>> print(gs.plan(tx, params, num_workers=4))
  leaf   elements  dense B  payload B  ratio  transport
  ['w']   100,000  400,000    200,016    2.0  dense, reduce-scatter
  total   100,000  400,000    200,016    2.0  sent by a worker: 300,012 B

  Args:
    wire_dtype: 'float32' rounds nothing; float64 leaves are sent as float64, 8
      bytes an element. 'bfloat16' rounds each worker's gradient, and then the
      mean, to 16 bits, and halves the bytes.
    {axis_name}
    {verify_sums}

  Returns:
    An optax transformation. Its update turns this worker's gradients into their
    mean. The update is equal on all workers and has the gradient's sign.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range.

  References:
    Patarasuk & Yuan, J. Parallel Distrib. Comput. 69(2), 2009: the ring
    all-reduce, whose bytes `gs.plan` counts.
  """
  if arguments.one_of('wire_dtype', wire_dtype, WIRE_DTYPES) == 'float32':
    code, exchange = codes.plain.of_leaves(), exchanges.all_reduce()
  else:
    code = codes.plain.bfloat16_of_parts()
    exchange = exchanges.reduce_scatter()
  return (
    memories.no_memory(),
    compressors.identity('dense', code, unbiased=wire_dtype == 'float32'),
    exchange,
  )


@shared_arguments.recipe
def random_k(
  density: float,
  *,
  memory: bool = False,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  seed: int = 0,
  verify: bool = False,
) -> shared_arguments.Sockets:
  """Random coordinates, the same on all workers: only values are sent.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> tx = gs.random_k(0.01, axis_name='workers')
  >>> params = {'w': jnp.zeros((1000, 100))}
  >>> print(gs.plan(tx, params, num_workers=4))
  leaf   elements  dense B  payload B  ratio  transport
  ['w']   100,000  400,000      4,000  100.0  random_k, all-reduce
  total   100,000  400,000      4,000  100.0  sent by a worker: 6,006 B

  Args:
    density: fraction of each leaf's elements that is sent, in (0, 1].
    memory: False multiplies the values by n / k, which makes the scheme
      unbiased, and drops the other elements. True keeps the other elements in a
      residual, sends them later, and does not multiply.
    {axis_name}
    {min_size}
    {dense_paths}
    {seed: the coordinates, which are drawn anew in each step}
    {verify_sums}

  Returns:
    An optax transformation. Its update turns this worker's gradients into the
    mean over workers at the drawn coordinates, and zero elsewhere. The update
    is equal on all workers and has the gradient's sign.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range.

  References:
    Stich et al., arXiv 1809.07599 (with a memory); Konecny et al., arXiv
    1610.05492 (a random mask, scaled).
  """
  memory = arguments.flag('memory', memory)
  return (
    memories.residual() if memory else memories.no_memory(),
    compressors.random_k(density, scaled=not memory),
    exchanges.all_reduce(),
  )


@shared_arguments.recipe
def power_sgd(
  rank: int,
  *,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  seed: int = 0,
  verify: bool = False,
) -> shared_arguments.Sockets:
  """Warm-started low-rank approximation of each matrix, with error feedback.

  A leaf is a matrix whose columns are its last index. The approximation error
  stays in the residual and is added to the next gradient.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> params = {'w': jnp.zeros((1000, 100))}
  >>> tx = gs.power_sgd(2, axis_name='workers')
  >>> print(gs.plan(tx, params, num_workers=4))
  leaf   elements  dense B  payload B  ratio  transport
  ['w']   100,000  400,000      8,800   45.5  power_sgd, all-reduce
  total   100,000  400,000      8,800   45.5  sent by a worker: 13,206 B

  Args:
    rank: rank of the approximation, a whole number, at least 1. The two factors
      of a leaf of m x n elements have rank (m + n) numbers; the leaf stays
      dense if these are not fewer than m n.
    {axis_name}
    {min_size: leaves of two or more dimensions that are larger than their two
      factors are compressed. 0 does the same; the other leaves always stay
      dense}
    {dense_paths}
    {seed: the first factors, which `init` draws}
    {verify_sums}

  Returns:
    An optax transformation. Its update turns this worker's gradients into an
    approximation of rank `rank` of the mean over workers of gradient plus
    residual. The update is equal on all workers and has the gradient's sign.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range.

  References:
    Vogels et al., arXiv 1905.13727, algorithms 1 and 2.
  """
  return (
    memories.residual(),
    compressors.power_sgd(rank, seed),
    exchanges.all_reduce(),
  )


@shared_arguments.recipe
def gtopk(
  density: Density,
  *,
  put_back: Literal['exact', 'paper'] = 'exact',
  topology: Literal['butterfly', 'tree', 'allgather'] = 'butterfly',
  scope: Literal['global'] = 'global',
  values: Literal['float32'] = 'float32',
  indices: Literal['elias_fano'] = 'elias_fano',
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  verify: bool = False,
) -> shared_arguments.Sockets:
  """Global top-k: at most k coordinates of the sum over workers survive.

  Pairs of workers merge their k entries and keep the k largest, in log2 P
  rounds. Momentum belongs after this scheme (`optax.sgd(lr, momentum=0.9)`).

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> tx = gs.gtopk(0.01, axis_name='workers')
  >>> params = {'w': jnp.zeros((1000, 100))}
  >>> print(gs.plan(tx, params, num_workers=8))
  leaf   elements  dense B  payload B  ratio  transport
  ['w']   100,000  400,000      5,080   78.7  gtopk, gTop-k butterfly
  total   100,000  400,000      5,080   78.7  sent by a worker: 15,240 B

  Args:
    {density: gtopk}
    put_back: the entries that a worker keeps for later. 'exact': those that a
      merge on their path dropped. 'paper': those outside the final mask; an
      entry that an inner merge dropped is lost if its coordinate entered the
      mask through another subtree.
    topology: 'butterfly' (recursive doubling), 'tree' (as printed, then a
      broadcast; twice the cost) or 'allgather' (algorithm 2: the exact top k of
      the sum); each for any number of workers.
    scope: 'global' only: a merge has one k.
    values: 'float32' only: hops carry sums, whose rounding error would belong
      to no worker.
    indices: 'elias_fano' only: about 2 + log2(1 / density) bits an index.
    {axis_name}
    {min_size}
    {dense_paths}
    {verify}

  Returns:
    An optax transformation. Its update turns this worker's gradients into the
    mean over workers at the k coordinates that survived, and zero elsewhere.
    The update is equal on all workers and has the gradient's sign.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range, or values do not fit the scheme.

  References:
    Shi et al., arXiv 1901.04359, algorithms 3 and 4.
  """
  arguments.one_of('scope', scope, ('global',))
  arguments.one_of('values', values, VALUES)
  arguments.one_of('indices', indices, ('elias_fano',))
  if values != 'float32':
    raise ValueError(
      "gtopk's values must be 'float32': its hops carry partial sums, whose "
      f'rounding error would belong to no worker; got {values!r}'
    )
  compressor = compressors.top_k(
    density, codes.sparse(indices, values), scope='global', name='gtopk'
  )
  return (
    memories.residual(),
    compressor,
    exchanges.gtopk(topology, put_back),
  )
