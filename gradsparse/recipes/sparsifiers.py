"""Recipes that send the coordinates of largest magnitude."""

from __future__ import annotations

from typing import Literal

from gradsparse import arguments
from gradsparse import codes
from gradsparse import compressors
from gradsparse import exchanges
from gradsparse import memories
from gradsparse.codes.sparse import OF_SELECTED
from gradsparse.collectives import AxisName
from gradsparse.compressors.top_k import Density
from gradsparse.recipes import shared_arguments
from gradsparse.transform.layout import DensePaths

# Value codes for estimates. Unbiased rounding can enlarge a value, so that an
# estimate would not approach the gradient.
CONTRACTIONS = ('float32', 'bfloat16', 'exponent4', 'table4')


@shared_arguments.recipe
def gradient_dropping(
  density: Density,
  *,
  scope: shared_arguments.Scope = 'global',
  chunk_size: int = 4096,
  tile: int = 64,
  values: shared_arguments.Values | Literal['table4'] = 'float32',
  indices: shared_arguments.Indices = 'elias_fano',
  mean: shared_arguments.Mean = 'workers',
  error_decay: float = 1.0,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  verify: bool = False,
) -> shared_arguments.Sockets:
  """Sends the largest entries of gradient plus residual.

    e <- e + g;  send top-k(e);  e <- e - sent

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> grads = {'w': jnp.array([3.0, -1.0, 0.5, -4.0])}
  >>> tx = gs.gradient_dropping(0.25, axis_name=None)
  >>> updates, state = tx.update(grads, tx.init(grads))
  >>> print(updates['w'], gs.pending(state)['w'])
  [ 0.  0.  0. -4.] [ 3.  -1.   0.5  0. ]

  Args:
    {density}
    {scope: The paper's is 'global'.}
    {chunk_size}
    {tile}
    {values}
    {indices}
    {mean}
    {error_decay}
    {axis_name}
    {min_size: with a scope other than 'global', leaves of fewer than two
      dimensions stay dense; with 'global', no leaf does. 0 compresses every
      leaf}
    {dense_paths}
    {verify}

  Returns:
    An optax transformation. Its update turns this worker's gradients into the
    mean of the entries that workers sent, and zero where none sent
    anything. The update is equal on all workers and has the gradient's sign.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range.

  References:
    Aji & Heafield, arXiv 1704.05021.
  """
  arguments.one_of('values', values, OF_SELECTED)
  compressor = compressors.top_k(
    density,
    codes.sparse(indices, values),
    scope=scope,
    chunk_size=chunk_size,
    tile=tile,
    name='gradient_dropping',
  )
  return (
    memories.residual(error_decay),
    compressor,
    exchanges.all_gather(mean),
  )


@shared_arguments.recipe
def dgc(
  density: Density,
  *,
  momentum: float = 0.9,
  nesterov: bool = False,
  factor_masking: bool = True,
  sample_rate: float | None = None,
  scope: shared_arguments.Scope = 'leaf',
  chunk_size: int = 4096,
  tile: int = 64,
  values: shared_arguments.Values | Literal['table4'] = 'float32',
  indices: shared_arguments.Indices = 'elias_fano',
  mean: shared_arguments.Mean = 'workers',
  error_decay: float = 1.0,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  seed: int = 0,
  verify: bool = False,
) -> shared_arguments.Sockets:
  """Deep Gradient Compression: momentum correction and factor masking.

    u <- m u + g;  v <- v + u;  send top-k(v);  v, u <- 0 where sent

  **Use plain SGD after this scheme** (`optax.sgd(lr)`), as it contains the
  momentum. A second momentum in the same chain gives a warning. With Adam,
  which the paper does not define, use `momentum=0.0`: this scheme then
  accumulates a residual, and Adam's moments follow the exchange.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> grads = {'w': jnp.array([3.0, -1.0, 0.5, -4.0])}
  >>> tx = gs.dgc(0.25, min_size=0, axis_name=None)
  >>> updates, state = tx.update(grads, tx.init(grads))
  >>> print(updates['w'], gs.pending(state)['w'])
  [ 0.  0.  0. -4.] [ 3.  -1.   0.5  0. ]
  >>> updates, state = tx.update(grads, state)
  >>> print(updates['w'])  # 3.0, and then 0.9 * 3.0 + 3.0
  [8.7 0.  0.  0. ]

  Args:
    {density}
    momentum: m, in [0, 1).
    nesterov: True is Nesterov's momentum: u <- m (u + g); v <- v + u + g.
    factor_masking: True clears u at sent coordinates; False keeps it.
    sample_rate: None sends exactly the k largest, k = ceil(density n).
      Otherwise a fraction in (0, 1] (the paper: 0.001 to 0.01): of the n
      elements of each leaf (with scope 'global', of all leaves),
      ceil(sample_rate n) are drawn. All elements that reach the quantile of the
      sample are sent, about k. If more than ceil(1.3 k) reach it, exactly the k
      largest are sent. A message has ceil(1.3 k) slots, empty or not. Must be
      None with scope 'chunk' or 'tile'.
    {scope: The paper's is 'leaf'.}
    {chunk_size}
    {tile}
    {values}
    {indices}
    {mean}
    {error_decay}
    {axis_name}
    {min_size: with a scope other than 'global', leaves of fewer than two
      dimensions stay dense and keep their momentum; with 'global', no leaf
      does. 0 compresses every leaf}
    {dense_paths}
    {seed: the random samples, which differ between steps and between workers}
    {verify}

  Returns:
    An optax transformation. Its update turns this worker's gradients into the
    mean of the velocity that workers sent, and zero where none sent
    anything. The update is equal on all workers and has the gradient's sign.
    Leaves that stay dense get momentum SGD's velocity of the mean gradient.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range.

  References:
    Lin et al., arXiv 1712.01887, eq. 7, eq. 10, sections 3.3 and 5.
  """
  arguments.one_of('values', values, OF_SELECTED)
  compressor = compressors.top_k(
    density,
    codes.sparse(indices, values),
    scope=scope,
    chunk_size=chunk_size,
    tile=tile,
    sample_rate=sample_rate,
    name='dgc',
  )
  return (
    memories.momentum_correction(
      momentum, nesterov, factor_masking, error_decay
    ),
    compressor,
    exchanges.all_gather(mean),
  )


@shared_arguments.recipe
def ef21(
  density: Density,
  *,
  momentum: float = 1.0,
  scope: shared_arguments.Scope = 'leaf',
  chunk_size: int = 4096,
  tile: int = 64,
  values: Literal['float32', 'bfloat16', 'exponent4', 'table4'] = 'float32',
  indices: shared_arguments.Indices = 'elias_fano',
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  verify: bool = False,
) -> shared_arguments.Sockets:
  """EF21: keeps an estimate of each worker's gradient, and sends corrections.

    v_w <- (1 - momentum) v_w + momentum g
    r = top-k(v_w - g_w);  g_w <- g_w + r;  G <- G + mean_w(r)

  The update is G, the mean of all workers' estimates. By default v_w is the
  gradient g. With `momentum` < 1, which is EF21-SGDM, v_w is a moving average,
  which has less minibatch noise. All v_w and g_w are zero at first. The
  difference does not accumulate: each v_w is compared with the current
  estimate. The update therefore lags behind the gradient, and may need a
  smaller learning rate at first than without compression. G keeps the rounding
  errors of all corrections, about 1e-7 of the largest ever sent: clip gradients
  that may become millions of times as large as usual.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> grads = {'w': jnp.array([3.0, -1.0, 0.5, -4.0])}
  >>> tx = gs.ef21(0.25, min_size=0, axis_name=None)
  >>> state = tx.init(grads)
  >>> for _ in range(2):
  ...   updates, state = tx.update(grads, state)
  >>> print(updates['w'], gs.pending(state)['w'])
  [ 3.  0.  0. -4.] [ 0.  -1.   0.5  0. ]

  Args:
    {density}
    momentum: the weight of the new gradient in the moving average, in (0, 1]; 1
      is EF21. Leaves that stay dense are averaged in the same way, over
      workers first. With less than 1 the optimizer needs no momentum.
    {scope}
    {chunk_size}
    {tile}
    {values: 'table4', 2 bits, four numbers a leaf. The estimate gets the
      rounded values, so rounding errors are corrected later}
    {indices}
    {axis_name}
    {min_size: with a scope other than 'global', leaves of fewer than two
      dimensions stay dense; with 'global', no leaf does. 0 compresses every
      leaf}
    {dense_paths}
    {verify}

  Returns:
    An optax transformation. Its update turns this worker's gradients into the
    mean over workers of their estimates. The update is equal on all workers and
    has the gradient's sign. `gs.pending` is v_w less the estimate, after the
    step.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range.

  References:
    Richtarik, Sokolov & Fatkhullin, arXiv 2106.05203, algorithm 2; Fatkhullin,
    Tyurin & Richtarik, arXiv 2305.15155 (momentum). There v_w begins with the
    first gradient, here with `momentum` times it.
  """
  arguments.one_of('values', values, CONTRACTIONS)
  compressor = compressors.top_k(
    density,
    codes.sparse(indices, values),
    scope=scope,
    chunk_size=chunk_size,
    tile=tile,
    name='ef21',
  )
  return (
    memories.estimate(momentum),
    compressor,
    exchanges.all_gather(),
  )


@shared_arguments.recipe
def dryden(
  density: float,
  *,
  mean: shared_arguments.Mean = 'workers',
  error_decay: float = 1.0,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  verify: bool = False,
) -> shared_arguments.Sockets:
  """Sends the largest entries of each sign, as their mean.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> grads = {'w': jnp.array([3.0, 1.0, 0.5, -1.0, -4.0, 0.0])}
  >>> tx = gs.dryden(0.3, axis_name=None)
  >>> updates, state = tx.update(grads, tx.init(grads))
  >>> print(updates['w'], gs.pending(state)['w'])
  [ 2.   2.   0.  -2.5 -2.5  0. ] [ 1.  -1.   0.5  1.5 -1.5  0. ]

  Args:
    density: fraction of a leaf's elements sent for each sign, in (0, 1].
    {mean}
    {error_decay}
    {axis_name}
    {min_size}
    {dense_paths}
    {verify}

  Returns:
    An optax transformation. Its update turns this worker's gradients into the
    mean of the workers' decoded messages, and zero where none sent
    anything. The update is equal on all workers and has the gradient's sign.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range.

  References:
    Dryden et al., MLHPC 2016.
  """
  return (
    memories.residual(error_decay),
    compressors.dryden(density, codes.sparse('elias_fano', 'sign2')),
    exchanges.all_gather(mean),
  )
