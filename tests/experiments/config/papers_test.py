"""Every row of every paper's table is a valid configuration, and says so."""

import dataclasses
import pathlib
import re

from experiments import models
from experiments.config import optimizer
from experiments.config import schemes
from experiments.config import settings
from experiments.papers import building
from experiments.papers import catalogue
from experiments.papers import metrics
from experiments.papers import table as papers
from experiments.program import errors
from flax import traverse_util
import gradsparse as gs
import jax
import jax.numpy as jnp
import pytest

_ROOT = pathlib.Path(__file__).parents[3]
_TABLES = {name: catalogue.load(name) for name in catalogue.NAMES}
_PAGE = (_ROOT / 'docs' / 'papers.md').read_text()


# Text, speech and pairs of sentences, which nothing but these stands for.
_SEQUENCES = {
  'an4': 'fsdd',
  'fsdd': 'fsdd',
  'librispeech': 'fsdd',
  'multi30k': 'multi30k',
  'ptb': 'ptb',
  'wmt': 'multi30k',
}
# Examples that a run may take: four epochs of 40,000 images; rows of 20 words.
_IN_MINUTES = {
  'cifar10': 160_000,
  'digits': 160_000,
  'fsdd': 16_000,
  'multi30k': 29_000,
  'ptb': 10_000,
}
# Their quick settings are for a GPU, or take up to an hour a row on two cores.
_LONGER = {'cifar10_resnet20', 'dgc_table4_ptb', 'schemes_cifar10_longer'}


def _batch(config):
  return config.train.batch_size * config.parallel.num_workers


@pytest.mark.parametrize('name', _TABLES)
def test_every_row_is_valid_full_and_quick(name):
  table = _TABLES[name]
  for row in table.rows:
    full = table.get_config(row)
    settings.check(full.to_dict())
    assert full.compression.name == table.rows[row].fields.get(
      'compression.name', 'dense'
    )
    if papers.QUICK not in table.sizes:
      assert full.train.steps * _batch(full) <= 80_000, row
      continue
    short = table.get_config(f'{row}:quick')
    settings.check(short.to_dict())
    models.create(short.model.name, 10)
    if full.data.name in _SEQUENCES:
      assert short.data.name == _SEQUENCES[full.data.name]
    else:
      assert short.data.name in ('cifar10', 'digits')
      assert _batch(short) <= building.EXAMPLES[short.data.name]
    if short.data.name == 'cifar10':
      assert short.data.test_split == 'data_batch_5'
    if name not in _LONGER and 'equal_steps' not in row:
      most = _IN_MINUTES[short.data.name]
      assert short.train.steps * _batch(short) <= most, row


@pytest.mark.parametrize('name', _TABLES)
def test_the_head_of_a_file_has_the_published_numbers(name):
  table = _TABLES[name]
  head = (_ROOT / 'configs' / f'{name}.py').read_text().split('"""')[1]
  lines = {line.split()[0]: line.split() for line in head.splitlines() if line}
  for row, its in table.rows.items():
    for metric, number in its.published.items():
      assert metrics.METRICS[metric].form.format(number) in lines[row], row
    if its.points is not None:
      assert f'{its.points:+z.2f}' in lines[row]
  assert f'python -m experiments.papers {name}\n' in head
  # The command in the head names a row.
  rows = re.findall(rf'--config=configs/{name}\.py:(\S+)', head)
  assert rows and {*rows} <= {*table.rows}


# In what a row may differ from the dense row that it is compared to, beside its
# scheme: learning rates that suit the scheme.
_OF_A_SCHEME = {'train.learning_rate', 'optimizer.warmup_factor'}
# Tables that compare ways to train, and not schemes alone.
_OF_A_WAY = dict.fromkeys(
  ('between_sites', 'between_sites_longer'),
  {
    'parallel.num_workers',
    'optimizer.name',
    'optimizer.momentum',
    'optimizer.weight_decay',
    'optimizer.sync_every',
    'optimizer.outer_learning_rate',
    'optimizer.outer_momentum',
  },
)


def _unlike_dense(table, row, size):
  """Returns the fields in which a row is trained unlike its dense row."""
  mine, other = (
    traverse_util.flatten_dict(table.config(r, size).to_dict(), sep='.')
    for r in (row, table.rows[row.beside])
  )
  return {
    name
    for name in {*mine, *other} - _OF_A_SCHEME
    if mine.get(name) != other.get(name) and name.split('.')[0] != 'compression'
  }


@pytest.mark.slow
@pytest.mark.parametrize('name', _TABLES)
def test_a_row_is_beside_a_dense_row_that_trains_as_it_does(name):
  """Adam beside Adam, momentum beside momentum, as many workers and steps."""
  table = _TABLES[name]
  for row in table.rows.values():
    if row.beside:
      assert not table.rows[row.beside].beside
      for size in {*table.sizes} - {papers.HELD_OUT}:
        unlike = _unlike_dense(table, row, size)
        assert not unlike - _OF_A_WAY.get(name, set()), row
        reference = table.config(table.rows[row.beside], size)
        assert reference.compression.name == 'dense'


def test_a_row_beside_one_with_another_optimizer_is_seen():
  table = _TABLES['variance_table1']
  row = table.rows['adam_variance_1']
  unfair = dataclasses.replace(row, beside='momentum_dense')
  assert not _unlike_dense(table, row, papers.QUICK)
  found = _unlike_dense(table, unfair, papers.QUICK)
  assert found == {'optimizer.name'}


def test_a_table_in_the_catalogue_is_a_file_and_the_other_way_round():
  found = {
    path.stem
    for path in (_ROOT / 'configs').glob('*.py')
    if '\nTABLE = ' in path.read_text()
  }
  assert found == {*catalogue.NAMES}


def test_the_page_has_the_programs_of_other_figures():
  for what, program in catalogue.ELSEWHERE.items():
    assert f'| {what} | `{program}` |' in _PAGE
  for name, table in _TABLES.items():
    for row in table.rows.values():
      assert table.needed(row) or table.quick is None, (
        f'{name}: what does a full run need?'
      )


def test_without_its_test_file_cifar10_is_tested_on_a_training_file():
  table = _TABLES['gtopk_table5']
  full = table.get_config('resnet20_gtopk')
  held = table.get_config('resnet20_gtopk:held_out')
  assert held.data.test_split == 'data_batch_5'
  assert full.data.test_split == 'test'
  # As many epochs, of 40,000 images.
  assert full.train.steps == 140 * 50_000 // 512
  assert held.train.steps == 140 * 40_000 // 512
  settings.check(held.to_dict())
  with pytest.raises(errors.ConfigError, match='this row has imagenet'):
    table.get_config('alexnet_gtopk:held_out')


def test_a_table_of_ours_has_one_setting_and_may_hold_out():
  table = _TABLES['schemes_digits']
  assert table.sizes == ('full', 'held_out')
  held = table.get_config('dgc:held_out')
  settings.check(held.to_dict())
  assert held.data.test_split == 'validation'
  full = table.get_config('dgc:full')
  assert full.data.test_split == 'test'
  held.data.test_split = full.data.test_split
  assert held.to_dict() == full.to_dict()
  assert _TABLES['dgc_table2'].sizes == papers.SIZES
  assert _TABLES['dgc_table3'].sizes == ('full', 'quick')
  with pytest.raises(errors.ConfigError, match='one of :full, :held_out, got'):
    table.get_config('dgc:quick')


# The papers' numbers, typed once more from their text and not from configs/.
_PRINTED = {
  'dgc_table2': {
    'dense_4workers': (93.75, None),
    'dropping_4workers': (92.75, -1.00),
    'dgc_4workers': (93.87, 0.12),
    'dropping_8workers': (93.02, 0.10),
    'dropping_16workers': (92.93, -0.21),
    'dgc_16workers': (93.20, 0.06),
    'dropping_32workers': (92.10, -1.00),
    'dgc_32workers': (93.18, 0.08),
  },
  'dgc_table3': {
    'alexnet_terngrad': (57.28, -0.89),
    'alexnet_dgc': (58.20, 0.03),
    'resnet50_dgc': (76.15, 0.19),
  },
}


@pytest.mark.parametrize('name', _PRINTED)
def test_differences_are_those_that_the_paper_prints(name):
  """It prints them beside the accuracies, so a slip in one is seen."""
  table = _TABLES[name]
  for row, (top1, points) in _PRINTED[name].items():
    assert table.rows[row].published['top1'] == top1
    found = table.points(table.rows[row])
    assert found == (None if points is None else pytest.approx(points))
  # Of this row the paper prints 93.28 - 92.92 as 0.37.
  dgc = _TABLES['dgc_table2'].rows['dgc_8workers']
  assert _TABLES['dgc_table2'].points(dgc) == pytest.approx(0.36)


def _plan(row):
  """Of a row of DGC's table 3, whose printed sizes can be counted."""
  config = _TABLES['dgc_table3'].get_config(row)
  model = models.create(config.model.name, 1000)
  shapes = jax.eval_shape(
    lambda key: model.init(key, jnp.zeros((1, 224, 224, 3)), train=False),
    jax.random.key(0),
  )
  chain = optimizer.make(
    config,
    lambda step: 0.1,
    config.compression.get('density'),
    axis_name=gs.workers.AXIS,
  )
  return gs.plan(chain, shapes['params'], config.parallel.num_workers)


@pytest.mark.slow
def test_sizes_of_dgcs_table_3_by_counting():
  rows = _TABLES['dgc_table3'].rows
  for model in ('alexnet', 'resnet50'):
    dense, dgc = rows[f'{model}_dense'], rows[f'{model}_dgc']
    plan = _plan(f'{model}_dense')
    assert round(plan.payload_bytes / 2**20, 2) == dense.published['message']
    plan = _plan(f'{model}_dgc')
    size = plan.payload_bytes / 2**20
    # Elias-Fano indices take less than 16 bits.
    assert 0.9 < size / dgc.published['message'] < 1
    assert plan.dense_bytes / plan.payload_bytes > dgc.published['ratio']
  plan = _plan('alexnet_terngrad')
  (last,) = (row for row in plan.rows if row.elements == 4096 * 1000)
  assert last.transport == 'dense'
  # 2 bits an element in a message, 4 in the sum of four workers.
  elements = 60_965_224 - 10_568 - last.elements
  floats = 4 * (10_568 + last.elements)
  # The scales that workers agree on, 4 bytes a leaf.
  scales = 4 * sum('terngrad' in row.transport for row in plan.rows)
  assert scales and plan.payload_bytes == elements // 2 + floats + scales
  printed = rows['alexnet_terngrad'].published['message']
  assert round((elements / 4 + floats) / 2**20, 1) == round(printed, 1)


@pytest.mark.parametrize('name', ['variance_table1', 'variance_table2'])
def test_the_scatter_has_every_alpha_and_threshold(name):
  rows = _TABLES[name].rows
  for kind in ('adam', 'momentum'):
    for alpha in (1, 1.5, 2):
      fields = rows[f'{kind}_variance_{alpha}'].fields
      assert fields['compression.alpha'] == alpha
    for tau in (0.001, 0.01, 0.1):
      fields = rows[f'{kind}_strom_{tau}'].fields
      assert fields['compression.threshold'] == tau
    for tau in (0.01, 0.1):
      fields = rows[f'{kind}_hybrid_{tau}'].fields
      assert fields['compression.threshold'] == tau
      assert fields['compression.alpha'] == 2
  adam = _TABLES[name].get_config('adam_variance_1')
  momentum = _TABLES[name].get_config('momentum_variance_1')
  assert (adam.optimizer.name, momentum.optimizer.name) == ('adam', 'sgd')
  assert adam.train.learning_rate == 0.001


def test_dgc_trains_as_its_section_4_1_says():
  table = _TABLES['dgc_table2']
  for workers in (4, 8, 16, 32):
    dgc = table.get_config(f'dgc_{workers}workers')
    assert dgc.model.name == 'resnet110'
    batch = dgc.parallel.num_workers * dgc.train.batch_size
    assert batch == 32 * workers
    assert dgc.train.steps == 164 * 50_000 // batch
    assert dgc.compression.warmup_steps == 4 * 50_000 // batch
    assert dgc.compression.density == 0.001 and dgc.optimizer.warmup_factor < 1
    # Its table 2 drops 99.9 % without any of DGC's tricks.
    dropping = table.get_config(f'dropping_{workers}workers')
    assert dropping.compression.density == 0.001
    assert dropping.compression.warmup_steps == 0
    assert dropping.train.steps == dgc.train.steps


def test_rows_of_equal_steps_have_as_many_as_four_workers():
  table = _TABLES['dgc_table2']
  for size in ('', ':quick'):
    four = table.get_config(f'dgc_4workers{size}')
    for workers in (8, 16, 32):
      longer = table.get_config(f'dgc_equal_steps_{workers}workers{size}')
      assert longer.train.steps == four.train.steps
      assert longer.compression.warmup_steps == four.compression.warmup_steps
      assert longer.parallel.num_workers == workers


def test_gtopk_trains_as_its_table_v_says():
  table = _TABLES['gtopk_table5']
  for model, batch, epochs, rate, images in (
    ('vgg16', 128, 140, 0.1, 50_000),
    ('resnet20', 128, 140, 0.1, 50_000),
    ('alexnet', 64, 45, 0.01, 1_281_167),
    ('resnet50', 256, 15, 0.01, 1_281_167),
  ):
    config = table.get_config(f'{model}_gtopk')
    assert (config.model.name, config.parallel.num_workers) == (model, 4)
    every = config.optimizer.accumulate
    assert config.train.batch_size * every == batch
    assert config.train.steps == epochs * images // (4 * batch) * every
    assert config.train.learning_rate == rate
    assert config.optimizer.momentum == 0.9
    dense = table.get_config(f'{model}_dense')
    assert dense.train.steps == config.train.steps
    assert dense.optimizer.warmup_factor == 1 > config.optimizer.warmup_factor
  config = table.get_config('resnet20_gtopk')
  stages = schemes.stages(config.compression)
  densities = (0.25, 0.0725, 0.015, 0.004, 0.001)
  assert tuple(stage.density for stage in stages) == densities
  # An epoch has 97.7 steps.
  assert [stage.first_step for stage in stages] == [0, 97, 195, 292, 390]


def test_qsgd_has_a_bit_for_the_sign():
  config = _TABLES['qsgd_table1'].get_config('resnet152_qsgd')
  assert config.compression.levels == 127 and config.parallel.num_workers == 8
  assert config.compression.bucket_size == 512
  config = _TABLES['qsgd_sensitivity'].get_config('2bit_64')
  assert (config.compression.levels, config.compression.bucket_size) == (1, 64)


def test_an_unknown_row_or_size_is_refused_in_words():
  table = _TABLES['dgc_table2']
  with pytest.raises(errors.ConfigError, match="'dgc_4worker'.*did you mean"):
    table.get_config('dgc_4worker')
  with pytest.raises(errors.ConfigError, match='one of :full, :held_out, :q'):
    table.get_config('dgc_4workers:fast')
