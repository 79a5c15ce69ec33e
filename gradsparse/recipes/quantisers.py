"""Recipes that send every coordinate in few bits, or as small factors."""

from __future__ import annotations

from gradsparse import arguments
from gradsparse import codecs
from gradsparse import compressors
from gradsparse import exchanges
from gradsparse import memories
from gradsparse.collectives import AxisName
from gradsparse.compressed_mean import CompressedMean
from gradsparse.compressed_mean import compressed_mean
from gradsparse.layout import DensePaths

EXCHANGES = ('all_gather', 'reduce_scatter')
WIRE_DTYPES = ('float32', 'bfloat16')


def _by_parts(exchange: str) -> bool:
  """Whether it is the reduce-scatter."""
  return arguments.one_of('exchange', exchange, EXCHANGES) == 'reduce_scatter'


def dense(
  *, wire_dtype: str = 'float32', axis_name: AxisName | None
) -> CompressedMean:
  """The exact mean, by one all-reduce: the baseline.

  Args:
    wire_dtype: 'float32', or 'bfloat16': each worker's gradient and the mean
      are rounded to 16 bits, and half the bytes move.
    axis_name: see the module.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.
  """
  if arguments.one_of('wire_dtype', wire_dtype, WIRE_DTYPES) == 'float32':
    exchange = exchanges.all_reduce()
  else:
    exchange = exchanges.reduce_scatter(exchanges.bfloat16_words())
  return compressed_mean(
    memories.no_memory(),
    compressors.identity(),
    exchange,
    axis_name=axis_name,
  )


def qsgd(
  levels: int,
  *,
  bucket_size: int = 512,
  norm: str = 'max',
  code: str = 'fixed',
  elias: str = 'omega',
  exchange: str = 'all_gather',
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  seed: int = 0,
) -> CompressedMean:
  """Stochastic rounding to s levels of each bucket's norm; unbiased.

  Args:
    levels: s, in 1..65534; b bits with the sign are s = 2^(b-1) - 1.
    bucket_size: the most elements of a leaf that share a norm. Of a leaf
      (..., in, out) with three and more dimensions a bucket holds whole
      receptive fields, the elements of one input and output; a field that is
      larger is split.
    norm: 'max' or 'l2'.
    code: 'fixed' width; 'elias_dense' (a level for each element),
      'elias_sparse' (gaps between nonzeros), or 'elias', which takes the
      sparse one where levels^2 < bucket_size. A stream is as long as the
      data need: all workers' messages are cut to the smallest size of a
      ladder that holds the longest one (steps of 2 %, of 12 % below an eighth
      of the fixed width, which is what longer ones are sent in).
    elias: of the streams, 'omega' (the paper's), 'gamma', 'delta' or 'unary'
      (from 8 on with an escape to omega). On Gaussian gradients with the
      2-norm and s = sqrt(n) the dense code takes 2.94 bits an element in
      omega, above the 2.8 that the paper derives from idealised lengths of
      the same codes, and 2.43 in unary, below it; 0.05 more say how long
      blocks are.
    exchange: 'all_gather', or 'reduce_scatter', with which a worker sends
      about 2 (P - 1) / P times the packed vector instead of (P - 1) times:
      each averages one part and rounds the mean once more, by fresh draws.
      There buckets are runs of all compressed leaves, joined, whatever their
      receptive fields, and `code` is 'fixed'. What the second rounding loses
      goes into the next step (see `pending`) where that cannot pile up: with
      norm 'max' and levels >= 2, or 'l2' and levels > sqrt(bucket_size).
    axis_name: see the module.
    min_size: see the module. By default leaves
      under 10,000 elements stay dense.
    dense_paths: see the module.
    seed: of the rounding.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.

  References:
    Alistarh et al., arXiv 1610.02132, sections 3.1, 4 and 5; the second
    rounding: Tang et al., arXiv 1905.05957 (DoubleSqueeze).
  """
  compressor = compressors.qsgd(
    levels, bucket_size=bucket_size, norm=norm, code=code, elias=elias
  )
  how = exchanges.all_gather()
  if _by_parts(exchange):
    if code != 'fixed':
      raise ValueError(
        "code must be 'fixed' with exchange='reduce_scatter' (a part's size "
        f'cannot depend on the data), got {code!r}'
      )
    compressor = compressors.identity(compressor)
    how = exchanges.reduce_scatter(
      exchanges.qsgd_words(levels, bucket_size=bucket_size, norm=norm)
    )
  return compressed_mean(
    memories.no_memory(),
    compressor,
    how,
    axis_name=axis_name,
    min_size=min_size,
    dense_paths=dense_paths,
    seed=seed,
  )


def qsgd_descent(
  *,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
) -> CompressedMean:
  """QSGD for gradient descent: at most ceil(sqrt(n)) signs, one magnitude.

  For full (not stochastic) gradients: deterministic. There is no memory: what
  is not sent is lost.

  Args:
    axis_name: see the module.
    min_size: see the module.
    dense_paths: see the module.

  References:
    Alistarh et al., arXiv 1610.02132, end of section 3.3.
  """
  return compressed_mean(
    memories.no_memory(),
    compressors.gradient_descent(codecs.codec('elias_fano', 'sign2')),
    exchanges.all_gather(),
    axis_name=axis_name,
    min_size=min_size,
    dense_paths=dense_paths,
  )


def terngrad(
  *,
  clip: float = 2.5,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  seed: int = 0,
) -> CompressedMean:
  """Ternary gradients with one scale for all workers, summed as integers.

  Args:
    clip: in standard deviations of a leaf; infinity does not clip. Unbiased
      about the clipped gradient; what is clipped off is lost.
    axis_name: see the module.
    min_size: see the module. By default leaves under 10,000 elements stay
      dense.
    dense_paths: see the module; the paper keeps the last layer dense.
    seed: of the rounding.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.

  References:
    Wen et al., arXiv 1705.07878.
  """
  return compressed_mean(
    memories.no_memory(),
    compressors.terngrad(clip),
    exchanges.all_reduce(),
    axis_name=axis_name,
    min_size=min_size,
    dense_paths=dense_paths,
    seed=seed,
  )


def one_bit_sgd(
  *,
  exchange: str = 'all_gather',
  bucket_size: int | None = None,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
) -> CompressedMean:
  """One bit an element, two means a column, error feedback.

  Args:
    exchange: 'all_gather', or 'reduce_scatter', with which a worker sends
      about 2 (P - 1) / P times the packed vector instead of (P - 1) times:
      each averages one part, adds what its last rounding lost, and rounds the
      mean to one bit an element once more. `pending` has both residuals.
    bucket_size: with 'reduce_scatter' only: as many consecutive elements of
      all compressed leaves, joined, stand for a column. None is 512.
    axis_name: see the module.
    min_size: see the module.
    dense_paths: see the module.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range, or a bucket_size with 'all_gather'.

  References:
    Seide et al., Interspeech 2014; Tang et al., arXiv 1905.05957
    (DoubleSqueeze: the second residual).
  """
  compressor, how = compressors.one_bit(), exchanges.all_gather()
  if _by_parts(exchange):
    compressor = compressors.identity(compressor)
    size = 512 if bucket_size is None else bucket_size
    how = exchanges.reduce_scatter(exchanges.one_bit_words(size))
  elif bucket_size is not None:
    raise ValueError(
      "bucket_size must be None with exchange='all_gather', where means are "
      f'those of columns, got {bucket_size!r}'
    )
  return compressed_mean(
    memories.residual(),
    compressor,
    how,
    axis_name=axis_name,
    min_size=min_size,
    dense_paths=dense_paths,
  )


def sign_majority(
  *,
  scale: float = 1.0,
  memory: bool = False,
  exchange: str = 'all_gather',
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
) -> CompressedMean:
  """signSGD with majority vote: the sign that most workers have.

  Not a mean: the update is +scale or -scale everywhere (ties and zeros count
  as positive), so the learning rate sets the step.

  Args:
    scale: magnitude of the update, > 0.
    memory: keep what the vote did not deliver (error feedback); False loses
      it.
    exchange: 'all_gather', or 'reduce_scatter', with which each worker counts
      the votes of one part and a worker sends about 2 (P - 1) / P times the
      signs instead of (P - 1) times. The result is the same to the bit.
    axis_name: see the module.
    min_size: see the module.
    dense_paths: see the module.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.

  References:
    Bernstein et al., arXiv 1802.04434, algorithm 3.
  """
  memory = arguments.flag('memory', memory)
  return compressed_mean(
    memories.residual() if memory else memories.no_memory(),
    compressors.sign(scale),
    exchanges.majority(scatter=_by_parts(exchange)),
    axis_name=axis_name,
    min_size=min_size,
    dense_paths=dense_paths,
  )


def power_sgd(
  rank: int,
  *,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  seed: int = 0,
) -> CompressedMean:
  """Low-rank approximation of each matrix, warm-started, error feedback.

  Args:
    rank: of the approximation, at least 1.
    axis_name: see the module.
    min_size: see the module. Leaves of fewer than two dimensions always stay
      dense.
    dense_paths: see the module.
    seed: of the first factor.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.

  References:
    Vogels et al., arXiv 1905.13727, algorithms 1 and 2.
  """
  return compressed_mean(
    memories.residual(),
    compressors.power_sgd(rank, seed),
    exchanges.all_reduce(),
    axis_name=axis_name,
    min_size=min_size,
    dense_paths=dense_paths,
  )
