"""Refuses compositions that would hang or silently skip the averaging.

Both mistakes are made by wrapping, outside of our sight: what we can see is
who called us. So these checks read the Python stack, once, while tracing.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import jax
import optax


def _called_from(names: tuple[str, ...]) -> bool:
  """Whether a function of optax with one of these names is on the stack."""
  frame: types.FrameType | None = sys._getframe(1)
  while frame is not None:
    outermost = frame.f_code.co_qualname.split('.')[0]
    if outermost in names and frame.f_globals.get('__name__', '').startswith(
      'optax'
    ):
      return True
    frame = frame.f_back
  return False


def refuse_conditional() -> None:
  """`optax.apply_if_finite(scheme)` would leave workers waiting for others.

  Raises:
    ValueError: our update is traced inside apply_if_finite.
  """
  if _called_from(('apply_if_finite',)):
    raise ValueError(
      'a gradsparse scheme cannot run inside optax.apply_if_finite: one '
      'worker with a NaN would skip the exchange while the others wait for '
      'it. Put apply_if_finite around the optimizer after it: '
      'optax.chain(gs.dgc(...), optax.apply_if_finite(optax.sgd(lr), 5)). '
      'The scheme itself rejects a step with a non-finite gradient on all '
      'workers together.'
    )


def refuse_masked(tree: Any) -> None:
  """`optax.masked(scheme)` passes the other leaves' local gradients on.

  Raises:
    ValueError: some leaves are masked, and not by optax.partition.
  """

  def is_masked(x):
    return isinstance(x, optax.MaskedNode)

  leaves = jax.tree.leaves(tree, is_leaf=is_masked)
  if any(map(is_masked, leaves)) and not _called_from(
    ('partition', 'multi_transform')
  ):
    raise ValueError(
      'optax.masked around a gradsparse scheme leaves the masked leaves '
      'without anybody to average them: workers would drift apart. Use '
      "optax.partition({'a': gs.dgc(...), 'b': gs.dense(...)}, labels)."
    )
