"""Recipes whose messages are added up on their way to the workers."""

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
  """The exact mean, by one all-reduce: the baseline.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> tx = gs.dense(wire_dtype='bfloat16', axis_name='workers')
  >>> params = {'w': jnp.zeros((1000, 100))}
  >>> print(gs.plan(tx, params, num_workers=4))
  leaf   elements  dense B  payload B  ratio  transport
  ['w']   100,000  400,000    200,016    2.0  dense, reduce-scatter
  total   100,000  400,000    200,016    2.0  sent by a worker: 300,012 B

  Args:
    wire_dtype: 'float32': nothing is rounded, and float64 leaves travel as
      float64, at 8 bytes an element. Or 'bfloat16': each worker's gradient, and
      then the mean, are rounded to 16 bits, and half the bytes move.
    {axis_name}
    {verify_sums}

  Returns:
    An optax transformation. Its update takes this worker's gradients and gives,
    on all workers alike and with the gradient's sign, their mean.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.

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
  """Random coordinates, the same on all workers: only values travel.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> tx = gs.random_k(0.01, axis_name='workers')
  >>> params = {'w': jnp.zeros((1000, 100))}
  >>> print(gs.plan(tx, params, num_workers=4))
  leaf   elements  dense B  payload B  ratio  transport
  ['w']   100,000  400,000      4,000  100.0  random_k, all-reduce
  total   100,000  400,000      4,000  100.0  sent by a worker: 6,006 B

  Args:
    density: fraction of each leaf's elements that is sent, in (0, 1].
    memory: False multiplies what is sent by n / k, which makes it unbiased:
      what is not sent is lost, nothing in expectation. True keeps in a residual
      what was not sent, sends it later, and multiplies nothing.
    {axis_name}
    {min_size: no leaf stays dense. 0 compresses every leaf}
    {dense_paths}
    {seed: the coordinates, which are drawn anew in each step}
    {verify_sums}

  Returns:
    An optax transformation. Its update takes this worker's gradients and gives,
    on all workers alike and with the gradient's sign, the mean over workers at
    the drawn coordinates, and zero elsewhere.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.

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
  """Low-rank approximation of each matrix, warm-started, error feedback.

  A leaf is a matrix whose columns are its last index. What the approximation
  lacks stays in the residual and is added to the next gradient.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> params = {'w': jnp.zeros((1000, 100))}
  >>> tx = gs.power_sgd(2, axis_name='workers')
  >>> print(gs.plan(tx, params, num_workers=4))
  leaf   elements  dense B  payload B  ratio  transport
  ['w']   100,000  400,000      8,800   45.5  power_sgd, all-reduce
  total   100,000  400,000      8,800   45.5  sent by a worker: 13,206 B

  Args:
    rank: of the approximation, a whole number, at least 1. A leaf of m x n
      elements sends its two factors, rank (m + n) numbers; it stays dense
      where these are not fewer than m n.
    {axis_name}
    {min_size: all leaves of two and more dimensions are compressed that are
      larger than their two factors together. 0 says the same; the other leaves
      always stay dense}
    {dense_paths}
    {seed: the first factors, which `init` draws}
    {verify_sums}

  Returns:
    An optax transformation. Its update takes this worker's gradients and gives,
    on all workers alike and with the gradient's sign, an approximation of rank
    `rank` of the mean over workers of gradient plus residual.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.

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
  """Global top-k: at most k coordinates of the whole sum survive.

  Pairs of workers merge their k entries and keep the k largest, in log2 P
  rounds. Momentum comes after it (`optax.sgd(lr, momentum=0.9)`).

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> tx = gs.gtopk(0.01, axis_name='workers')
  >>> params = {'w': jnp.zeros((1000, 100))}
  >>> print(gs.plan(tx, params, num_workers=8))
  leaf   elements  dense B  payload B  ratio  transport
  ['w']   100,000  400,000      5,080   78.7  gtopk, gTop-k butterfly
  total   100,000  400,000      5,080   78.7  sent by a worker: 15,240 B

  Args:
    {density: gtopk}
    put_back: what a worker keeps for later. 'exact': what no merge on its path
      kept. 'paper': what the final mask lacks; gradient that an inner merge
      dropped, but whose coordinate came into the mask through another subtree,
      is lost.
    topology: 'butterfly' (recursive doubling), 'tree' (as printed, then a
      broadcast; twice the cost) or 'allgather' (algorithm 2: the exact top k of
      the sum); each for any number of workers.
    scope: 'global' only: a merge has one k.
    values: 'float32' only: hops carry sums, whose rounding error would belong
      to no worker.
    indices: 'elias_fano' only: about 2 + log2(1 / density) bits each.
    {axis_name}
    {min_size: no leaf stays dense. 0 compresses every leaf}
    {dense_paths}
    {verify}

  Returns:
    An optax transformation. Its update takes this worker's gradients and gives,
    on all workers alike and with the gradient's sign, the sum over workers at
    the k coordinates that survived, divided by their number, and zero
    elsewhere.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range, or a combination without meaning.

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
