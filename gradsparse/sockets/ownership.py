"""Which part of a state is a worker's own, and which is equal on all.

The class of a NamedTuple state says so. `shared` names the fields that are
equal on all workers, and the others are the worker's own; `local` names the
worker's own. If a class says nothing, the state that holds it decides.

  @shared('mean')
  class EstimateState(NamedTuple):
    ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax

_Class = TypeVar('_Class', bound=type)
# Class attribute with the names of the fields that are a worker's own.
_LOCAL = 'local_fields'


def shared(*names: str) -> Callable[[_Class], _Class]:
  """Of a NamedTuple class: these fields are equal on all workers.

  Raises:
    ValueError: the class has no such field.
  """

  def decorate(cls: _Class) -> _Class:
    fields = _fields(cls, names)
    return local(*(name for name in fields if name not in names))(cls)

  return decorate


def local(*names: str) -> Callable[[_Class], _Class]:
  """Of a NamedTuple class: these fields are each worker's own.

  Raises:
    ValueError: the class has no such field.
  """

  def decorate(cls: _Class) -> _Class:
    _fields(cls, names)
    setattr(cls, _LOCAL, names)
    return cls

  return decorate


def _fields(cls: Any, names: tuple[str, ...]) -> tuple[str, ...]:
  """The fields of a NamedTuple class, which the names must be among."""
  for name in names:
    if name not in cls._fields:
      raise ValueError(
        f'{cls.__name__} has no field {name!r}, only {", ".join(cls._fields)}'
      )
  return cls._fields


def local_fields(state: Any) -> tuple[str, ...]:
  """Names of the fields that are a worker's own: all if its class is silent."""
  return getattr(state, _LOCAL, state._fields)


def shared_fields(state: Any) -> tuple[str, ...]:
  """Names of the other fields, which are equal on all workers."""
  own = local_fields(state)
  return tuple(name for name in state._fields if name not in own)


def is_local(state: Any, default: bool = False) -> Any:
  """Which leaves are a worker's own.

  Args:
    state: any tree, with states inside whose classes say so.
    default: the answer for leaves of which no class says anything.

  Returns:
    A tree like `state` of bools.
  """

  def says(node):
    return hasattr(node, _LOCAL)

  def mark(node):
    if not says(node):
      return default
    own = local_fields(node)
    return type(node)(
      *(
        is_local(getattr(node, name), default=name in own)
        for name in node._fields
      )
    )

  return jax.tree.map(mark, state, is_leaf=says)
