"""Recipes that send every coordinate in few bits."""

from __future__ import annotations

from typing import Literal, get_args

from gradsparse import arguments
from gradsparse import codes
from gradsparse import compressors
from gradsparse import exchanges
from gradsparse import memories
from gradsparse.collectives import AxisName
from gradsparse.recipes import shared_arguments
from gradsparse.sockets import LeafRule
from gradsparse.transform.layout import DensePaths


def _by_parts(exchange: str) -> bool:
  """Whether the exchange is the reduce-scatter."""
  kinds = get_args(shared_arguments.Exchange)
  return arguments.one_of('exchange', exchange, kinds) == 'reduce_scatter'


@shared_arguments.recipe
def qsgd(
  levels: int,
  *,
  bucket_size: int = 512,
  norm: Literal['max', 'l2'] = 'max',
  code: Literal['fixed', 'elias', 'elias_dense', 'elias_sparse'] = 'fixed',
  elias: Literal['omega', 'gamma', 'delta', 'unary'] = 'omega',
  exchange: shared_arguments.Exchange = 'all_gather',
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  seed: int = 0,
  verify: bool = False,
) -> shared_arguments.Sockets:
  """Unbiased stochastic rounding to s levels of each bucket's norm.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> tx = gs.qsgd(7, axis_name='workers')
  >>> params = {'w': jnp.zeros((1000, 100))}
  >>> print(gs.plan(tx, params, num_workers=4))
  leaf   elements  dense B  payload B  ratio  transport
  ['w']   100,000  400,000     50,788    7.9  qsgd, all-gather
  total   100,000  400,000     50,788    7.9  sent by a worker: 152,364 B

  Args:
    levels: s, a whole number in 1..65534. With s = 2^(b-1) - 1 a level and its
      sign take b bits.
    bucket_size: the most elements of a leaf that share a norm, at least 1. In a
      leaf (..., in, out) of three or more dimensions, a bucket holds whole
      receptive fields (the elements of one input and output); larger fields are
      split.
    norm: 'max', the largest magnitude of a bucket (the paper's experiments), or
      'l2', its 2-norm (the paper's theory).
    code: 'fixed' width; 'elias_dense' (a level for each element),
      'elias_sparse' (gaps between nonzeros), or 'elias', which is the sparse
      code if levels^2 < bucket_size, else the dense one. The length of an Elias
      stream depends on the data: all messages have the smallest size of a
      ladder that holds the longest stream (steps of 2 %, of 12 % below an
      eighth of the fixed width). Levels whose stream would be longer are sent
      in fixed width. Streams have fewer than 2^32 bits: from 46 million
      elements on, there are several streams, or levels are sent in fixed width.
    elias: the code of streams: 'omega' (the paper's), 'gamma', 'delta' or
      'unary' (from 8 on with an escape to omega). On Gaussian gradients with
      the 2-norm and s = sqrt(n), the dense code takes 2.94 bits an element with
      omega and 2.43 with unary, and 0.05 for the lengths of blocks. The paper
      derives 2.8 from idealised lengths of the same codes.
    exchange: 'all_gather', or 'reduce_scatter', with which a worker sends about
      2 (P - 1) / P times the packed vector instead of (P - 1) times: each
      worker averages one part and rounds the mean once more, with new random
      numbers. Buckets are then runs of the concatenated leaves, whatever their
      receptive fields, and `code` is 'fixed'. The error of the second rounding
      is fed back into the next step (see `gs.pending`) if it cannot accumulate:
      with norm 'max' and levels >= 2, or 'l2' and levels > sqrt(bucket_size).
    {axis_name}
    {min_size: leaves under 10,000 elements stay dense. 0 compresses every leaf}
    {dense_paths}
    {seed: the random roundings, which differ between steps and between workers}
    {verify}

  Returns:
    An optax transformation. Its update turns this worker's gradients into the
    mean over workers of the rounded gradients. The update is equal on all
    workers and has the gradient's sign. Its expectation is the mean of the
    gradients.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range, or code is not 'fixed' with
      'reduce_scatter'.

  References:
    Alistarh et al., arXiv 1610.02132, sections 3.1, 4 and 5; the second
    rounding: Tang et al., arXiv 1905.05957 (DoubleSqueeze).
  """
  if _by_parts(exchange):
    if code != 'fixed':
      raise ValueError(
        "code must be 'fixed' with exchange='reduce_scatter' (a part's size "
        f'cannot depend on the data), got {code!r}'
      )
    form = codes.qsgd.of_parts(levels, bucket_size=bucket_size, norm=norm)
    how = exchanges.reduce_scatter()
  else:
    form = codes.qsgd.of_leaves(
      levels, bucket_size=bucket_size, norm=norm, code=code, elias=elias
    )
    how = exchanges.all_gather()
  return (
    memories.no_memory(),
    compressors.identity(
      'qsgd', form, leaves=LeafRule(min_size=10_000), unbiased=True
    ),
    how,
  )


@shared_arguments.recipe
def qsgd_descent(
  *,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  verify: bool = False,
) -> shared_arguments.Sockets:
  """QSGD for gradient descent: at most ceil(sqrt(n)) signs, one magnitude.

  This deterministic scheme is for full (not stochastic) gradients. It sends the
  fewest largest entries whose magnitudes sum to the 2-norm of the gradient or
  more. Each is decoded as its sign times that norm. There is no memory: other
  entries are dropped.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> grads = {'w': jnp.array([3.0, 0.0, 0.0, -4.0])}
  >>> tx = gs.qsgd_descent(axis_name=None)
  >>> updates, state = tx.update(grads, tx.init(grads))
  >>> print(updates['w'])
  [ 5.  0.  0. -5.]

  Args:
    {axis_name}
    {min_size}
    {dense_paths}
    {verify}

  Returns:
    An optax transformation. Its update turns this worker's gradients into the
    mean over workers of these signs times norms. The update is equal on all
    workers and has the gradient's sign.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range.

  References:
    Alistarh et al., arXiv 1610.02132, end of section 3.3.
  """
  return (
    memories.no_memory(),
    compressors.norm_top_k(codes.sparse('elias_fano', 'sign2')),
    exchanges.all_gather(),
  )


@shared_arguments.recipe
def terngrad(
  *,
  clip: float = 2.5,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  seed: int = 0,
  verify: bool = False,
) -> shared_arguments.Sockets:
  """Ternary gradients with one scale for all workers, summed as integers.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> tx = gs.terngrad(axis_name='workers')
  >>> params = {'w': jnp.zeros((1000, 100))}
  >>> print(gs.plan(tx, params, num_workers=4))
  leaf   elements  dense B  payload B  ratio  transport
  ['w']   100,000  400,000     50,004    8.0  terngrad, all-reduce
  total   100,000  400,000     50,004    8.0  sent by a worker: 75,012 B

  Args:
    clip: the largest magnitude that is kept, in standard deviations of a leaf,
      > 0; infinity does not clip. The expectation is the clipped gradient; the
      clipped-off part is lost. Equal numbers are not clipped.
    {axis_name}
    {min_size: leaves under 10,000 elements stay dense. 0 compresses every leaf
      of more than one element}
    {dense_paths: The paper keeps the last leaf dense.}
    {seed: the random roundings, which differ between steps and between workers}
    {verify_sums}

  Returns:
    An optax transformation. Its update turns this worker's gradients into the
    mean over workers of -s, 0 and s, where s is the largest magnitude of the
    leaf on any worker. The update is equal on all workers and has the
    gradient's sign. Its expectation is the mean of the clipped gradients.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range, or there are 32,768 workers or
      more.

  References:
    Wen et al., arXiv 1705.07878.
  """
  return (
    memories.no_memory(),
    compressors.terngrad(clip),
    exchanges.all_reduce(),
  )


@shared_arguments.recipe
def one_bit_sgd(
  *,
  exchange: shared_arguments.Exchange = 'all_gather',
  bucket_size: int | None = None,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  verify: bool = False,
) -> shared_arguments.Sockets:
  """One bit for each element, two means for each column, with error feedback.

  A column fixes the last index of a leaf; a vector is one column. Elements >= 0
  of a column are decoded as their mean, elements < 0 as theirs.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> grads = {'w': jnp.array([3.0, -1.0, 0.5, -4.0])}
  >>> tx = gs.one_bit_sgd(axis_name=None)
  >>> updates, state = tx.update(grads, tx.init(grads))
  >>> print(updates['w'], gs.pending(state)['w'])
  [ 1.75 -2.5   1.75 -2.5 ] [ 1.25  1.5  -1.25 -1.5 ]

  Args:
    exchange: 'all_gather', or 'reduce_scatter', with which a worker sends about
      2 (P - 1) / P times the packed vector instead of (P - 1) times: each
      worker averages one part, adds the error of its last rounding, and rounds
      the mean to one bit an element once more. `gs.pending` has both residuals.
    bucket_size: with 'reduce_scatter' only: the number of consecutive elements
      of the concatenated leaves that replace a column, at least 1. None is 512.
    {axis_name}
    {min_size}
    {dense_paths}
    {verify}

  Returns:
    An optax transformation. Its update turns this worker's gradients into the
    mean over workers of their decoded messages. The update is equal on all
    workers and has the gradient's sign.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range, or bucket_size is given with
      'all_gather'.

  References:
    Seide et al., Interspeech 2014; Tang et al., arXiv 1905.05957
    (DoubleSqueeze: the second residual).
  """
  if _by_parts(exchange):
    size = 512 if bucket_size is None else bucket_size
    code, how = codes.one_bit.of_parts(size), exchanges.reduce_scatter()
  elif bucket_size is not None:
    raise ValueError(
      "bucket_size must be None with exchange='all_gather', whose means are "
      f'those of columns, got {bucket_size!r}'
    )
  else:
    code, how = codes.one_bit.of_leaves(), exchanges.all_gather()
  return (
    memories.residual(),
    compressors.identity('one_bit_sgd', code),
    how,
  )


@shared_arguments.recipe
def sign_majority(
  *,
  scale: float = 1.0,
  memory: bool = False,
  exchange: shared_arguments.Exchange = 'all_gather',
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  verify: bool = False,
) -> shared_arguments.Sockets:
  """signSGD with majority vote: the sign that most workers have.

  The update is not a mean: it is +scale or -scale everywhere (ties and zeros
  count as positive), so the learning rate sets the step.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> grads = {'w': jnp.array([3.0, -1.0, 0.5, -4.0])}
  >>> tx = gs.sign_majority(memory=True, axis_name=None)
  >>> updates, state = tx.update(grads, tx.init(grads))
  >>> print(updates['w'], gs.pending(state)['w'])
  [ 1. -1.  1. -1.] [ 2.   0.  -0.5 -3. ]

  Args:
    scale: magnitude of the update, > 0.
    memory: True keeps the gradient less the vote and adds it to the next
      gradient (error feedback); False drops it.
    exchange: 'all_gather', or 'reduce_scatter', with which each worker counts
      the votes of one part and sends about 2 (P - 1) / P times the signs
      instead of (P - 1) times. The result is the same to the bit.
    {axis_name}
    {min_size}
    {dense_paths}
    {verify}

  Returns:
    An optax transformation. Its update turns this worker's gradients into
    `scale` times the sign that most workers have. The update is equal on all
    workers and has the gradient's sign. Leaves that stay dense get their exact
    mean.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range.

  References:
    Bernstein et al., arXiv 1802.04434, algorithm 3.
  """
  memory = arguments.flag('memory', memory)
  return (
    memories.residual() if memory else memories.no_memory(),
    compressors.identity('sign_majority', codes.signs(scale)),
    exchanges.majority(scatter=_by_parts(exchange)),
  )
