"""Refuses compositions that would hang or silently skip the averaging.

Both mistakes are made by wrapping, outside of our sight: what we can see is
who called us. So these checks read the Python stack, once, while tracing.
"""

from __future__ import annotations

from collections.abc import Iterator
import sys
import types
from typing import Any

import jax
import optax


def _optax_frames() -> Iterator[types.FrameType]:
  """Frames of optax on the stack, the innermost first."""
  frame: types.FrameType | None = sys._getframe(1)
  while frame is not None:
    if frame.f_globals.get('__name__', '').startswith('optax'):
      yield frame
    frame = frame.f_back


def _called_from(names: tuple[str, ...]) -> bool:
  """Whether a function of optax with one of these names is on the stack."""
  return any(
    frame.f_code.co_qualname.split('.')[0] in names for frame in _optax_frames()
  )


def only_shapes_wanted() -> bool:
  """Whether optax.MultiSteps asks for the shapes of an update it skips.

  It does so by `eval_shape`, in which no exchange must be counted.
  """
  return any(
    frame.f_code.co_qualname.startswith('MultiSteps.')
    and frame.f_code.co_name == '_skip_update'
    for frame in _optax_frames()
  )


def _skips_by_gradient() -> bool:
  """Whether an optax.MultiSteps around us was given a rule when to skip."""
  for frame in _optax_frames():
    around = frame.f_locals.get('self')
    if isinstance(around, optax.MultiSteps):
      rule = around._should_skip_update_fn
      return not rule.__qualname__.startswith('MultiSteps.')
  return False


def refuse_conditional() -> None:
  """`optax.apply_if_finite(scheme)` would leave workers waiting for others.

  So would MultiSteps with a rule such as `optax.skip_not_finite`.

  Raises:
    ValueError: our update is traced inside one of them.
  """
  if _called_from(('apply_if_finite',)) or _skips_by_gradient():
    raise ValueError(
      'a gradsparse scheme cannot run inside optax.apply_if_finite or '
      'optax.MultiSteps(should_skip_update_fn=...): one worker with a NaN '
      'would skip the exchange while the others wait for it. Put them around '
      'the optimizer after it: '
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
