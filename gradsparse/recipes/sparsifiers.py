"""Recipes that send few coordinates: top-k and random ones.

A density may be a schedule, a function of the step, or traced. `init` checks
what a schedule returns at step 0. Where a later or a traced density is not in
(0, 1], all workers reject the step, as they do a gradient that is not finite.
"""

from __future__ import annotations

from gradsparse import arguments
from gradsparse import codecs
from gradsparse import compressors
from gradsparse import exchanges
from gradsparse import memories
from gradsparse.collectives import AxisName
from gradsparse.compressed_mean import CompressedMean
from gradsparse.compressed_mean import compressed_mean
from gradsparse.compressors.top_k import Density
from gradsparse.layout import DensePaths


def gradient_dropping(
  density: Density,
  *,
  scope: str = 'global',
  values: str = 'float32',
  indices: str = 'elias_fano',
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
) -> CompressedMean:
  """Sends the largest entries of gradient plus residual.

    e <- e + g;  send top-k(e);  e <- e - sent

  Args:
    density: fraction sent, in (0, 1]; a float, a schedule or traced.
    scope: 'global' is one threshold for the whole gradient (the paper's),
      'leaf' one for each.
    values: 'float32', 'bfloat16' or 'exponent4' (4 bits; the rounding error
      stays in the residual).
    indices: 'elias_fano', or 'run_length' (DGC's 16-bit runs).
    axis_name: see the module.
    min_size: see the module. By default, with scope 'leaf', leaves of fewer
      than two dimensions stay dense; with 'global' all are compressed.
    dense_paths: see the module.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.

  References:
    Aji & Heafield, arXiv 1704.05021.
  """
  arguments.one_of('values', values, codecs.VALUES)
  compressor = compressors.top_k(
    density,
    codecs.codec(indices, values),
    scope=scope,
    name='gradient_dropping',
    dense_1d=scope == 'leaf',
  )
  return compressed_mean(
    memories.residual(),
    compressor,
    exchanges.all_gather(),
    axis_name=axis_name,
    min_size=min_size,
    dense_paths=dense_paths,
  )


def dgc(
  density: Density,
  *,
  momentum: float = 0.9,
  nesterov: bool = False,
  factor_masking: bool = True,
  sample_rate: float | None = None,
  scope: str = 'leaf',
  values: str = 'float32',
  indices: str = 'elias_fano',
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  seed: int = 0,
) -> CompressedMean:
  """Deep Gradient Compression: momentum correction and factor masking.

    u <- m u + g;  v <- v + u;  send top-k(v);  v, u <- 0 where sent

  **Plain SGD follows** (`optax.sgd(lr)` without momentum): the momentum is in
  here. With Adam after it, which neither paper defines, use `momentum=0.0`:
  residual accumulation, and Adam's own moments after the exchange. A second
  momentum in the same chain is warned of.

  Args:
    density: fraction sent of each leaf, in (0, 1]; a float, a schedule (see
      `schedules.dgc_warmup`) or traced.
    momentum: m, in [0, 1).
    nesterov: u <- m (u + g); v <- v + u + g.
    factor_masking: clear u where something was sent.
    sample_rate: None sends exactly the k = density n largest. Otherwise the
      threshold is estimated: of each leaf ceil(sample_rate n) elements are
      drawn (the paper: 0.001 to 0.01), and all that reach the quantile of the
      sample are sent, about k. Where more than ceil(1.3 k) reach it, exactly
      the k largest are. A message has ceil(1.3 k) slots, empty or not.
    scope: 'leaf' (the paper's) or 'global'.
    values: 'float32', 'bfloat16' or 'exponent4'.
    indices: 'elias_fano', or 'run_length' (the paper's 16-bit runs).
    axis_name: see the module.
    min_size: see the module. By default, with scope 'leaf', leaves of fewer
      than two dimensions stay dense and keep their momentum; with 'global'
      all are compressed.
    dense_paths: see the module.
    seed: of the sample.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.

  References:
    Lin et al., arXiv 1712.01887, eq. 7, eq. 10, sections 3.3 and 5.
  """
  arguments.one_of('values', values, codecs.VALUES)
  compressor = compressors.top_k(
    density,
    codecs.codec(indices, values),
    scope=scope,
    sample_rate=sample_rate,
    name='dgc',
    dense_1d=scope == 'leaf',
  )
  return compressed_mean(
    memories.momentum_correction(momentum, nesterov, factor_masking),
    compressor,
    exchanges.all_gather(),
    axis_name=axis_name,
    min_size=min_size,
    dense_paths=dense_paths,
    seed=seed,
  )


def gtopk(
  density: Density,
  *,
  put_back: str = 'exact',
  topology: str = 'butterfly',
  scope: str = 'global',
  values: str = 'float32',
  indices: str = 'elias_fano',
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
) -> CompressedMean:
  """Global top-k: at most k coordinates of the whole sum survive.

  Pairs of workers merge their k entries and keep the k largest, in log2 P
  rounds. Momentum comes after it (`optax.sgd(lr, momentum=0.9)`).

  Args:
    density: fraction sent, in (0, 1]; a float, a schedule (see
      `schedules.gtopk_warmup`) or traced.
    put_back: 'exact' returns to each worker what no merge on its path kept;
      'paper' what the final mask lacks (gradient dropped at an inner merge
      but present in the mask through another subtree is lost).
    topology: 'butterfly' (recursive doubling), 'tree' (as printed, then a
      broadcast; twice the cost) or 'allgather' (algorithm 2: the exact top k
      of the sum); any number of workers.
    scope: 'global' only: a merge has one k.
    values: 'float32' only: hops carry sums, whose rounding error would
      belong to nobody.
    indices: 'elias_fano'.
    axis_name: see the module.
    min_size: see the module.
    dense_paths: see the module.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range, or a combination without meaning.

  References:
    Shi et al., arXiv 1901.04359, algorithms 3 and 4.
  """
  arguments.one_of('scope', scope, ('global',))
  arguments.one_of('values', values, codecs.VALUES)
  arguments.one_of('indices', indices, ('elias_fano',))
  if values != 'float32':
    raise ValueError(
      "gtopk's values must be 'float32': its hops carry partial sums, whose "
      f'rounding error would belong to no worker; got {values!r}'
    )
  compressor = compressors.top_k(
    density, codecs.codec(indices, values), scope='global', name='gtopk'
  )
  return compressed_mean(
    memories.residual(),
    compressor,
    exchanges.gtopk(topology, put_back),
    axis_name=axis_name,
    min_size=min_size,
    dense_paths=dense_paths,
  )


def dryden(
  density: float,
  *,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
) -> CompressedMean:
  """The largest entries of each sign, each side sent as its mean.

  Args:
    density: fraction of a leaf's elements, for each sign, in (0, 1].
    axis_name: see the module.
    min_size: see the module.
    dense_paths: see the module.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.

  References:
    Dryden et al., MLHPC 2016.
  """
  return compressed_mean(
    memories.residual(),
    compressors.dryden(density, codecs.codec('elias_fano', 'sign2')),
    exchanges.all_gather(),
    axis_name=axis_name,
    min_size=min_size,
    dense_paths=dense_paths,
  )


def random_k(
  density: float,
  *,
  memory: bool = False,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  seed: int = 0,
) -> CompressedMean:
  """Random coordinates, the same on all workers: only values travel.

  Args:
    density: fraction of each leaf, in (0, 1].
    memory: False scales by n / k, which is unbiased; True keeps a residual
      and does not scale.
    axis_name: see the module.
    min_size: see the module.
    dense_paths: see the module.
    seed: of the draw; the same on all workers.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.
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
  )
