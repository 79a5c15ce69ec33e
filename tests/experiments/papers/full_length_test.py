"""The command for a machine with a GPU asks for rows that there are."""

from experiments.papers import catalogue
from tests.bad_input import programs


def test_its_rows_have_their_size(capsys):
  status, told = programs.run('full_length', '--list')
  assert status == 0, told
  lines = capsys.readouterr().out.splitlines()
  assert lines[0] == (
    'schemes_cifar10, held_out: dense, dgc, gtopk, dgc_4bit, qsgd_4bit, '
    'variance'
  )
  for line in lines:
    part, rows = line.split(': ')
    name, size = part.split(', ')
    table = catalogue.load(name)
    assert size in table.sizes
    for row in rows.split(', '):
      config = table.config(table.rows[row], size)
      assert config.parallel.runner == 'simulate'
      # The test file of CIFAR-10 is not asked for.
      if config.data.name == 'cifar10':
        assert config.data.test_split == 'data_batch_5'


def test_all_tables_share_the_budget(tmp_path, capsys):
  status, told = programs.run(
    'full_length', '--budget=0', f'--workdir={tmp_path}'
  )
  assert status == 1, told
  said = capsys.readouterr().out.splitlines()
  assert said[0] == (
    'missing: schemes_cifar10, dense, seed 0: no time was left'
  )
  assert said[-1].startswith('missing: schemes_translation, gtopk')
