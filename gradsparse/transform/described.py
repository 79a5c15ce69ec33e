"""Transformations whose `repr` is the call that makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import functools
import inspect
from typing import Any, ParamSpec, Self, TypeVar

from gradsparse import tables
import optax

# Attribute of a transformation's `update` with its further attributes.
_KNOWN = '_gradsparse_known'


class Described(optax.GradientTransformationExtraArgs):
  """An optax transformation with a readable `repr`.

  `jax.tree.map`, `copy.deepcopy`, `dataclasses.asdict` and cloudpickle copy a
  NamedTuple from its fields. Further attributes of a transformation are
  therefore kept on the function `update`.

  Attributes:
    text: the `repr` of the transformation.
  """

  @classmethod
  def of(
    cls, init: Callable[..., Any], update: Callable[..., Any], **known: Any
  ) -> Self:
    """A transformation with further attributes, such as its `text`."""
    setattr(update, _KNOWN, known)
    return cls(init, update)

  def known(self, name: str) -> Any:
    """One of the further attributes, or None."""
    return getattr(self.update, _KNOWN, {}).get(name)

  def named(self, text: str) -> Self:
    """The same transformation, with another text."""
    getattr(self.update, _KNOWN)['text'] = text
    return self

  @property
  def text(self) -> str:
    return self.known('text') or super().__repr__()

  def __repr__(self) -> str:
    return self.text

  def _repr_html_(self) -> str:
    """The table that a notebook shows."""
    return tables.as_html(self._lines(), left=(0, 1))

  def _lines(self) -> list[tuple[str, str]]:
    """The lines of that table."""
    return [('transformation', self.text)]


_P = ParamSpec('_P')
_Made = TypeVar('_Made', bound=Described)


def described(factory: Callable[_P, _Made]) -> Callable[_P, _Made]:
  """Decorates a factory: its results have the call as `repr`."""
  signature = inspect.signature(factory)

  @functools.wraps(factory)
  def make(*args: _P.args, **kwargs: _P.kwargs) -> _Made:
    made = factory(*args, **kwargs)
    given = {
      name: value
      for name, value in signature.bind(*args, **kwargs).arguments.items()
      if value is not signature.parameters[name].default
    }
    return made.named(call(factory.__name__, given))

  return make


def call(name: str, arguments: Mapping[str, Any]) -> str:
  """The text of a call: `gs.dgc(density=0.001, axis_name='workers')`."""
  said = ', '.join(f'{key}={_value(x)}' for key, x in arguments.items())
  return f'gs.{name}({said})'


def got(x: Any) -> str:
  """What an error says that it got: the call of a transformation of ours."""
  return repr(x) if isinstance(x, Described) else type(x).__name__


def _value(x: Any) -> str:
  """The source text of a value; `...` if its repr is only an address."""
  if isinstance(x, optax.GradientTransformation):
    return repr(x) if isinstance(x, Described) else '...'
  text = repr(x)
  return getattr(x, '__name__', '...') if ' at 0x' in text else text
