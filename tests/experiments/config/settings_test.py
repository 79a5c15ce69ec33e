"""What a configuration may be. What is wrong is in tests/bad_input."""

import pathlib
import re

from configs import default
from experiments.config import optimizer
from experiments.config import schemes
from experiments.config import settings
from experiments.program import errors
import pytest

_ROOT = pathlib.Path(__file__).parents[3]


def _check(**changes):
  config = default.get_config().to_dict()
  for name, value in changes.items():
    section, _, field = name.partition('__')
    config.setdefault(section, {})[field] = value
  settings.check(config)


def test_the_default_is_fine():
  _check()


def test_an_argument_that_is_none_is_the_factorys_default():
  _check(
    compression__name='dgc',
    compression__density=0.1,
    compression__min_size=None,
  )
  section = {'name': 'dgc', 'density': 0.1, 'min_size': None, 'clip_norm': 0.0}
  assert schemes.arguments_of(section) == {'density': 0.1}


def test_every_argument_of_every_factory_can_be_named():
  import gradsparse as gs

  for name in gs.recipes.RECIPES:
    signature = schemes.signature(name)
    assert 'axis_name' not in signature.parameters
    assert not set(signature.parameters) & set(schemes.OWN_FIELDS)


def test_resuming_with_other_fields_names_them():
  known = default.get_config().to_dict()
  before = known
  now = default.get_config()
  now.train.log_every = 1
  settings.check_resumable(before, now.to_dict())
  now.train.seed = 5
  with pytest.raises(errors.ResumeError, match='train.seed: was 0, now 5'):
    settings.check_resumable(before, now.to_dict())


def test_the_page_on_checkpoints_says_which_fields_may_differ():
  page = (_ROOT / 'docs' / 'checkpoints.md').read_text()
  _, _, section = page.partition('## Which command may go on\n')
  section, _, _ = section.partition('\n## ')
  section = ' '.join(section.split())
  first, _, rest = section.partition('; but not `train.eval_every` where')
  free = re.findall(r'`(\w+\.\w+)`', first)
  assert sorted(free) == sorted(settings.FREE_ON_RESUME)
  for decided in (
    '`optimizer.schedule` is `plateau`',
    '`train.early_stop_patience`',
    '`train.keep_best`',
  ):
    assert decided in rest.partition('`train.steps` may grow')[0]
  _, _, longer = rest.partition('`train.steps` may grow')
  can, _, cannot = longer.partition('; the')
  schedules = {*optimizer.SCHEDULES}
  assert schedules & {*re.findall(r'`(\w+)`', can)} == (
    {*optimizer.FREE_OF_LENGTH}
  )
  assert schedules & {*re.findall(r'`(\w+)`', cannot)} == (
    schedules - {*optimizer.FREE_OF_LENGTH}
  )


def test_a_field_that_did_not_exist_yet_had_its_default():
  before, now = default.get_config().to_dict(), default.get_config().to_dict()
  del before['parallel']['devices_per_node'], before['optimizer']['accumulate']
  settings.check_resumable(before, now)
  now['parallel']['devices_per_node'] = 2
  with pytest.raises(errors.ResumeError, match='per_node: was 1, now 2'):
    settings.check_resumable(before, now)


def test_other_workers_are_a_continuation_only_if_it_is_asked_for():
  config = default.get_config()
  before = config.to_dict()
  config.parallel.num_workers = 6
  config.parallel.runner = 'shard_map'
  with pytest.raises(
    errors.ResumeError,
    match='--config.parallel.resize=True lets parallel.runner, '
    'parallel.num_workers change',
  ):
    settings.check_resumable(before, config.to_dict())
  config.parallel.resize = True
  settings.check_resumable(before, config.to_dict())
  config.parallel.workers_per_chunk = 2  # other blocks round otherwise
  settings.check_resumable(before, config.to_dict())
  config.train.batch_size = 3
  with pytest.raises(errors.ResumeError, match='batch_size') as refused:
    settings.check_resumable(before, config.to_dict())
  assert 'parallel.resize' not in str(refused.value)


def test_more_steps_are_a_continuation_only_at_a_constant_learning_rate():
  config = default.get_config()
  known = config.to_dict()
  config.train.steps += 1
  settings.check_resumable(known, config.to_dict())
  before = default.get_config()
  config.optimizer.schedule = before.optimizer.schedule = 'cosine'
  with pytest.raises(
    errors.ResumeError, match='was 660, now 661, on which optimizer.schedule=co'
  ):
    settings.check_resumable(before.to_dict(), config.to_dict())
