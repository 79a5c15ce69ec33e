"""Which leaves are summed as one array."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

# Arrays below this many elements are joined before they are summed, so that
# a tree with many biases pays few latencies; larger ones are not worth a copy.
# XLA takes long to compile one array made of very many.
_FUSE_BELOW = 1 << 16
_FUSE_AT_MOST = 64


def batches_of(leaves: Sequence[jax.Array], join: bool) -> list[list[int]]:
  """Numbers of the leaves that are summed as one array; none is empty."""
  alone, small = [], []
  for i, x in enumerate(leaves):
    if join and x.size < _FUSE_BELOW and x.dtype == jnp.float32:
      small += [i] if x.size else []
    elif x.size:
      alone.append([i])
  batches: list[list[int]] = []
  room = 0
  for i in small:
    if leaves[i].size > room or len(batches[-1]) == _FUSE_AT_MOST:
      batches.append([])
      room = _FUSE_BELOW
    batches[-1].append(i)
    room -= leaves[i].size
  return alone + batches
