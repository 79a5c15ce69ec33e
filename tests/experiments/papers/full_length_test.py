"""The command for a machine with a GPU asks for rows that there are."""

from experiments.papers import catalogue
from experiments.papers import full_length
from experiments.papers import running
import pytest
from tests.bad_input import programs


@pytest.mark.parametrize('part', full_length.ORDER, ids=lambda part: part.table)
def test_its_rows_have_this_size(part):
  table = catalogue.load(part.table)
  assert part.size in table.sizes
  for name in running.with_dense(table, part.rows):
    config = table.config(table.rows[name], part.size)
    assert config.parallel.runner == 'simulate'
    # The test file of CIFAR-10 is not asked for.
    if config.data.name == 'cifar10':
      assert config.data.test_split == 'data_batch_5'


@pytest.mark.parametrize(
  ('budget', 'left'), [(25.0, [15.0, 5.0, 0.0]), (None, [None] * 3)]
)
def test_all_tables_share_the_budget(budget, left, monkeypatch, tmp_path):
  asked = []

  def run(table, names, *, budget, **given):
    del table, given
    asked.append(budget)
    return [running.Missing(names[0], 1, 'no time was left')]

  monkeypatch.setattr(running, 'run', run)
  seconds = iter(range(0, 1000, 10))
  missing = full_length.run(
    tmp_path,
    seeds=(1,),
    command='typed',
    budget=budget,
    order=full_length.ORDER[:3],
    clock=lambda: next(seconds),
  )
  assert asked == left
  assert missing == [
    'schemes_cifar10, dense, seed 1: no time was left',
    'cifar10_resnet20, dense_8workers, seed 1: no time was left',
    'dgc_table2, dense_4workers, seed 1: no time was left',
  ]


def test_the_program_lists_its_rows_or_says_what_is_missing(tmp_path, capsys):
  status, told = programs.run('full_length', '--list')
  assert status == 0, told
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) == len(full_length.ORDER)
  assert lines[0] == (
    'schemes_cifar10, held_out: dense, dgc, gtopk, dgc_4bit, qsgd_4bit, '
    'variance'
  )
  status, told = programs.run(
    'full_length', '--budget=0', f'--workdir={tmp_path}'
  )
  assert status == 1, told
  first = capsys.readouterr().out.splitlines()[0]
  assert first == 'missing: schemes_cifar10, dense, seed 0: no time was left'
