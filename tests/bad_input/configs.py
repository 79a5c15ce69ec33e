"""Wrong configurations: names of fields, kinds, values, combinations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from configs import cifar10_resnet20
from configs import default
from configs import digits
from configs import schemes_digits
from experiments.config import settings
from experiments.program import errors
from flax import traverse_util
import numpy as np
from tests.bad_input.cases import INF
from tests.bad_input.cases import NAN
from tests.bad_input.cases import NOT_A_FLAG
from tests.bad_input.cases import NOT_A_NUMBER
from tests.bad_input.cases import NOT_WHOLE
from tests.bad_input.cases import Case
from tests.bad_input.cases import label

DGC = {'compression.name': 'dgc', 'compression.density': 0.01}
VARIANCE = {'compression.name': 'variance_based', 'compression.alpha': 1.0}
WARM = DGC | {'compression.warmup_steps': 4}


def check(changes: dict[str, Any]) -> None:
  """Checks the default configuration with these fields changed."""
  config = default.get_config().to_dict()
  for name, value in changes.items():
    section, _, field = name.partition('.')
    if field:
      config.setdefault(section, {})[field] = value
    else:
      config[section] = value
  settings.check(config)


def _wrong(field: str) -> tuple[tuple[Any, ...], str]:
  """Values that a field cannot have, and what its message says it must be."""
  given = traverse_util.flatten_dict(default.get_config().to_dict(), sep='.')[
    field
  ]
  if isinstance(given, bool):
    return (*NOT_A_FLAG, object()), 'True or False'
  if isinstance(given, int):
    return (*NOT_WHOLE, None, INF, -1, 10**30), '(a whole number|in .*)'
  if isinstance(given, float):
    return (*NOT_A_NUMBER, None, NAN, INF, -1), '(a number|a finite .*|in .*)'
  return (3, 1.5, None, True, object(), ['dgc']), '(a str|one of .*)'


def kinds() -> Iterator[Case]:
  """Every field, with values of other kinds and far out of range."""
  for field in traverse_util.flatten_dict(
    default.get_config().to_dict(), sep='.'
  ):
    more = WARM if field.startswith(('compression.warmup', 'optimizer')) else {}
    wrong, rule = _wrong(field)
    for value in wrong:
      yield Case(
        f'{field}={label(value)}',
        lambda f=field, v=value, more=more: check(more | {f: v}),
        errors.ConfigError,
        f'{field} must be {rule}, got .',
      )


# Fields, and what the message says.
MISTAKES = (
  ({'train.stepz': 3}, r'unknown: train\.stepz; missing: none'),
  ({'train': 3}, 'unknown: train; missing: train.batch_size, '),
  ({'train': {}}, 'missing: train.batch_size, train.bptt_length'),
  ({'compression.name': 'dcg'}, "compression.name must .* qsgd.*'dgc'"),
  ({'compression.name': ''}, "compression.name must be one of .*got ''"),
  ({'data.name': 'cifar'}, "data.name must be one of .*mean 'cifar10'"),
  ({'model.name': 'resnet'}, "model.name must .*'resnet20'.*got 'resnet'"),
  ({'optimizer.name': 'sdg'}, "optimizer.name must be .*'sgd'"),
  ({'optimizer.schedule': 'cos'}, "schedule must be one of .*'cosine'"),
  ({'parallel.runner': 'shardmap'}, "runner must .*'shard_map'"),
  ({'compression.local_gradient': 'all'}, "be one of .'', 'sum', 'partial'"),
  ({'compression.warmup': 'linear'}, "warmup must be one of .'paper', 'dgc'"),
  # The scheme's arguments.
  (DGC | {'compression.dencity': 0.1}, r"\.dencity.*'density'.*dgc\("),
  (
    {'compression.name': 'qsgd', 'compression.density': 0.1},
    r'density is not an argument of qsgd.*qsgd\(levels',
  ),
  ({'compression.name': 'dgc'}, r"'density'.*dgc\(density"),
  (DGC | {'compression.density': 1.5}, r'density must be in \(0, 1\], got 1.5'),
  (DGC | {'compression.density': NAN}, r'density must be in \(0, 1\], got nan'),
  (DGC | {'compression.density': 'many'}, "density must be a .*got 'many'"),
  (DGC | {'compression.density': [0.1]}, r'density must be .*got \[0.1\]'),
  (DGC | {'compression.seed': -1}, 'seed must be in 0..4294967295, got -1'),
  (DGC | {'compression.min_size': 1.5}, 'min_size must be a whole .*got 1.5'),
  (DGC | {'compression.nesterov': 3}, 'nesterov must be True or False, got 3'),
  (DGC | {'compression.scope': 'all'}, "scope must be one of .*got 'all'"),
  (DGC | {'compression.dense_paths': '('}, 'dense_paths must be a regular'),
  ({'compression.axis_name': 'x'}, 'axis_name is not an argument of dense'),
  ({'compression.warmup_step': 3}, "did you mean 'warmup_steps'"),
  # What does not go together.
  ({'compression.warmup_steps': 3}, 'warmup_steps needs .*; dense has none'),
  (
    {
      'compression.name': 'dryden',
      'compression.density': 0.01,
      'compression.warmup': 'linear_drop_ratio',
      'compression.warmup_steps': 3,
    },
    'whose density may be a schedule; that of dryden is one number',
  ),
  (WARM | {'optimizer.warmup_factor': 0.0}, r'must be in \(0, 1\], got 0.0'),
  (WARM | {'optimizer.warmup_factor': 1.5}, r'must be in \(0, 1\], got 1.5'),
  (
    {'optimizer.warmup_factor': 0.1},
    'warmup_factor must be 1 without compression.warmup_steps, got 0.1',
  ),
  (
    {'optimizer.schedule': 'milestones'},
    "milestones must go with .*=milestones, which is milestones, got ''",
  ),
  (
    {'optimizer.milestones': '3'},
    "go with .*=milestones, which is constant, got '3'",
  ),
  *(
    ({'optimizer.milestones': text}, f"be rising epochs > 0 .*got '{text}'")
    for text in ('a', '1;2', '2,1', '1,1', '0,1', '-1', 'nan', '1,inf', '1,,2')
  ),
  (
    {'optimizer.schedule': 'periodic'},
    'decay_epochs must go with .*=periodic, .* got 0.0',
  ),
  (
    {'optimizer.decay_epochs': 2.0},
    'decay_epochs must go with .* constant, got 2.0',
  ),
  (
    {'optimizer.schedule': 'plateau', 'train.eval_every': 0},
    'train.eval_every must be > 0 with optimizer.schedule=plateau, got 0',
  ),
  (
    {'optimizer.lr_decay_factor': 0.0},
    r'factor must be in \(0, 1\], got 0.0',
  ),
  ({'optimizer.linear_warmup_from': 1.0}, r'must be in \[0, 1\), got 1.0'),
  (
    {'optimizer.linear_warmup_from': 0.1},
    'must be 0 without optimizer.linear_warmup_steps, got 0.1',
  ),
  ({'optimizer.momentum': 1.0}, r'momentum must be in \[0, 1\), got 1.0'),
  ({'train.learning_rate': 0.0}, 'learning_rate must be a finite number > 0'),
  ({'train.steps': 0}, r'train.steps must be in 1\.\..*got 0'),
  ({'train.batch_size': 0}, r'batch_size must be in 1\.\..*got 0'),
  ({'train.seed': 2**32}, 'train.seed must be in 0.*, got 4294967296'),
  ({'parallel.num_workers': 10**9}, 'must be in 1..65536, got 1000000000'),
  (
    {'parallel.devices_per_node': 3, 'parallel.runner': 'pmap'},
    'runner must be shard_map or simulate .*devices_per_node=3, got .pmap',
  ),
  (
    {'parallel.workers_per_chunk': 3},
    'parallel.workers_per_chunk must divide parallel.num_workers=4 .* got 3',
  ),
  (
    {'parallel.workers_per_chunk': 2, 'parallel.runner': 'shard_map'},
    'parallel.workers_per_chunk must .* simulate, and be 0 .* got 2',
  ),
  (
    {'optimizer.accumulate': 4, 'train.steps': 10},
    'train.steps must be a multiple of optimizer.accumulate=4, got 10',
  ),
  (
    VARIANCE | {'compression.microbatch': 3},
    'compression.microbatch must divide train.batch_size=16, got 3',
  ),
  (VARIANCE | {'compression.microbatch': 100}, 'batch_size=16, got 100'),
  (
    VARIANCE | {'compression.clip_norm': 0.25},
    'compression.clip_norm must be 0 for variance_based.*got 0.25',
  ),
  (VARIANCE | {'compression.alpha': INF}, 'alpha must be a finite .*got inf'),
)


def mistakes() -> Iterator[Case]:
  for changes, says in MISTAKES:
    yield Case(
      label(changes), lambda c=changes: check(c), errors.ConfigError, says
    )
  for module, name, says in (
    (digits, 'dcg', "no setting 'dcg'; it has dense, gradient_dropping, dgc"),
    (schemes_digits, 'nope', "no setting 'nope'; it has dense, dense_bf"),
    (schemes_digits, 'dgc:quick', "one of :full, :held_out, got 'dgc:quick'"),
    (cifar10_resnet20, 'gtop', "no setting 'gtop' .* it has dense, dgc"),
  ):
    yield Case(
      f'{module.__name__}:{name}',
      lambda m=module, n=name: m.get_config(n),
      errors.ConfigError,
      says,
    )


def numpy_fields() -> dict[str, Any]:
  """NumPy scalars where numbers are: a configuration that is right."""
  return {
    'compression.name': 'dgc',
    'compression.density': np.float32(0.5),
    'train.steps': np.int64(8),
    'train.learning_rate': np.array(0.1),
    'train.keep_best': np.False_,
    'parallel.num_workers': np.int32(2),
  }


CASES = (*kinds(), *mistakes())
