"""Checks what the functions of a socket return, by shapes and types alone.

A function that someone wrote may forget its `return`. What it gives back is
checked where it comes back, so that the error names the function.
"""

from __future__ import annotations

from typing import Any

from gradsparse.sockets.compressor import Stream
from gradsparse.sockets.values import Leaves
from gradsparse.sockets.values import Marked
from gradsparse.sockets.values import Parts
from gradsparse.sockets.values import Sparse
import jax
import jax.numpy as jnp

_PAYLOADS = (Sparse, Marked, Leaves, Parts)
_WORDS = (jnp.uint32, jnp.float32)


def selected(sent: Any) -> None:
  """What `Compressor.select` returns.

  Raises:
    TypeError: indices of a `Sparse` that are not int32.
  """
  if isinstance(sent, Sparse) and sent.indices.dtype != jnp.int32:
    raise TypeError(
      f'compressor.select: Sparse.indices must be int32, got '
      f'{sent.indices.dtype}'
    )


def decoded(own: Any) -> None:
  """What `Code.decode` returns, or `Code.round` where there is no `decode`.

  Raises:
    TypeError: it is no payload.
  """
  if not isinstance(own, _PAYLOADS):
    names = ', '.join(kind.__name__ for kind in _PAYLOADS)
    raise TypeError(
      f'code.decode (or code.round, without a decode) must return one of '
      f'{names}, got {type(own).__name__}'
    )


def packed(words: Any) -> None:
  """What `Code.pack` returns.

  Raises:
    TypeError: names the first part that cannot travel.
  """
  if isinstance(words, Stream):
    words = words.head, words.words
  for path, x in jax.tree_util.tree_leaves_with_path(words):
    kind = getattr(x, 'dtype', type(x).__name__)
    if kind not in _WORDS:
      raise TypeError(
        f'code.pack: word {jax.tree_util.keystr(path) or "(the only one)"} '
        f'must be an array of uint32 or float32, got {kind}'
      )


def state(function: str, new: Any, old: Any) -> Any:
  """A memory's state, after one of its functions.

  Args:
    function: its name, such as 'memory.sent'.
    new: what it returned.
    old: the state that it was given.

  Returns:
    The new state.

  Raises:
    TypeError: the tree, or the type of a leaf, is another one.
  """
  wanted: Any = jax.tree.structure(old)
  if jax.tree.structure(new) != wanted:
    raise TypeError(
      f'{function} must return a {type(old).__name__} like the one that it '
      f'got, returned {type(new).__name__ if new is not None else None}'
    )
  pairs = zip(
    jax.tree_util.tree_leaves_with_path(new), jax.tree.leaves(old), strict=True
  )
  for (path, x), y in pairs:
    if x.dtype != y.dtype:
      raise TypeError(
        f'{function} made {x.dtype} of {y.dtype}: state'
        f'{jax.tree_util.keystr(path)} must be float32 from memory.init on'
      )
  return new
