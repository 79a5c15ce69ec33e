"""Checks of loss functions and batches, for code that differentiates losses."""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any

from gradsparse import arguments
import jax
import jax.numpy as jnp


def checked(
  loss_fn: Callable[..., Any], *, has_aux: bool = False
) -> Callable[..., Any]:
  """Wraps a loss function to refuse a result that has no gradient.

  Args:
    loss_fn: returns a scalar; with has_aux, (scalar, anything).
    has_aux: see loss_fn.

  Raises:
    TypeError: loss_fn is not a function; when called: it returns anything else.
  """
  arguments.function('loss_fn', loss_fn)

  @functools.wraps(loss_fn)
  def call(*args):
    out = loss_fn(*args)
    if has_aux and not (isinstance(out, tuple) and len(out) == 2):
      raise TypeError(
        f'loss_fn must return (loss, aux) with has_aux=True, got {out!r}'
      )
    loss = out[0] if has_aux else out
    if not _is_scalar(loss):
      raise TypeError(
        f'loss_fn must return a scalar of floating-point numbers, got {loss!r}'
      )
    return out

  return call


def _is_scalar(loss: Any) -> bool:
  """Whether a loss is one floating-point number."""
  try:
    arguments.arrays('loss', [loss])
  except TypeError:
    return False
  if not jax.tree_util.all_leaves([loss]):
    return False  # a tree, None for instance
  floating = jnp.issubdtype(jnp.result_type(loss), jnp.floating)
  return floating and jnp.shape(loss) == ()


def examples(name: str, batch: Any) -> int:
  """The number of examples of a batch: the leading axis of all its arrays.

  Args:
    name: the argument's name.
    batch: tree of arrays.

  Raises:
    TypeError: a leaf is not an array.
    ValueError: there is no example, or arrays have different numbers of them.
  """
  arguments.arrays(name, batch)
  shapes = [jnp.shape(x) for x in jax.tree.leaves(batch)]
  if not shapes or () in shapes or len({shape[0] for shape in shapes}) != 1:
    raise ValueError(
      f'all arrays of {name} must have the examples as leading axis, got '
      f'shapes {shapes}'
    )
  if not shapes[0][0]:
    raise ValueError(
      f'{name} must have at least 1 example, got shapes {shapes}'
    )
  return shapes[0][0]
