"""EF21: workers send corrections of an estimate of their gradient."""

from __future__ import annotations

from typing import Literal

from gradsparse import arguments
from gradsparse import codes
from gradsparse import compressors
from gradsparse import exchanges
from gradsparse import memories
from gradsparse.collectives import AxisName
from gradsparse.compressors.top_k import Density
from gradsparse.recipes import shared_arguments
from gradsparse.transform.compressed_mean import CompressedMean
from gradsparse.transform.compressed_mean import compressed_mean
from gradsparse.transform.layout import DensePaths

# A rounding that is unbiased can be larger than what it rounds: estimates
# would not come closer to the gradient.
VALUES = ('float32', 'bfloat16', 'exponent4')


@shared_arguments.recipe
def ef21(
  density: Density,
  *,
  scope: shared_arguments.Scope = 'leaf',
  chunk_size: int = 4096,
  values: Literal['float32', 'bfloat16', 'exponent4'] = 'float32',
  indices: shared_arguments.Indices = 'elias_fano',
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  verify: bool = False,
) -> CompressedMean:
  """Keeps an estimate of each worker's gradient, and sends its corrections.

    r = top-k(g - g_w);  g_w <- g_w + r;  G <- G + mean_w(r)

  The update is G, the mean of all workers' estimates, which are zero at first.
  What was not sent is not added up: the next gradient is compared with the
  estimate afresh. So the update lags behind the gradient, and a smaller
  learning rate than without compression may be needed at first. G keeps the
  rounding of all corrections, about 1e-7 of the largest that was ever sent:
  clip gradients that may become millions of times as large as usual.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> grads = {'w': jnp.array([3.0, -1.0, 0.5, -4.0])}
  >>> tx = gs.ef21(0.25, min_size=0, axis_name=None)
  >>> state = tx.init(grads)
  >>> for _ in range(2):
  ...   updates, state = tx.update(grads, state)
  >>> print(updates['w'], gs.pending(state)['w'])
  [ 3.  0.  0. -4.] [ 0.  -1.   0.5  0. ]

  Args:
    {density: dgc}
    scope: the set of which the largest are sent. 'leaf' is each leaf by itself,
      'global' the whole gradient, 'chunk' each run of `chunk_size` consecutive
      elements of a leaf.
    {chunk_size}
    values: how a value travels. 'float32'; 'bfloat16', 16 bits; 'exponent4', 4
      bits, a sign and a power of two. What rounding loses is no part of the
      estimate, and so corrected later.
    indices: how a coordinate travels. 'elias_fano', about 2 + log2(1 / density)
      bits; 'run_length', 16 bits (needs values='float32'); 'word28', 28 bits
      (needs values='exponent4').
    {axis_name}
    {min_size: with scope 'leaf' or 'chunk', leaves of fewer than two dimensions
      stay dense; with 'global', no leaf does. 0 compresses every leaf}
    {dense_paths}
    {verify}

  Returns:
    An optax transformation. Its update takes this worker's gradients and gives,
    on all workers alike and with the gradient's sign, the mean over workers of
    their estimates. `gs.pending` is the gradient less the estimate, after the
    step.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.

  References:
    Richtarik, Sokolov & Fatkhullin, arXiv 2106.05203, algorithm 2.
  """
  arguments.one_of('values', values, VALUES)
  compressor = compressors.top_k(
    density,
    codes.sparse(indices, values),
    scope=scope,
    chunk_size=chunk_size,
    name='ef21',
  )
  return compressed_mean(
    memories.estimate(),
    compressor,
    exchanges.all_gather(),
    axis_name=axis_name,
    min_size=min_size,
    dense_paths=dense_paths,
    verify=verify,
  )
