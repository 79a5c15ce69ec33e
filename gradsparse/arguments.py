"""Checks of arguments before anything is traced: one function for each kind.

Each function returns the argument as plain Python. NumPy scalars and arrays
without axes count as numbers, bools do not. A wrong argument raises an error
that names the argument, its rule and the value:

  TypeError   the value is of another kind: text where a number belongs
  ValueError  the value is of the right kind, but out of range
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
import difflib
import math
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# A simulated collective lists every worker. A plan for more workers would
# exhaust the machine's memory.
MOST_WORKERS = 65_536
# Steps, and most other numbers, are counted in int32.
LAST_STEP = 2**31 - 1


class Range(NamedTuple):
  """The numbers that an argument may be; nan is in no range.

  Attributes:
    words: the rule, as it follows "must be" in a message.
    holds: number -> bool; a traced number gives a traced bool.
  """

  words: str
  holds: Callable[[Any], Any]


POSITIVE = Range('a finite number > 0', lambda x: (x > 0) & (x < math.inf))
POSITIVE_OR_INFINITE = Range('a number > 0', lambda x: x > 0)
# A fraction that is sent or kept.
FRACTION = Range('in (0, 1]', lambda x: (x > 0) & (x <= 1))
# A fraction that is left out.
FRACTION_OR_ZERO = Range('in [0, 1]', lambda x: (x >= 0) & (x <= 1))
NOT_NEGATIVE = Range(
  'a finite number >= 0', lambda x: (x >= 0) & (x < math.inf)
)
LESS_THAN_ONE = Range('in [0, 1)', lambda x: (x >= 0) & (x < 1))


def _plain(name: str, kind: str, value: Any) -> Any:
  """A scalar of NumPy or JAX as a Python number; keeps other values."""
  if isinstance(value, jax.core.Tracer):
    raise TypeError(
      f'{name} must be {kind} known before tracing, got {value!r} (inside '
      'optax.inject_hyperparams name it in static_args)'
    )
  if getattr(value, 'shape', None) != ():
    return value
  array = np.asarray(value)
  if jnp.issubdtype(array.dtype, jnp.floating):
    # float32's 0.1 is read as 0.1: its exact value could make k one larger.
    return float(str(array))
  return array.item()


def number(
  name: str,
  value: Any,
  within: Range,
  *,
  traced: bool = False,
  float64: bool = False,
) -> Any:
  """Checks a number in a range.

  Args:
    name: the argument's name.
    value: the argument.
    within: the range.
    traced: whether the value may be traced. A traced value is not checked here
      (see `traced.in_range`), and a JAX array is returned as a JAX array.
    float64: whether float64 leaves are computed with the value.

  Raises:
    TypeError: the value is not a number.
    ValueError: the value is out of range, or is so as a float32.
  """
  if traced and isinstance(value, jax.core.Tracer):
    return value
  plain = _plain(name, 'a number', value)
  if isinstance(plain, bool) or not isinstance(plain, (int, float)):
    raise TypeError(f'{name} must be a number, got {value!r}')
  if not within.holds(plain):
    raise ValueError(f'{name} must be {within.words}, got {plain}')
  if not float64 and not within.holds(_as_float32(plain)):
    raise ValueError(f'{name} must be {within.words} in float32, got {plain}')
  # JAX would take a larger int for an int32.
  plain = float(plain) if plain > LAST_STEP else plain
  return value if traced and isinstance(value, jax.Array) else plain


def _as_float32(value: int | float) -> float:
  """The number that XLA computes with."""
  with np.errstate(over='ignore'):
    return float(np.float32(value)) if value < 2**128 else math.inf


def whole_number(
  name: str,
  value: Any,
  least: int,
  most: int | None = None,
  *,
  traced: bool = False,
) -> Any:
  """Checks a whole number >= `least`, and <= `most` or what int32 can hold.

  Raises:
    TypeError: the value is not a whole number (7.0 is not one).
    ValueError: the value is out of range.
  """
  if traced and isinstance(value, jax.core.Tracer):
    return value
  plain = _plain(name, 'a whole number', value)
  if isinstance(plain, bool) or not isinstance(plain, int):
    raise TypeError(f'{name} must be a whole number, got {value!r}')
  if plain < least and most is None:
    raise ValueError(f'{name} must be at least {least}, got {plain}')
  largest = LAST_STEP if most is None else most
  if not least <= plain <= largest:
    raise ValueError(f'{name} must be in {least}..{largest}, got {plain}')
  return plain


def flag(name: str, value: Any) -> bool:
  """Checks a bool.

  Raises:
    TypeError: the value is neither True nor False.
  """
  plain = _plain(name, 'True or False', value)
  if not isinstance(plain, bool):
    raise TypeError(f'{name} must be True or False, got {value!r}')
  return plain


def one_of(name: str, value: Any, options: Collection[str]) -> str:
  """Checks that text is one of several words, such as the keys of a table.

  Raises:
    TypeError: the value is not text.
    ValueError: the value is another word.
  """
  words = tuple(options)
  rule = f'one of {words}' if len(words) > 1 else repr(words[0])
  message = f'{name} must be {rule}, got {value!r}'
  if not isinstance(value, str):
    raise TypeError(message)
  if value not in options:
    raise ValueError(message)
  return value


def instance(name: str, value: Any, kind: type) -> Any:
  """Checks an object of a class.

  Raises:
    TypeError: the object is of another class.
  """
  if not isinstance(value, kind):
    article = 'an' if kind.__name__[0] in 'AEIO' else 'a'
    raise TypeError(
      f'{name} must be {article} {kind.__name__}, got {type(value).__name__}'
    )
  return value


def function(name: str, value: Any) -> Any:
  """Checks a function.

  Raises:
    TypeError: the value cannot be called.
  """
  if not callable(value):
    raise TypeError(f'{name} must be a function, got {value!r}')
  return value


def sequence(name: str, value: Any) -> tuple[Any, ...]:
  """Checks a tuple, a list or an array with one axis; returns a tuple.

  Raises:
    TypeError: the value is anything else.
  """
  listed = isinstance(value, (tuple, list, np.ndarray))
  if not listed or getattr(value, 'ndim', 1) != 1:
    raise TypeError(f'{name} must be a sequence, got {value!r}')
  return tuple(value)


def arrays(name: str, tree: Any) -> None:
  """Refuses a tree with leaves that are neither arrays nor numbers.

  Args:
    name: the argument's name.
    tree: leaves are arrays, or objects with a shape and a dtype. None is an
      empty tree.

  Raises:
    TypeError: a leaf is anything else. The message names the first such leaf.
  """
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    try:
      if not isinstance(leaf, (str, type)):  # 'f4' and float name a dtype
        jnp.result_type(leaf)
        continue
    except TypeError:
      pass
    raise TypeError(
      f'{name}: {leaf_name(path)} must be an array or a number, got {leaf!r}. '
      'Divide a model that holds other things first, and give its arrays only: '
      'params, rest = eqx.partition(model, eqx.is_inexact_array), or '
      'graph, params, rest = nnx.split(model, nnx.Param, ...)'
    )


def leaf_name(path: Any) -> str:
  """The name of a leaf in messages."""
  return jax.tree_util.keystr(path) or 'the only leaf'


def leaf_names(tree: Any, numbers: Iterable[Any]) -> list[str]:
  """The names in messages of some leaves of a tree, in the tree's order."""
  paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
  return [leaf_name(paths[n]) for n in sorted(map(int, numbers))]


def transformation(name: str, value: Any) -> Any:
  """Checks an optax transformation, or another object with `init` and `update`.

  Raises:
    TypeError: the value is anything else, such as a factory that was not
      called.
  """
  parts = (getattr(value, 'init', None), getattr(value, 'update', None))
  if not all(map(callable, parts)):
    raise TypeError(
      f'{name} must be an optax transformation such as gs.dgc(...), with init '
      f'and update, got {type(value).__name__}'
    )
  return value


def did_you_mean(name: Any, known: Iterable[str]) -> str:
  """A hint such as ` (did you mean 'workers'?)`, or an empty string."""
  close = difflib.get_close_matches(str(name), list(map(str, known)), n=1)
  return f' (did you mean {close[0]!r}?)' if close else ''


# --- arguments that several factories share --------------------------------


def density(value: Any) -> Any:
  """Checks a fraction, a schedule (a function of the step) or a traced number.

  Raises:
    TypeError: the value is neither a number nor a schedule.
    ValueError: the number is not in (0, 1].
  """
  if callable(value):
    return value
  try:
    return number('density', value, FRACTION, traced=True)
  except TypeError as e:
    raise TypeError(
      f'density must be a number or a schedule, got {value!r}'
    ) from e


def ladder(value: Any) -> tuple[float, ...]:
  """Checks ascending fractions.

  Raises:
    TypeError: the value is not a sequence of numbers.
    ValueError: the sequence is empty, does not ascend, or leaves (0, 1].
  """
  rungs = tuple(
    number('each rung of ladder', x, FRACTION)
    for x in sequence('ladder', value)
  )
  ascending = all(a < b for a, b in zip(rungs, rungs[1:], strict=False))
  if not rungs or not ascending:
    raise ValueError(
      f'ladder must be ascending fractions in (0, 1], got {rungs}'
    )
  return rungs


def axis_name(value: Any, *, optional: bool = True) -> Any:
  """Checks the name of a mapped axis, a tuple of names, or None.

  Raises:
    TypeError: the value is anything else.
    ValueError: the tuple is empty, or a name is empty or given twice.
  """
  if value is None and optional:
    return value
  names = (value,) if value is None else axis_names(value)
  if not all(isinstance(name, str) for name in names):
    raise TypeError(
      'axis_name must be a string or a tuple of strings'
      + (', or None for one worker' if optional else '')
      + f', got {value!r}'
    )
  if not names or '' in names:
    raise ValueError(f'axis_name must name an axis, got {value!r}')
  if len(set(names)) < len(names):
    raise ValueError(f'axis_name must name each axis once, got {value!r}')
  return value


def axis_names(axis_name: Any) -> tuple[str, ...]:
  """The names in an `axis_name`; None has none."""
  if axis_name is None:
    return ()
  return axis_name if isinstance(axis_name, tuple) else (axis_name,)


def num_workers(value: Any) -> int:
  """Checks the number of workers.

  Raises:
    TypeError: the value is not a whole number.
    ValueError: the number is not in 1..MOST_WORKERS.
  """
  return whole_number('num_workers', value, 1, MOST_WORKERS)


def seed(value: Any, name: str = 'seed') -> Any:
  """Checks a seed of random draws: 32 bits, as `jax.random.key` drops others.

  Args:
    value: the argument.
    name: the argument's name.

  Raises:
    TypeError: the value is not a whole number.
    ValueError: the number is not in 0..2^32 - 1.
  """
  return whole_number(name, value, 0, 2**32 - 1, traced=True)


def min_size(value: Any) -> int | None:
  """Checks a number of elements, or None.

  Raises:
    TypeError: the value is not a whole number.
    ValueError: the number is negative.
  """
  return None if value is None else whole_number('min_size', value, 0)


def regular_expression(name: str, value: Any) -> str:
  """Checks a regular expression.

  Raises:
    TypeError: the value is not text.
    ValueError: the text is not a regular expression.
  """
  if not isinstance(value, str):
    raise TypeError(f'{name} must be a regular expression, got {value!r}')
  try:
    re.compile(value)
  except re.error as e:
    raise ValueError(
      f'{name} must be a regular expression, got {value!r}: {e}'
    ) from e
  return value


def dense_paths(value: Any) -> Any:
  """Checks a regular expression, a function of the path, or None.

  Raises:
    TypeError: the value is anything else.
    ValueError: the text is not a regular expression.
  """
  if isinstance(value, str):
    regular_expression('dense_paths', value)
  elif value is not None and not callable(value):
    raise TypeError(
      'dense_paths must be a regular expression or a function of the path, '
      f'got {value!r}'
    )
  return value
