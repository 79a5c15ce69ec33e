"""Finds the keyword arguments of an update that is traced for shapes.

An optax transformation is a pair of functions, which hide the schemes inside.
But its `init` calls the `init` of each scheme, which reports what the scheme
needs. The arguments of optax's own optimizers are known by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
import contextlib
import contextvars
import dataclasses
import re
import traceback
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import optax


@dataclasses.dataclass
class Demands:
  """The needs of the schemes inside a transformation.

  Attributes:
    second_moment: whether the update needs the keyword of this name.
    param_specs: path -> PartitionSpec, of parameters whose schemes have one.
  """

  second_moment: bool = False
  param_specs: dict[str, P] = dataclasses.field(default_factory=dict)


_LISTENING: contextvars.ContextVar[tuple[Demands, ...]] = (
  contextvars.ContextVar('gradsparse_demands', default=())
)


@contextlib.contextmanager
def heard() -> Iterator[Demands]:
  """A context in which every `init` of a scheme adds its needs."""
  demands = Demands()
  token = _LISTENING.set((*_LISTENING.get(), demands))
  try:
    yield demands
  finally:
    _LISTENING.reset(token)


def tell(*, second_moment: bool, param_specs: Mapping[str, P]) -> None:
  """Adds a scheme's needs and PartitionSpecs to the open `heard` contexts."""
  for demands in _LISTENING.get():
    demands.second_moment |= second_moment
    demands.param_specs |= param_specs


def gradients_of(params: Any) -> Any:
  """The part of the parameters that has the gradients' structure.

  It is all of them, except for `optax.lookahead`, which has each twice.
  """
  return params.fast if isinstance(params, optax.LookaheadParams) else params


def update_of(
  tx: Any,
  wanted: Demands,
  given: Mapping[str, Any] | None,
  asked: set[str] | None = None,
) -> Callable[[Any, Any, Any], Any]:
  """The update of a transformation with all further arguments bound.

  Args:
    tx: a transformation. optax.MultiSteps is not one by its class, but passes
      keywords on.
    wanted: the needs of the schemes inside.
    given: further keywords, which neither schemes nor optax's optimizers need.
      Of arrays, only shape and dtype are used.
    asked: names of arguments that optax's optimizers inside need. An update
      that fails without one adds its name here, and is traced again.

  Returns:
    (gradients, state, params) -> (updates, state), to be traced: the values of
    the further arguments have no meaning. All except a second moment are equal
    on all workers.

  Raises:
    TypeError: given is not a mapping; when called: the update needs an argument
      that is missing.
  """
  update = (
    tx.update
    if isinstance(tx, optax.MultiSteps)
    else optax.with_extra_args_support(tx).update
  )

  asked = set() if asked is None else asked
  if not isinstance(given or {}, Mapping):
    raise TypeError(
      'update_kwargs must be a mapping from names to arguments, got '
      f'{type(given).__name__}'
    )

  known = getattr(tx, 'known', lambda name: None)
  # An outer step, which is given no third argument.
  alone = known('takes_parameters')

  def once(grads, state, params):
    extra = {'second_moment': grads} if wanted.second_moment else {}
    extra |= {name: _OF_OPTAX[name](params) for name in asked}
    try:
      extra |= _values(given or {})
      return update(grads, state, None if alone else params, **extra)
    except (TypeError, ValueError, KeyError) as e:
      words = set(re.findall(r'\w+', str(e)))
      more = (words & _OF_OPTAX.keys()) - asked
      if more:
        asked.update(more)
        return once(grads, state, params)
      if not _looked_up(e) and 'required' not in str(e):
        raise
      raise TypeError(
        f'tx.update needs an argument that is missing: {e}. Pass it as '
        'update_kwargs={name: value}; of arrays only shape and dtype are used'
      ) from e

  return once


def _looked_up(error: Exception) -> bool:
  """Whether a function outside gradsparse looked up an argument in vain."""
  if not isinstance(error, KeyError) or not error.args:
    return False
  *_, (frame, _) = traceback.walk_tb(error.__traceback__)
  own = frame.f_globals.get('__name__', '').startswith('gradsparse.')
  return not own and str(error.args[0]).isidentifier()


def _value_fn(params: Any, *args: Any, **kwargs: Any) -> jax.Array:
  del args, kwargs
  squares = (jnp.sum(x * x) for x in jax.tree.leaves(params))
  return sum((x.astype(jnp.float32) for x in squares), jnp.float32(0))


# Arguments of optax's optimizers: name -> (parameters -> the argument). They
# refuse unknown arguments, so only those that an error names are passed.
_OF_OPTAX: dict[str, Callable[[Any], Any]] = {
  'value': lambda params: jnp.float32(0),
  'grad': gradients_of,
  'value_fn': lambda params: _value_fn,
  'obj_fn': lambda params: _value_fn,
  'grad_fn': lambda params: lambda params, *args: params,
}


def _values(given: Mapping[str, Any]) -> dict[str, Any]:
  """Replaces arrays by zeros; keeps other values."""
  return jax.tree.map(
    lambda x: (
      jnp.zeros(x.shape, x.dtype)
      if hasattr(x, 'shape') and hasattr(x, 'dtype')
      else x
    ),
    dict(given),
  )
