"""What schemes ask of whoever calls their `update`, told by their `init`.

An optax transformation is a pair of functions; one cannot see what is inside.
But its `init` calls the `init` of all that is inside, and a scheme's tells
those who listen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import contextvars
import dataclasses
from typing import Any

import optax


@dataclasses.dataclass
class Demands:
  """What some scheme inside needs.

  Attributes:
    second_moment: the update's keyword of this name.
  """

  second_moment: bool = False

  def given(self, moments: Any) -> dict[str, Any]:
    """The update's keywords, where these are the moments."""
    return {'second_moment': moments} if self.second_moment else {}


_LISTENING: contextvars.ContextVar[tuple[Demands, ...]] = (
  contextvars.ContextVar('gradsparse_demands', default=())
)


def update_of(tx: Any) -> Callable[..., Any]:
  """The update of a transformation, which takes any keywords.

  optax.MultiSteps is no transformation by its class, but hands them on.
  """
  if isinstance(tx, optax.MultiSteps):
    return tx.update
  return optax.with_extra_args_support(tx).update


@contextlib.contextmanager
def heard() -> Iterator[Demands]:
  """Inside of it, every scheme whose `init` runs adds what it needs."""
  demands = Demands()
  token = _LISTENING.set((*_LISTENING.get(), demands))
  try:
    yield demands
  finally:
    _LISTENING.reset(token)


def tell(*, second_moment: bool) -> None:
  """A scheme's `init` says what its `update` needs."""
  for demands in _LISTENING.get():
    demands.second_moment |= second_moment
