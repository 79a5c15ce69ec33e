"""What a scheme is compared with: the exact mean, and random coordinates."""

from __future__ import annotations

from typing import Literal

from gradsparse import arguments
from gradsparse import codes
from gradsparse import compressors
from gradsparse import exchanges
from gradsparse import memories
from gradsparse.collectives import AxisName
from gradsparse.recipes import shared_arguments
from gradsparse.transform.compressed_mean import CompressedMean
from gradsparse.transform.compressed_mean import compressed_mean
from gradsparse.transform.layout import DensePaths

WIRE_DTYPES = ('float32', 'bfloat16')


@shared_arguments.recipe
def dense(
  *,
  wire_dtype: Literal['float32', 'bfloat16'] = 'float32',
  axis_name: AxisName | None,
  verify: bool = False,
) -> CompressedMean:
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
  return compressed_mean(
    memories.no_memory(),
    compressors.identity('dense', code, unbiased=wire_dtype == 'float32'),
    exchange,
    axis_name=axis_name,
    verify=verify,
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
) -> CompressedMean:
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
  return compressed_mean(
    memories.residual() if memory else memories.no_memory(),
    compressors.random_k(density, scaled=not memory),
    exchanges.all_reduce(),
    axis_name=axis_name,
    min_size=min_size,
    dense_paths=dense_paths,
    seed=seed,
    verify=verify,
  )
