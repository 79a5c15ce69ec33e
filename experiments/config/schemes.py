"""Schemes by name: which there are, and the arguments that each takes."""

from collections.abc import Callable, Mapping
import importlib
import inspect
from typing import Any

from experiments.program import errors
import gradsparse as gs
from gradsparse.arguments import did_you_mean

# Fields of `config.compression` that are not arguments of the factory.
OWN_FIELDS = (
  'name',
  'warmup',
  'warmup_steps',
  'clip_norm',
  'local_gradient',
  'param_sync_every',
  'microbatch',
)


def factory(name: str) -> Callable[..., Any]:
  """Returns the factory of a scheme.

  Args:
    name: of a recipe, or `package.module:factory`, which Python can import and
      which takes `axis_name` as a keyword.

  Raises:
    ConfigError: there is no such factory.
  """
  if name in gs.recipes.RECIPES:
    return gs.recipes.RECIPES[name].factory
  module, colon, attribute = name.partition(':')
  if not colon:
    known = sorted(gs.recipes.RECIPES)
    raise errors.ConfigError(
      f'compression.name must be one of {", ".join(known)} or '
      f'package.module:factory, got {name!r}{did_you_mean(name, known)}'
    )
  try:
    found = getattr(importlib.import_module(module), attribute)
    inspect.signature(found).bind_partial(axis_name=None)
  except (ImportError, AttributeError, TypeError, ValueError) as error:
    raise errors.ConfigError(
      f'compression.name={name}: {error}; it must name a function that takes '
      'axis_name as a keyword'
    ) from error
  return found


def arguments_of(section: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the factory's keywords in `config.compression`, but None."""
  return {
    name: value
    for name, value in section.items()
    if name not in OWN_FIELDS and value is not None
  }


def needs_moments(section: Mapping[str, Any]) -> bool:
  """Whether a scheme's update takes second moments of per-example gradients.

  Args:
    section: `config.compression`.
  """
  try:
    made = factory(section['name'])(**arguments_of(section), axis_name=None)
  except (errors.ConfigError, TypeError, ValueError):
    return False  # `check` says what is wrong
  scheme = getattr(made, 'scheme', None)
  return scheme is not None and scheme.memory.facts.moments


def check(section: Mapping[str, Any]) -> None:
  """Raises unless there is a scheme and it accepts its arguments.

  Args:
    section: `config.compression`.

  Raises:
    ConfigError: shows the factory's signature.
  """
  scheme, arguments = section['name'], arguments_of(section)
  valid = signature(scheme)
  takes_any = inspect.Parameter.VAR_KEYWORD in {
    parameter.kind for parameter in valid.parameters.values()
  }
  shown = f'its signature is {scheme}{valid}'
  for name in arguments:
    if name == 'axis_name' or (name not in valid.parameters and not takes_any):
      raise errors.ConfigError(
        f'compression.{name} is not an argument of {scheme}'
        f'{did_you_mean(name, [*valid.parameters, *OWN_FIELDS])}; {shown}'
      )
  try:
    made = factory(scheme)(**arguments, axis_name=None)
  except (TypeError, ValueError) as error:
    raise errors.ConfigError(
      f'compression of {scheme}: {error}; {shown}'
    ) from error
  if not (hasattr(made, 'init') and hasattr(made, 'update')):
    raise errors.ConfigError(
      f'compression of {scheme}: the factory must return a transformation, '
      f'returned {made!r}'
    )


def signature(scheme: str) -> inspect.Signature:
  """Returns what the command line may set: all but the axis name."""
  whole = inspect.signature(factory(scheme))
  return whole.replace(
    parameters=[
      parameter.replace(annotation=inspect.Parameter.empty)
      for parameter in whole.parameters.values()
      if parameter.name != 'axis_name'
    ],
    return_annotation=inspect.Signature.empty,
  )
