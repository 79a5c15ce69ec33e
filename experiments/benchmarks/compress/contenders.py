"""Which schemes are measured, each with a step that ends in new parameters."""

from collections.abc import Callable
import functools
from typing import Any

import gradsparse as gs
import optax

DENSITY = 0.001
_LEARNING_RATE = 0.1
REFERENCE = 'momentum_sgd'


def momentum_sgd() -> optax.GradientTransformation:
  """The step that every other one is compared with."""
  return optax.sgd(_LEARNING_RATE, momentum=0.9)


def followed(scheme: optax.GradientTransformation) -> Any:
  """A scheme, and plain SGD on its mean; an outer step as it is."""
  if isinstance(scheme, gs.Outer):
    return scheme
  return optax.chain(scheme, optax.sgd(_LEARNING_RATE))


# The name that a recipe has in records, where it is another one.
_NAMES = {
  'gradient_dropping': 'dropping',
  'variance_based': 'variance',
  'qsgd': 'qsgd4',
  'one_bit_sgd': 'one_bit',
}
# What a recipe is measured with instead of the arguments of its example.
_ARGUMENTS = {
  'gradient_dropping': {'density': DENSITY},
  'ef21': {'density': DENSITY},
  'strom': {'threshold': 0.5},
  'variance_based': {'alpha': 2.0},
  'variance_strom': {'threshold': 0.5},
}
_WARMUP = gs.schedules.dgc_warmup(DENSITY, 1000)
_VARIANTS = {
  'dropping_leaf': ('gradient_dropping', {'scope': 'leaf'}),
  'dropping_chunk': ('gradient_dropping', {'scope': 'chunk'}),
  'dgc_chunk': ('dgc', {'scope': 'chunk'}),
  'dgc_sampled': ('dgc', {'sample_rate': 0.01}),
  'dgc_exponent4': ('dgc', {'values': 'exponent4'}),
  'dgc_schedule': ('dgc', {'density': _WARMUP}),
  'ef21_chunk': ('ef21', {'scope': 'chunk'}),
  'qsgd_elias': ('qsgd', {'code': 'elias'}),
}


def _contender(recipe: str, **arguments: Any) -> Callable[..., Any]:
  """Makes a scheme; by default of one worker, which exchanges nothing."""
  given = {'axis_name': None, **_ARGUMENTS.get(recipe, {}), **arguments}
  return functools.partial(gs.recipes.RECIPES[recipe].make, **given)


# Name -> what makes the scheme: every recipe, and variants of some. For one
# worker, or for those of an `axis_name`.
SCHEMES: dict[str, Callable[..., Any]] = {
  **{_NAMES.get(name, name): _contender(name) for name in gs.recipes.RECIPES},
  **{
    name: _contender(recipe, **arguments)
    for name, (recipe, arguments) in _VARIANTS.items()
  },
}
# Outer steps, which also take a `sync_every`.
OUTER = {'diloco': gs.diloco, 'sparse_loco': gs.sparse_loco}
