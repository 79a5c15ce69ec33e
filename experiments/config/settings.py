"""Checks of a configuration: values out of range, fields that do not fit.

`configs/default.py` has every field with its default. ml_collections refuses
names that are not there, and values of another type; this file says which
values make sense, before anything is loaded or trained.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from configs import default
from experiments import models
from experiments import tasks
from experiments.config import optimizer
from experiments.config import schemes
from experiments.program import errors
from flax import traverse_util
import gradsparse as gs
from gradsparse import arguments
from gradsparse.wrappers import local_gradient

_MOST = arguments.LAST_STEP
# A field, whether it is wrong beside others, and what it must.
_Rule = tuple[str, Any, str]
# Least and most of a whole number. Of one that is not here the least is 0 if
# that is its default ("off"), else 1.
_WHOLE: Mapping[str, tuple[int, int]] = {
  'train.seed': (0, 2**32 - 1),
  'train.eval_every': (0, _MOST),
  'train.checkpoint_every': (0, _MOST),
  'data.image_size': (1, 4096),
  'data.vocabulary': (5, _MOST),
  'data.max_length': (3, _MOST),
  'test.beam': (1, 64),
  'parallel.num_workers': (1, arguments.MOST_WORKERS),
  'parallel.devices_per_node': (1, arguments.MOST_WORKERS),
  'parallel.check_agreement_every': (0, _MOST),
}
# Of other numbers; of one that is not here, `arguments.NOT_NEGATIVE`.
_NUMBERS: Mapping[str, arguments.Range] = {
  'train.learning_rate': arguments.POSITIVE,
  'train.ema_decay': arguments.LESS_THAN_ONE,
  'optimizer.momentum': arguments.LESS_THAN_ONE,
  'optimizer.outer_learning_rate': arguments.POSITIVE,
  'optimizer.outer_momentum': arguments.LESS_THAN_ONE,
  'optimizer.lr_decay_factor': arguments.FRACTION,
  'optimizer.linear_warmup_from': arguments.LESS_THAN_ONE,
  'optimizer.warmup_factor': arguments.FRACTION,
}
_CHOICES: Mapping[str, tuple[str, ...]] = {
  'data.name': tasks.DATA,
  'data.transcripts': tasks.TRANSCRIPTS,
  'model.name': models.NAMES,
  'optimizer.name': optimizer.OPTIMIZERS,
  'optimizer.schedule': optimizer.SCHEDULES,
  'compression.warmup': schemes.WARMUPS,
  'compression.local_gradient': ('', *local_gradient.MODES),
  'parallel.runner': gs.workers.RUNNERS,
}

# May differ when a run is resumed: they do not touch what is trained.
FREE_ON_RESUME = (
  'train.log_every',
  'train.eval_every',
  'train.checkpoint_every',
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
  'parallel.devices_per_node',
  'parallel.workers_per_chunk',
)


def check_resumable(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
  """Raises unless a run may go on with these fields.

  Args:
    before: what it was started with. A field that did not exist then had its
      default.
    now: what is asked.

  Raises:
    ResumeError: names the fields that differ.
  """
  old, new = ({**_known(), **_flat(config)} for config in (before, now))
  schedule, steps = new['optimizer.schedule'], 'train.steps'
  free = {*FREE_ON_RESUME, *(FREE_ON_RESIZE if new['parallel.resize'] else ())}
  if any(_waiting_for_tests(new)):
    free.remove('train.eval_every')
  if schedule in optimizer.FREE_OF_LENGTH:
    free.add(steps)
  changed = {
    field: f'{field}: was {old.get(field)!r}, now {new.get(field)!r}'
    for field in sorted({*old, *new} - free)
    if old.get(field) != new.get(field)
  }
  if not changed:
    return
  if steps in changed:
    changed[steps] += f', on which optimizer.schedule={schedule} depends'
  way_out = 'take another --workdir, or the same fields to resume'
  if resizable := [field for field in FREE_ON_RESIZE if field in changed]:
    names = ', '.join(resizable)
    way_out += f'; --config.parallel.resize=True lets {names} change'
  raise errors.ResumeError(
    'the working directory belongs to a run with other fields '
    f'({"; ".join(changed.values())}); {way_out}'
  )


def check(config: Mapping[str, Any]) -> None:
  """Raises unless all fields are there and every value makes sense.

  Args:
    config: nested fields, as `ConfigDict.to_dict()` gives them; `compression`
      has any argument of its factory beside those of the default.

  Raises:
    ConfigError: says which field, what is wrong and what is valid.
  """
  flat, known = _flat(config), _known()
  own = {field for field in flat if not field.startswith('compression.')}
  unknown, missing = sorted(own - {*known}), sorted({*known} - {*flat})
  if unknown or missing:
    raise errors.ConfigError(
      'the configuration must have the fields of configs/default.py; unknown: '
      f'{", ".join(unknown) or "none"}; missing: {", ".join(missing) or "none"}'
    )
  for field, value in known.items():
    _check_value(field, flat[field], value)
  scheme = schemes.check(config['compression'])
  schemes.stages(config['compression'])
  optimizer.milestones(flat['optimizer.milestones'])
  moments = schemes.needs_moments(scheme)
  for field, wrong, must in (*_outer(flat, moments), *_rules(flat, moments)):
    if wrong:
      raise errors.ConfigError(f'{field} must {must}, got {flat[field]!r}')


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
  return traverse_util.flatten_dict(dict(config), sep='.')


def _known() -> dict[str, Any]:
  return _flat(default.get_config().to_dict())


def _check_value(field: str, value: Any, known: Any) -> None:
  """Raises unless a value is of its default's kind, and in its range."""
  try:
    if isinstance(known, bool):
      arguments.flag(field, value)
    elif isinstance(known, int):
      limits = _WHOLE.get(field, (min(known, 1), _MOST))
      arguments.whole_number(field, value, *limits)
    elif isinstance(known, float):
      limits = _NUMBERS.get(field, arguments.NOT_NEGATIVE)
      arguments.number(field, value, limits)
    elif field in _CHOICES:
      arguments.one_of(field, value, _CHOICES[field])
    else:
      arguments.instance(field, value, str)
  except (TypeError, ValueError) as error:
    hint = arguments.did_you_mean(value, _CHOICES.get(field, ()))
    raise errors.ConfigError(f'{error}{hint}') from error


def _waiting_for_tests(flat: Mapping[str, Any]) -> Iterator[str]:
  """Fields that let tests decide on the rate, the end or the report."""
  if flat['optimizer.schedule'] == 'plateau':
    yield 'optimizer.schedule=plateau'
  for field in ('train.early_stop_patience', 'train.keep_best'):
    if flat[field]:
      yield f'{field}={flat[field]}'


def _rules(flat: Mapping[str, Any], moments: bool) -> Iterator[_Rule]:
  """Yields the rules between fields, each of which is in its range."""
  every, accumulate = flat['train.eval_every'], flat['optimizer.accumulate']
  inner, runner = flat['parallel.devices_per_node'], flat['parallel.runner']
  must = f'be shard_map or simulate with parallel.devices_per_node={inner}'
  yield 'parallel.runner', inner > 1 and runner == 'pmap', must
  field, workers = 'parallel.workers_per_chunk', flat['parallel.num_workers']
  must = f'divide parallel.num_workers={workers} with parallel.runner simulate'
  wrong = flat[field] and (runner != 'simulate' or workers % flat[field])
  yield field, wrong, f'{must}, and be 0 with others'
  # The last gradients would reach nobody.
  must = f'be a multiple of optimizer.accumulate={accumulate}'
  yield 'train.steps', flat['train.steps'] % accumulate, must
  ends_there = flat['train.early_stop_patience']
  yield 'train.eval_every', ends_there and every % accumulate, must
  for waiting in _waiting_for_tests(flat):
    yield 'train.eval_every', not every, f'be > 0 with {waiting}'
  # A field that has no effect is a mistake.
  schedule = flat['optimizer.schedule']
  for of, name in (('milestones', 'milestones'), ('periodic', 'decay_epochs')):
    field = f'optimizer.{name}'
    wrong = (schedule == of) != bool(flat[field])
    yield field, wrong, f'go with optimizer.schedule={of}, which is {schedule}'
  for field, off, steps in (
    ('optimizer.warmup_factor', 1, 'compression.warmup_steps'),
    ('optimizer.linear_warmup_from', 0, 'optimizer.linear_warmup_steps'),
  ):
    wrong = flat[field] != off and not flat[steps]
    yield field, wrong, f'be {off} without {steps}'
  wrong = flat['data.final_split'] == flat['data.test_split']
  must = 'be another split than data.test_split, or empty'
  yield 'data.final_split', wrong, must
  if moments:
    must = (
      f'be 0 for {flat["compression.name"]}, whose second moments are of the '
      'gradient before clipping'
    )
    yield 'compression.clip_norm', flat['compression.clip_norm'], must
    size, part = flat['train.batch_size'], flat['compression.microbatch']
    must = f'divide train.batch_size={size}'
    yield 'compression.microbatch', part and size % part, must


def _outer(flat: Mapping[str, Any], moments: bool) -> Iterator[_Rule]:
  """Yields the rules between `optimizer.sync_every` and other fields."""
  every = flat['optimizer.sync_every']
  if not every:
    return
  beside = f'optimizer.sync_every={every}'
  # Between two exchanges there is no model of all workers.
  for field in ('train.steps', 'train.eval_every'):
    yield field, flat[field] % every, f'be a multiple of {beside}'
  unlike = {
    'optimizer.accumulate': 1,
    'compression.local_gradient': '',
    'compression.warmup_steps': 0,
    'train.ema_decay': 0.0,
    'parallel.workers_per_chunk': 0,
  }
  if flat['optimizer.name'] not in ('adamw', 'muon'):
    unlike['optimizer.weight_decay'] = 0.0
  for field, value in unlike.items():
    yield field, flat[field] != value, f'be {value!r} with {beside}'
  yield 'compression.name', moments, f'need no second moments with {beside}'
  falls = flat['optimizer.schedule'] == 'plateau'
  yield 'optimizer.schedule', falls, f'be another one with {beside}'
