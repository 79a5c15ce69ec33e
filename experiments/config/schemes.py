"""Schemes by name: which there are, and the arguments that each takes."""

from collections.abc import Mapping
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
  'average_every',
  'microbatch',
)
# Schemes whose update takes second moments of per-example gradients.
NEED_MOMENTS = ('variance_based', 'variance_strom')


def arguments_of(section: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the factory's keywords in `config.compression`, but None."""
  return {
    name: value
    for name, value in section.items()
    if name not in OWN_FIELDS and value is not None
  }


def check_arguments(scheme: str, arguments: Mapping[str, Any]) -> None:
  """Raises unless the scheme accepts the arguments.

  Args:
    scheme: name of a recipe.
    arguments: its keywords, without `axis_name`.

  Raises:
    ConfigError: shows the factory's signature.
  """
  valid = signature(scheme)
  shown = f'{scheme}{valid}'
  for name in arguments:
    if name not in valid.parameters:
      raise errors.ConfigError(
        f'compression.{name} is not an argument of {scheme}'
        f'{did_you_mean(name, [*valid.parameters, *OWN_FIELDS])}; '
        f'its signature is {shown}'
      )
  try:
    gs.recipes.RECIPES[scheme].factory(**arguments, axis_name=None)
  except (TypeError, ValueError) as error:
    raise errors.ConfigError(
      f'compression of {scheme}: {error}; its signature is {shown}'
    ) from error


def signature(scheme: str) -> inspect.Signature:
  """Returns what the command line may set: all but the axis name."""
  whole = inspect.signature(gs.recipes.RECIPES[scheme].factory)
  return whole.replace(
    parameters=[
      parameter.replace(annotation=inspect.Parameter.empty)
      for parameter in whole.parameters.values()
      if parameter.name != 'axis_name'
    ],
    return_annotation=inspect.Signature.empty,
  )
