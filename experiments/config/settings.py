"""Checks of a configuration: unknown fields, wrong kinds, impossible values.

`configs/default.py` has every field with its default; this file says which
values make sense, before anything is loaded or trained.
"""

from collections.abc import Mapping
from typing import Any

from experiments import data
from experiments import models
from experiments.config import fields
from experiments.config import optimizer
from experiments.config import schemes
from experiments.config import warmup
from experiments.program import errors

RUNNERS = ('simulate', 'pmap', 'shard_map')
# May differ when a run is resumed: they do not touch what is trained.
FREE_ON_RESUME = (
  'train.log_every',
  'train.eval_every',
  'train.checkpoint_every',
  'train.tensorboard',
  'train.max_rejected_steps',
  'train.time_breakdown_every',
  'data.dir',
  'parallel.check_agreement_every',
  'parallel.resize',
)
# These too, where parallel.resize is set.
FREE_ON_RESIZE = (
  'parallel.runner',
  'parallel.num_workers',
  'parallel.inner_workers',
)


def check_resumable(
  before: Mapping[str, Any], now: Mapping[str, Any], known: Mapping[str, Any]
) -> None:
  """Raises unless a run may go on with these fields.

  Args:
    before: what it was started with.
    now: what is asked.
    known: nested fields of the default configuration: the value of a field
      that did not exist yet.

  Raises:
    ResumeError: names the fields that differ.
  """
  default = fields.flatten(known)
  old, new = (default | fields.flatten(each) for each in (before, now))
  schedule = new['optimizer.schedule']
  free = set(FREE_ON_RESUME)
  if new['parallel.resize']:
    free.update(FREE_ON_RESIZE)
  changed = {
    field: f'was {old.get(field)!r}, now {new.get(field)!r}'
    for field in sorted({*old, *new} - free)
    if old.get(field) != new.get(field)
  }
  if schedule == 'constant':  # of both, or that is a change too
    changed.pop('train.steps', None)
  elif 'train.steps' in changed:
    changed['train.steps'] += (
      f', on which the learning rates of optimizer.schedule {schedule} depend'
    )
  if changed:
    listed = '; '.join(f'{field}: {how}' for field, how in changed.items())
    way_out = 'take another --workdir, or the same fields to resume'
    resizable = ', '.join(field for field in FREE_ON_RESIZE if field in changed)
    if resizable:
      way_out += f'; --config.parallel.resize=True lets {resizable} change'
    raise errors.ResumeError(
      f'the working directory belongs to a run with other fields ({listed}); '
      f'{way_out}'
    )


def check(config: Mapping[str, Any], known: Mapping[str, Any]) -> None:
  """Raises unless every field is known and every value makes sense.

  Args:
    config: nested fields, as `ConfigDict.to_dict()` gives them.
    known: nested fields of the default configuration; `compression` takes
      any argument of its factory beside them.

  Raises:
    ConfigError: says which field, what is wrong and what is valid.
  """
  _check_names(config, known)
  flat = fields.flatten(config)
  section = config['compression']
  arguments = schemes.arguments_of(section)
  schemes.check_arguments(section['name'], arguments)
  warmup.stages_of(
    section['name'], arguments, section['warmup_steps'], section['warmup']
  )
  _check_choice(flat, 'data.name', data.NAMES)
  _check_choice(flat, 'model.name', models.NAMES)
  _check_choice(flat, 'optimizer.name', optimizer.OPTIMIZERS)
  _check_choice(flat, 'optimizer.schedule', optimizer.SCHEDULES)
  _check_choice(flat, 'parallel.runner', RUNNERS)
  for field in (
    'train.steps',
    'train.batch_size',
    'train.log_every',
    'train.max_rejected_steps',
  ):
    _check_least(flat, field, 1)
  for field in (
    'train.eval_every',
    'train.checkpoint_every',
    'train.seed',
    'train.time_breakdown_every',
    'parallel.check_agreement_every',
    'compression.clip_norm',
    'optimizer.momentum',
    'optimizer.weight_decay',
  ):
    _check_least(flat, field, 0)
  _check_least(flat, 'parallel.num_workers', 1)
  _check_least(flat, 'parallel.inner_workers', 1)
  inner = flat['parallel.inner_workers']
  if inner > 1 and flat['parallel.runner'] == 'pmap':
    raise errors.ConfigError(
      f'parallel.inner_workers={inner} needs two axes, and parallel.runner '
      'pmap has one; take shard_map (a device for each inner worker) or '
      'simulate'
    )
  _check_least(flat, 'optimizer.accumulate', 1)
  steps, accumulate = flat['train.steps'], flat['optimizer.accumulate']
  if steps % accumulate:
    raise errors.ConfigError(
      f'train.steps must be a multiple of optimizer.accumulate={accumulate}, '
      f'got {steps}: the gradients of the last {steps % accumulate} steps '
      'would reach nobody'
    )
  factor = flat['optimizer.warmup_factor']
  if not 0 < factor <= 1:
    raise errors.ConfigError(
      f'optimizer.warmup_factor must be in (0, 1], got {factor}'
    )
  if factor != 1 and not section['warmup_steps']:
    raise errors.ConfigError(
      f'optimizer.warmup_factor={factor} has no effect: '
      'compression.warmup_steps is 0'
    )
  if not flat['train.learning_rate'] > 0:
    raise errors.ConfigError(
      f'train.learning_rate must be above 0, got {flat["train.learning_rate"]}'
    )


def _check_names(config: Mapping[str, Any], known: Mapping[str, Any]) -> None:
  """Raises for a field outside `compression` that the defaults lack."""
  known_fields = fields.flatten(known)
  for field in fields.flatten(config):
    if field in known_fields or field.startswith('compression.'):
      continue
    hint = errors.did_you_mean(field, known_fields)
    raise errors.ConfigError(
      f'unknown field {field!r}{hint}; fields: '
      f'{", ".join(sorted(known_fields))}, and the arguments of the scheme as '
      'compression.ARG'
    )


def _check_choice(
  flat: Mapping[str, Any], field: str, valid: tuple[str, ...]
) -> None:
  if flat[field] not in valid:
    hint = errors.did_you_mean(str(flat[field]), valid)
    raise errors.ConfigError(
      f'{field} must be one of {", ".join(valid)}, got {flat[field]!r}{hint}'
    )


def _check_least(flat: Mapping[str, Any], field: str, least: float) -> None:
  if flat[field] < least:
    raise errors.ConfigError(
      f'{field} must be {least} or more, got {flat[field]}'
    )
