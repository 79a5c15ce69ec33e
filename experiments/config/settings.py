"""Checks of a configuration: unknown fields, wrong kinds, impossible values.

`configs/default.py` has every field with its default; this file says which
values make sense, before anything is loaded or trained.
"""

from collections.abc import Callable, Mapping
import math
from typing import Any

from experiments import models
from experiments import tasks
from experiments.config import fields
from experiments.config import learning_rate
from experiments.config import optimizer
from experiments.config import schemes
from experiments.config import warmup
from experiments.program import errors
import gradsparse as gs
from gradsparse import arguments
from gradsparse.wrappers import local_gradient

# --- what each field may be: functions of its name and its value -----------


def _whole(
  least: int, most: int = arguments.LAST_STEP
) -> Callable[[str, Any], Any]:
  return lambda field, value: arguments.whole_number(field, value, least, most)


def _number(within: arguments.Range) -> Callable[[str, Any], Any]:
  return lambda field, value: arguments.number(field, value, within)


def _text(field: str, value: Any) -> None:
  if not isinstance(value, str):
    raise TypeError(f'{field} must be text, got {value!r}')


_workers = _whole(1, arguments.MOST_WORKERS)
_not_negative = _number(
  arguments.Range('a finite number >= 0', lambda x: 0 <= x < math.inf)
)

_RULES: Mapping[str, Callable[[str, Any], Any]] = {
  'train.steps': _whole(1),
  'train.batch_size': _whole(1),
  'train.window': _whole(1),
  'train.learning_rate': _number(arguments.POSITIVE),
  'train.seed': lambda _, value: arguments.seed(value, 'train.seed'),
  'train.log_every': _whole(1),
  'train.max_rejected_steps': _whole(1),
  'train.eval_every': _whole(0),
  'train.stop_after': _whole(0),
  'train.keep_best': arguments.flag,
  'train.smoothing': _number(arguments.LESS_THAN_ONE),
  'train.checkpoint_every': _whole(0),
  'train.time_breakdown_every': _whole(0),
  'train.tensorboard': arguments.flag,
  'data.dir': _text,
  'data.test_split': _text,
  'data.final_split': _text,
  'data.augment': arguments.flag,
  'data.image_size': _whole(1, 4096),
  'data.source': _text,
  'data.target': _text,
  'data.vocabulary': _whole(5),
  'data.tokens': _whole(0),
  'data.max_length': _whole(3),
  'data.cache': _text,
  'data.buckets': _whole(1),
  'test.beam': _whole(1, 64),
  'optimizer.momentum': _number(arguments.LESS_THAN_ONE),
  'optimizer.nesterov': arguments.flag,
  'optimizer.decay_after_exchange': arguments.flag,
  'optimizer.weight_decay': _not_negative,
  'optimizer.accumulate': _whole(1),
  'optimizer.milestones': _text,
  'optimizer.decay': _number(arguments.FRACTION),
  'optimizer.decay_epochs': _not_negative,
  'optimizer.patience': _whole(1),
  'optimizer.linear_warmup_steps': _whole(0),
  'optimizer.linear_warmup_from': _number(arguments.LESS_THAN_ONE),
  'optimizer.warmup_factor': _number(arguments.FRACTION),
  'compression.warmup_steps': _whole(0),
  'compression.clip_norm': _not_negative,
  'compression.average_every': _whole(1),
  'compression.microbatch': _whole(0),
  'parallel.check_agreement_every': _whole(0),
  'parallel.resize': arguments.flag,
  'parallel.num_workers': _workers,
  'parallel.inner_workers': _workers,
  'parallel.block': _whole(0),
}
_CHOICES: Mapping[str, tuple[str, ...]] = {
  'data.name': tasks.DATA,
  'data.transcripts': tasks.TRANSCRIPTS,
  'model.name': models.NAMES,
  'optimizer.name': optimizer.OPTIMIZERS,
  'optimizer.schedule': learning_rate.SCHEDULES,
  'compression.name': tuple(sorted(gs.recipes.RECIPES)),
  'compression.local_gradient': ('', *local_gradient.MODES),
  'parallel.runner': gs.workers.RUNNERS,
}

# May differ when a run is resumed: they do not touch what is trained.
FREE_ON_RESUME = (
  'train.log_every',
  'train.eval_every',
  'train.checkpoint_every',
  'train.tensorboard',
  'train.max_rejected_steps',
  'train.time_breakdown_every',
  'data.cache',
  'data.dir',
  'data.final_split',
  'parallel.check_agreement_every',
  'parallel.resize',
)
# These too, where parallel.resize is set.
FREE_ON_RESIZE = (
  'parallel.runner',
  'parallel.num_workers',
  'parallel.inner_workers',
  'parallel.block',
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
  if _tests_decide(new):
    free.remove('train.eval_every')
  changed = {
    field: f'was {old.get(field)!r}, now {new.get(field)!r}'
    for field in sorted({*old, *new} - free)
    if old.get(field) != new.get(field)
  }
  if schedule in learning_rate.FREE_OF_LENGTH:  # in both: it has not changed
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
  for field, rule in _RULES.items():
    _check(rule, field, flat[field])
  for field, valid in _CHOICES.items():
    _check_choice(flat, field, valid)
  _check_scheme(config['compression'], flat['train.batch_size'])
  _check_workers(flat)
  _check_steps(flat)
  learning_rate.check(config['optimizer'], flat['compression.warmup_steps'])
  if flat['data.final_split'] == flat['data.test_split']:
    raise errors.ConfigError(
      'data.final_split must be another split than data.test_split, or empty, '
      f'got {flat["data.final_split"]!r} for both'
    )
  if not flat['train.eval_every']:
    _check_needs_no_tests(flat)


def _tests_decide(flat: Mapping[str, Any]) -> bool:
  """Whether the rate, the end of a run or what it reports follows its tests."""
  return bool(
    flat['optimizer.schedule'] == 'plateau'
    or flat['train.stop_after']
    or flat['train.keep_best']
  )


def _check_needs_no_tests(flat: Mapping[str, Any]) -> None:
  """Raises if a field waits for tests, and there are none."""
  if flat['optimizer.schedule'] == 'plateau':
    raise errors.ConfigError(
      'optimizer.schedule plateau needs train.eval_every > 0, got 0'
    )
  if flat['train.stop_after']:
    raise errors.ConfigError(
      f'train.stop_after={flat["train.stop_after"]} needs train.eval_every > '
      '0, got 0'
    )
  if flat['train.keep_best']:
    raise errors.ConfigError(
      'train.keep_best=True needs train.eval_every > 0, got 0'
    )


def _check_scheme(section: Mapping[str, Any], batch_size: int) -> None:
  """Raises unless the scheme takes its arguments."""
  given = schemes.arguments_of(section)
  schemes.check_arguments(section['name'], given)
  warmup.stages_of(
    section['name'], given, section['warmup_steps'], section['warmup']
  )
  takes_moments = section['name'] in schemes.NEED_MOMENTS
  if takes_moments and section['clip_norm']:
    raise errors.ConfigError(
      f'compression.clip_norm must be 0 for {section["name"]}, whose second '
      f'moments are of the gradient before clipping, got {section["clip_norm"]}'
    )
  microbatch = section['microbatch']
  if takes_moments and microbatch and batch_size % microbatch:
    raise errors.ConfigError(
      f'compression.microbatch must divide train.batch_size={batch_size}, got '
      f'{microbatch}'
    )


def _check_workers(flat: Mapping[str, Any]) -> None:
  """Raises unless a runner can have so many workers."""
  workers, inner = flat['parallel.num_workers'], flat['parallel.inner_workers']
  _check(
    _workers,
    'parallel.num_workers times parallel.inner_workers',
    workers * inner,
  )
  if inner > 1 and flat['parallel.runner'] == 'pmap':
    raise errors.ConfigError(
      f'parallel.inner_workers={inner} needs two axes, and parallel.runner '
      'pmap has one; take shard_map (a device for each inner worker) or '
      'simulate'
    )
  block, runner = flat['parallel.block'], flat['parallel.runner']
  if block and runner != 'simulate':
    raise errors.ConfigError(
      f'parallel.block={block} is of simulated workers, and with '
      f'parallel.runner {runner} each has a device; take block 0 or simulate'
    )
  if block and workers % block:
    raise errors.ConfigError(
      f'parallel.block must divide parallel.num_workers={workers}, got {block}'
    )


def _check_steps(flat: Mapping[str, Any]) -> None:
  """Raises unless all steps count."""
  steps, accumulate = flat['train.steps'], flat['optimizer.accumulate']
  if steps % accumulate:
    raise errors.ConfigError(
      f'train.steps must be a multiple of optimizer.accumulate={accumulate}, '
      f'got {steps}: the gradients of the last {steps % accumulate} steps '
      'would reach nobody'
    )
  every = flat['train.eval_every']
  if flat['train.stop_after'] and every % accumulate:
    raise errors.ConfigError(
      'train.eval_every must be a multiple of '
      f'optimizer.accumulate={accumulate} where train.stop_after '
      f'may end the run at a test, got {every}'
    )


def _check_names(config: Mapping[str, Any], known: Mapping[str, Any]) -> None:
  """Raises for a field that is missing, or that only a scheme may have."""
  known_fields, given = fields.flatten(known), fields.flatten(config)
  for field in given:
    if field in known_fields or field.startswith('compression.'):
      continue
    hint = arguments.did_you_mean(field, known_fields)
    raise errors.ConfigError(
      f'unknown field {field!r}{hint}; fields: '
      f'{", ".join(sorted(known_fields))}, and the arguments of the scheme as '
      'compression.ARG'
    )
  missing = [field for field in known_fields if field not in given]
  if missing:
    raise errors.ConfigError(
      f'the configuration must have all fields of configs/default.py; missing: '
      f'{", ".join(missing)}'
    )


def _check_choice(
  flat: Mapping[str, Any], field: str, valid: tuple[str, ...]
) -> None:
  if flat[field] not in valid:
    hint = arguments.did_you_mean(str(flat[field]), valid)
    names = ', '.join(name or "''" for name in valid)
    raise errors.ConfigError(
      f'{field} must be one of {names}, got {flat[field]!r}{hint}'
    )


def _check(rule: Callable[[str, Any], Any], field: str, value: Any) -> None:
  try:
    rule(field, value)
  except (TypeError, ValueError) as error:
    raise errors.ConfigError(f'{error}') from error
