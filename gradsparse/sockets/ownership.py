"""Which part of a state is a worker's own, and which is equal on all.

The class of a NamedTuple state says so. `shared` names the fields that are
equal on all workers, and the others are the worker's own; `local` names the
worker's own. If a class says nothing, the state that holds it decides.

  @shared('mean')
  class EstimateState(NamedTuple):
    ...

What is a worker's own must go to others when their number changes
(`gs.workers.resize`). `resized` says how, where it is not as a sum of
gradients goes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax

_Class = TypeVar('_Class', bound=type)
# Class attribute with the names of the fields that are a worker's own.
_LOCAL = 'local_fields'
# Class attribute with the rules of some fields.
_RESIZED = 'resized_fields'

# How a new worker gets its part of what old workers had. It takes the shares w
# of theirs, which add up to 1:
#   share    sum w x: so the mean over workers stays what it was
#   squares  sum w^2 x: x is a sum of squares of what adds up to a `share`
#   copy     that of one old worker: x is equal on all, or only a measurement
RULES = ('share', 'squares', 'copy')


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


def resized(**rules: str) -> Callable[[_Class], _Class]:
  """Of a NamedTuple class: how these fields go to other numbers of workers.

  Without a rule numbers go by 'share', as all that adds up linearly to an
  update does: a residual, a velocity, a momentum. A field's rule is that of
  all that it holds, unless a class in there says otherwise.

  Args:
    **rules: of fields: 'share', 'squares' for a sum of squares of what goes by
      'share', or 'copy' for what is equal on all workers, or no debt.

  Raises:
    ValueError: the class has no such field, or there is no such rule.
  """
  for rule in rules.values():
    if rule not in RULES:
      raise ValueError(f'a rule must be one of {RULES}, got {rule!r}')

  def decorate(cls: _Class) -> _Class:
    _fields(cls, tuple(rules))
    setattr(cls, _RESIZED, rules)
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
  return _by_field(
    state, _LOCAL, lambda node, name, _: name in local_fields(node), default
  )


def resize_rules(state: Any, default: str = 'share') -> Any:
  """By which of `RULES` each leaf goes to another number of workers.

  Args:
    state: any tree, with states inside whose classes say so.
    default: the answer for leaves of which no class says anything.

  Returns:
    A tree like `state` of words.
  """
  return _by_field(
    state,
    _RESIZED,
    lambda node, name, rule: getattr(node, _RESIZED).get(name, rule),
    default,
  )


def _by_field(
  state: Any,
  attribute: str,
  answer: Callable[[Any, str, Any], Any],
  default: Any,
) -> Any:
  """A tree like `state` of what the classes with an attribute say.

  Args:
    state: any tree.
    attribute: which classes say something.
    answer: (node, field, the answer for the node) -> that for the field.
    default: for leaves of which no class says anything.
  """

  def says(node):
    return hasattr(node, attribute)

  def mark(node):
    if not says(node):
      return default
    return type(node)(
      *(
        _by_field(
          getattr(node, name), attribute, answer, answer(node, name, default)
        )
        for name in node._fields
      )
    )

  return jax.tree.map(mark, state, is_leaf=says)
