"""Law 1 for a code by itself, without an exchange of several workers."""

from __future__ import annotations

import dataclasses
from typing import Any

from gradsparse.sockets import Sparse
from gradsparse.testing import laws
from gradsparse.testing.cases import Case
from gradsparse.testing.cases import gradients
from gradsparse.transform.compressed_mean import CompressedMean
from gradsparse.transform.compressed_mean import compressed_mean
import jax
import numpy as np


def check_code(tx: CompressedMean, params: Any, case: Case, seed: int) -> None:
  """Law 1 for the code: unpacking a packed message restores it.

  This runs with one worker, as one program that returns what the exchange sees.
  """
  memory, compressor, exchange, *_ = tx.scheme
  if compressor.ladder is not None:
    ladder = compressor.ladder
    largest = ladder._replace(rungs=lambda shapes: ladder.rungs(shapes)[-1:])
    compressor = compressor._replace(ladder=largest)

  def alone(exchange):
    return compressed_mean(
      memory,
      compressor,
      exchange,
      axis_name=None,
      min_size=tx.scheme.min_size,
      dense_paths=tx.scheme.dense_paths,
    )

  def seen(grads, state, second):
    """(what unpack restores, what round returned, own if it is a Sparse)."""
    out = []

    def run(message, comm):
      again = message.code.unpack(message.words, message.rounded, message.ctx)
      rounded = message.rounded
      if isinstance(rounded, Sparse):  # which entries a chunk has, is not sent
        rounded = dataclasses.replace(rounded, per_chunk=None)
      wanted: Any = jax.tree.structure(rounded)
      if jax.tree.structure(again) != wanted:
        kinds = type(again).__name__, type(rounded).__name__
        laws.fail(
          1, case, 'code.unpack returned {} and code.round {}'.format(*kinds)
        )
      own = message.own if isinstance(message.own, Sparse) else None
      out.append((again, rounded, own))
      return exchange.run(message, comm)

    alone(exchange._replace(run=run)).update(grads, state, second_moment=second)
    return out

  rng = np.random.default_rng(seed)
  grads = jax.tree.map(lambda g: g[0], gradients(params, 1, rng))
  second = jax.tree.map(lambda g: np.square(g, dtype=np.float32) / 2, grads)
  args = grads, alone(exchange).init(params), second
  found = jax.jit(seen).lower(*args).compile(laws.QUICKLY)(*args)
  for again, rounded, own in found:
    laws.same_bits(1, case, 'what `unpack` makes of `pack`', again, rounded)
    if own is not None:
      _check_sparse(own, case)


def _check_sparse(own: Sparse, case: Case) -> None:
  """Checks the order, the empty slots and the leaves' limits of a Sparse."""
  indices, values = np.asarray(own.indices), np.asarray(own.values)
  held = indices[indices < own.space.size]
  if np.any(np.diff(indices) < 0) or np.any(np.diff(held) == 0):
    laws.fail(1, case, f'a Sparse has indices that do not ascend: {indices}')
  if np.any(values[indices >= own.space.size]):
    laws.fail(1, case, f'empty slots of a Sparse hold {values}')
  ends = np.searchsorted(held, own.space.offsets)
  for leaf, (n, most) in enumerate(
    zip(np.diff(ends), own.space.limits, strict=True)
  ):
    if n > most:
      laws.fail(1, case, f'leaf {leaf} has {n} entries, its limit is {most}')
