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
  """Whether it is the reduce-scatter."""
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
  """Stochastic rounding to s levels of each bucket's norm; unbiased.

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
    bucket_size: the most elements of a leaf that share a norm, at least 1. Of a
      leaf (..., in, out) with three and more dimensions a bucket holds whole
      receptive fields, the elements of one input and output; a field that is
      larger is split.
    norm: 'max', the largest magnitude of a bucket (the paper's experiments), or
      'l2', its 2-norm (the paper's theory).
    code: 'fixed' width; 'elias_dense' (a level for each element),
      'elias_sparse' (gaps between nonzeros), or 'elias', which takes the sparse
      one where levels^2 < bucket_size. A stream is as long as the data need:
      all workers' messages are cut to the smallest size of a ladder that holds
      the longest one (steps of 2 %, of 12 % below an eighth of the fixed width,
      which is what longer ones are sent in). Streams are below 2^32 bits: of 46
      million elements and more they are several, or of fixed width.
    elias: of the streams, 'omega' (the paper's), 'gamma', 'delta' or 'unary'
      (from 8 on with an escape to omega). On Gaussian gradients with the 2-norm
      and s = sqrt(n) the dense code takes 2.94 bits an element in omega, above
      the 2.8 that the paper derives from idealised lengths of the same codes,
      and 2.43 in unary, below it; 0.05 more say how long blocks are.
    exchange: 'all_gather', or 'reduce_scatter', with which a worker sends about
      2 (P - 1) / P times the packed vector instead of (P - 1) times: each
      averages one part and rounds the mean once more, by fresh draws. There
      buckets are runs of all compressed leaves, joined, whatever their
      receptive fields, and `code` is 'fixed'. What the second rounding loses
      goes into the next step (see `gs.pending`) where that cannot pile up: with
      norm 'max' and levels >= 2, or 'l2' and levels > sqrt(bucket_size).
    {axis_name}
    {min_size: leaves under 10,000 elements stay dense. 0 compresses every leaf}
    {dense_paths}
    {seed: the roundings, which are drawn anew in each step and on each worker
      for itself}
    {verify}

  Returns:
    An optax transformation. Its update takes this worker's gradients and gives,
    on all workers alike and with the gradient's sign, the mean over workers of
    the rounded gradients. Its expectation is the mean of the gradients.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range, or a stream with reduce_scatter.

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

  For full (not stochastic) gradients: deterministic. Of the largest entries as
  few are sent as together reach the 2-norm of the gradient; each counts as its
  sign times that norm. There is no memory: what is not sent is lost.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> grads = {'w': jnp.array([3.0, 0.0, 0.0, -4.0])}
  >>> tx = gs.qsgd_descent(axis_name=None)
  >>> updates, state = tx.update(grads, tx.init(grads))
  >>> print(updates['w'])
  [ 5.  0.  0. -5.]

  Args:
    {axis_name}
    {min_size: no leaf stays dense. 0 compresses every leaf}
    {dense_paths}
    {verify}

  Returns:
    An optax transformation. Its update takes this worker's gradients and gives,
    on all workers alike and with the gradient's sign, the mean over workers of
    these signs times norms.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.

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
      > 0; infinity does not clip. What is sent is unbiased about the clipped
      gradient; what is clipped off is lost. Equal numbers are not clipped.
    {axis_name}
    {min_size: leaves under 10,000 elements stay dense. 0 compresses every leaf
      of more than one element}
    dense_paths: which leaves stay dense, whatever their size: a regular
      expression that is searched for in a leaf's path (such as
      "['dense']['bias']"), or a function that is given the path and returns
      True for some. None: no such leaves. The paper keeps the last one dense.
    {seed: the roundings, which are drawn anew in each step and on each worker
      for itself}
    {verify_sums}

  Returns:
    An optax transformation. Its update takes this worker's gradients and gives,
    on all workers alike and with the gradient's sign, the mean over workers of
    -s, 0 and s, where s is the largest magnitude of the leaf on any worker. Its
    expectation is the mean of the clipped gradients.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range, or 32,768 workers or more.

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
  """One bit an element, two means a column, error feedback.

  A column fixes the last index of a leaf; a vector is one column. Elements >= 0
  are sent as their mean, and so are those < 0.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> grads = {'w': jnp.array([3.0, -1.0, 0.5, -4.0])}
  >>> tx = gs.one_bit_sgd(axis_name=None)
  >>> updates, state = tx.update(grads, tx.init(grads))
  >>> print(updates['w'], gs.pending(state)['w'])
  [ 1.75 -2.5   1.75 -2.5 ] [ 1.25  1.5  -1.25 -1.5 ]

  Args:
    exchange: 'all_gather', or 'reduce_scatter', with which a worker sends about
      2 (P - 1) / P times the packed vector instead of (P - 1) times: each
      averages one part, adds what its last rounding lost, and rounds the mean
      to one bit an element once more. `gs.pending` has both residuals.
    bucket_size: with 'reduce_scatter' only: how many consecutive elements of
      all compressed leaves, joined, stand for a column, at least 1. None is
      512.
    {axis_name}
    {min_size: no leaf stays dense. 0 compresses every leaf}
    {dense_paths}
    {verify}

  Returns:
    An optax transformation. Its update takes this worker's gradients and gives,
    on all workers alike and with the gradient's sign, the mean over workers of
    what they sent of gradient plus residual.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range, or a bucket_size with 'all_gather'.

  References:
    Seide et al., Interspeech 2014; Tang et al., arXiv 1905.05957
    (DoubleSqueeze: the second residual).
  """
  if _by_parts(exchange):
    size = 512 if bucket_size is None else bucket_size
    code, how = codes.one_bit.of_parts(size), exchanges.reduce_scatter()
  elif bucket_size is not None:
    raise ValueError(
      "bucket_size must be None with exchange='all_gather', where means are "
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

  Not a mean: the update is +scale or -scale everywhere (ties and zeros count
  as positive), so the learning rate sets the step.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> grads = {'w': jnp.array([3.0, -1.0, 0.5, -4.0])}
  >>> tx = gs.sign_majority(memory=True, axis_name=None)
  >>> updates, state = tx.update(grads, tx.init(grads))
  >>> print(updates['w'], gs.pending(state)['w'])
  [ 1. -1.  1. -1.] [ 2.   0.  -0.5 -3. ]

  Args:
    scale: magnitude of the update, > 0.
    memory: True keeps what the vote did not deliver and adds it to the next
      gradient (error feedback); False loses it.
    exchange: 'all_gather', or 'reduce_scatter', with which each worker counts
      the votes of one part and a worker sends about 2 (P - 1) / P times the
      signs instead of (P - 1) times. The result is the same to the bit.
    {axis_name}
    {min_size: no leaf stays dense. 0 compresses every leaf}
    {dense_paths}
    {verify}

  Returns:
    An optax transformation. Its update takes this worker's gradients and gives,
    on all workers alike and with the gradient's sign, `scale` times the sign
    that most of them have; leaves that stay dense get their exact mean.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.

  References:
    Bernstein et al., arXiv 1802.04434, algorithm 3.
  """
  memory = arguments.flag('memory', memory)
  return (
    memories.residual() if memory else memories.no_memory(),
    compressors.identity('sign_majority', codes.signs(scale)),
    exchanges.majority(scatter=_by_parts(exchange)),
  )
