"""What an update must be given beside gradients, when it is traced for shapes.

An optax transformation is a pair of functions; one cannot see what is inside.
Its `init` calls the `init` of all that is inside, and a scheme's tells those
who listen. What optax's own optimizers ask for is known by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
import contextlib
import contextvars
import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import optax


@dataclasses.dataclass
class Demands:
  """What some scheme inside needs.

  Attributes:
    second_moment: the update's keyword of this name.
    param_specs: PartitionSpecs of parameters by their paths, as far as the
      schemes were given some.
  """

  second_moment: bool = False
  param_specs: dict[str, P] = dataclasses.field(default_factory=dict)


_LISTENING: contextvars.ContextVar[tuple[Demands, ...]] = (
  contextvars.ContextVar('gradsparse_demands', default=())
)


@contextlib.contextmanager
def heard() -> Iterator[Demands]:
  """Inside of it, every scheme whose `init` runs adds what it needs."""
  demands = Demands()
  token = _LISTENING.set((*_LISTENING.get(), demands))
  try:
    yield demands
  finally:
    _LISTENING.reset(token)


def tell(*, second_moment: bool, param_specs: Mapping[str, P]) -> None:
  """A scheme's `init` says what its `update` needs, and what it was given."""
  for demands in _LISTENING.get():
    demands.second_moment |= second_moment
    demands.param_specs |= param_specs


def gradients_of(params: Any) -> Any:
  """The part of the parameters that gradients are like.

  That is all of them, but for `optax.lookahead`, which has each twice.
  """
  return params.fast if isinstance(params, optax.LookaheadParams) else params


def update_of(
  tx: Any,
  wanted: Demands,
  given: Mapping[str, Any] | None,
  asked: set[str] | None = None,
) -> Callable[[Any, Any, Any], Any]:
  """The update of a transformation, given all further arguments it asks for.

  Args:
    tx: a transformation. optax.MultiSteps is none by its class, but hands
      keywords on.
    wanted: what the schemes inside want.
    given: further keywords, where the update wants others than optax's. Of
      arrays, or what has their shape and dtype, only that is used.
    asked: names of what optax's optimizers inside want. An update that fails
      for want of one adds it here, and is traced again.

  Returns:
    (gradients, state, params) -> (updates, state). It is there to be traced:
    the arguments mean nothing. All but a second moment are equal on all
    workers.

  Raises:
    TypeError: `given` is no mapping; or, when called, the update wants an
      argument that it was not given.
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

  def once(grads, state, params):
    extra = {'second_moment': grads} if wanted.second_moment else {}
    extra |= {name: _OF_OPTAX[name](params) for name in asked}
    try:
      return update(grads, state, params, **(extra | _values(given or {})))
    except (TypeError, ValueError, KeyError) as e:
      words = set(re.findall(r'\w+', str(e)))
      more = (words & _OF_OPTAX.keys()) - asked
      if more:
        asked.update(more)
        return once(grads, state, params)
      key = isinstance(e, KeyError) and str(e.args[0]).isidentifier()
      if not key and 'required' not in str(e):
        raise
      raise TypeError(
        f'an update of tx failed for want of an argument: {e}. Give it as '
        'update_kwargs={name: value} of this call; of arrays only the shape '
        'and dtype count'
      ) from e

  return once


def _value_fn(params: Any, *args: Any, **kwargs: Any) -> jax.Array:
  del args, kwargs
  squares = (jnp.sum(x * x) for x in jax.tree.leaves(params))
  return sum((x.astype(jnp.float32) for x in squares), jnp.float32(0))


# What the optimizers of optax ask for: parameters -> the argument. They refuse
# what they do not know, so that only what an error names is given.
_OF_OPTAX: dict[str, Callable[[Any], Any]] = {
  'value': lambda params: jnp.float32(0),
  'grad': gradients_of,
  'value_fn': lambda params: _value_fn,
  'obj_fn': lambda params: _value_fn,
  'grad_fn': lambda params: lambda params, *args: params,
}


def _values(given: Mapping[str, Any]) -> dict[str, Any]:
  """Zeros for arrays; anything else as it is."""
  return jax.tree.map(
    lambda x: (
      jnp.zeros(x.shape, x.dtype)
      if hasattr(x, 'shape') and hasattr(x, 'dtype')
      else x
    ),
    dict(given),
  )
