"""Marks fields of states as a worker's own, or as equal on all workers.

The class of a NamedTuple state is decorated. `shared` names the fields that are
equal on all workers; the others are the worker's own. `local` names the
worker's own. For a class without a mark, the state that holds it decides.

  @shared('mean')
  class EstimateState(NamedTuple):
    ...

When the number of workers changes (`gs.workers.resize`), the new workers get
parts of the old ones' own fields. `resized` gives the rule of a field that is
not divided like a sum of gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax

_Class = TypeVar('_Class', bound=type)
# Class attribute: the names of the fields that are a worker's own.
_LOCAL = 'local_fields'
# Class attribute: the rules of fields.
_RESIZED = 'resized_fields'

# A new worker's part of the old workers' x. It takes shares w of old workers:
#   share    sum w x, which keeps the mean over workers
#   squares  sum w^2 x, where x is a sum of squares of terms of a `share`
#   copy     x of one old worker: x is equal on all, or only a measurement
RULES = ('share', 'squares', 'copy')


def shared(*names: str) -> Callable[[_Class], _Class]:
  """Decorates a NamedTuple class: these fields are equal on all workers.

  >>> import gradsparse as gs
  >>> from typing import Any, NamedTuple
  >>> @gs.extend.shared('mean')
  ... class State(NamedTuple):
  ...   residual: Any
  ...   mean: Any
  >>> State.local_fields
  ('residual',)

  Raises:
    ValueError: the class has no such field.
  """

  def decorate(cls: _Class) -> _Class:
    fields = _fields(cls, names)
    return local(*(name for name in fields if name not in names))(cls)

  return decorate


def local(*names: str) -> Callable[[_Class], _Class]:
  """Decorates a NamedTuple class: these fields are each worker's own.

  >>> import gradsparse as gs
  >>> from typing import Any, NamedTuple
  >>> @gs.extend.local('residual')
  ... class State(NamedTuple):
  ...   residual: Any
  ...   mean: Any
  >>> State.local_fields
  ('residual',)

  Raises:
    ValueError: the class has no such field.
  """

  def decorate(cls: _Class) -> _Class:
    _fields(cls, names)
    setattr(cls, _LOCAL, names)
    return cls

  return decorate


def resized(**rules: str) -> Callable[[_Class], _Class]:
  """Decorates a NamedTuple class: rules for a change of the number of workers.

  A field without a rule goes by 'share', as suits all that contributes linearly
  to updates: a residual, a velocity, a momentum. A field's rule applies to all
  leaves in it, unless a class inside has its own.

  >>> import gradsparse as gs
  >>> from typing import Any, NamedTuple
  >>> @gs.extend.resized(variance='squares')
  ... class State(NamedTuple):
  ...   residual: Any
  ...   variance: Any
  >>> State.resized_fields
  {'variance': 'squares'}

  Args:
    **rules: field -> rule: 'share'; 'squares', for a sum of squares of terms of
      a 'share'; or 'copy', for values that are equal on all workers, or are
      measurements.

  Raises:
    ValueError: the class has no such field, or there is no such rule.
  """
  for name, rule in rules.items():
    if rule not in RULES:
      raise ValueError(
        f'the rule of {name} must be one of {RULES}, got {rule!r}'
      )

  def decorate(cls: _Class) -> _Class:
    _fields(cls, tuple(rules))
    setattr(cls, _RESIZED, rules)
    return cls

  return decorate


def _fields(cls: Any, names: tuple[str, ...]) -> tuple[str, ...]:
  """The fields of a NamedTuple class; checks that they contain the names."""
  for name in names:
    if name not in cls._fields:
      raise ValueError(
        f'{cls.__name__} has no field {name!r}, only {", ".join(cls._fields)}'
      )
  return cls._fields


def local_fields(state: Any) -> tuple[str, ...]:
  """The names of the fields that are a worker's own; all without a mark."""
  return getattr(state, _LOCAL, state._fields)


def is_local(state: Any, default: bool = False) -> Any:
  """Which leaves are a worker's own.

  Args:
    state: any tree, with marked states inside.
    default: the answer for leaves that no class marks.

  Returns:
    A tree like `state` of bools.
  """
  return _by_field(
    state, _LOCAL, lambda node, name, _: name in local_fields(node), default
  )


def resize_rules(state: Any) -> Any:
  """The rule of `RULES` of each leaf: 'share' where no class marks another.

  Args:
    state: any tree, with marked states inside.

  Returns:
    A tree like `state` of words.
  """
  return _by_field(
    state,
    _RESIZED,
    lambda node, name, rule: getattr(node, _RESIZED).get(name, rule),
    'share',
  )


def _by_field(
  state: Any,
  attribute: str,
  answer: Callable[[Any, str, Any], Any],
  default: Any,
) -> Any:
  """A tree like `state` with the answers of classes that have an attribute.

  Args:
    state: any tree.
    attribute: the attribute.
    answer: (node, field, the answer for the node) -> that for the field.
    default: the answer for leaves that no class marks.
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
