"""Transformations whose `repr` is the call that makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import functools
import inspect
from typing import Any, ParamSpec, TypeVar

import optax


class Described(optax.GradientTransformationExtraArgs):
  """An optax transformation that says what it is.

  Attributes:
    text: its `repr`.
  """

  text: str

  def __new__(
    cls, init: Callable[..., Any], update: Callable[..., Any], text: str
  ) -> Described:
    self = super().__new__(cls, init, update)
    self.text = text
    return self

  def __repr__(self) -> str:
    return self.text


_P = ParamSpec('_P')
_Made = TypeVar('_Made', bound=Described)


def described(factory: Callable[_P, _Made]) -> Callable[_P, _Made]:
  """The same factory, whose results say how it was called."""
  signature = inspect.signature(factory)

  @functools.wraps(factory)
  def make(*args: _P.args, **kwargs: _P.kwargs) -> _Made:
    made = factory(*args, **kwargs)
    given = signature.bind(*args, **kwargs).arguments
    made.text = call(
      factory.__name__,
      {
        name: value
        for name, value in given.items()
        if value is not signature.parameters[name].default
      },
    )
    return made

  return make


def call(name: str, arguments: Mapping[str, Any]) -> str:
  """The text of a call: `gs.dgc(density=0.001, axis_name='workers')`."""
  said = ', '.join(f'{key}={_value(x)}' for key, x in arguments.items())
  return f'gs.{name}({said})'


def _value(x: Any) -> str:
  """As one would write it; `...` where only an address is known."""
  if isinstance(x, optax.GradientTransformation):
    return repr(x) if isinstance(x, Described) else '...'
  text = repr(x)
  return getattr(x, '__name__', '...') if ' at 0x' in text else text
