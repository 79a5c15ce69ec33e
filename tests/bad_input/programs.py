"""Wrong command lines, and a way to run programs inside of this process."""

from __future__ import annotations

import contextlib
import io
import pathlib
import runpy
import sys
from typing import NamedTuple
from unittest import mock

from absl import app
from absl import flags

CONFIG = '--config=configs/default.py'
WORKDIR = '--workdir={tmp}/run'


def run(name: str, *arguments: str) -> tuple[int, str]:
  """Runs `python -m experiments.NAME ARGUMENTS` in this process.

  Returns:
    (exit status, what it said on standard error).
  """
  app.define_help_flags()
  before, said = set(flags.FLAGS), io.StringIO()
  status = 0
  try:
    with (
      mock.patch.object(sys, 'argv', [name, *arguments]),
      contextlib.redirect_stderr(said),
    ):
      runpy.run_module(f'experiments.{name}', run_name='__main__')
  except SystemExit as e:
    status = e.code or 0
  finally:
    flags.FLAGS.unparse_flags()
    for flag in set(flags.FLAGS) - before:
      # A flag and its short name go together.
      with contextlib.suppress(AttributeError):
        delattr(flags.FLAGS, flag)
  return status, said.getvalue()


class Line(NamedTuple):
  """A wrong command line; '{tmp}' is a folder.

  Attributes:
    program: of `experiments`.
    arguments: with spaces between them.
    says: regular expression of what it says.
    status: that it ends with.
  """

  program: str
  arguments: str
  says: str
  status: int = 2


def main(fields: str, says: str, status: int = 2) -> Line:
  """A line for `experiments.main`, of fields with spaces between them."""
  given = ' '.join(f'--config.{field}' for field in fields.split())
  return Line('main', f'{CONFIG} {WORKDIR} {given}', says, status)


def qsvrg(field: str, says: str) -> Line:
  """Likewise for `experiments.qsvrg`, of one field."""
  return Line('qsvrg', f'--config=configs/qsvrg.py --config.{field}', says)


_DGC = 'compression.name=dgc compression.density='
_VARIANCE = 'compression.name=variance_based compression.alpha='
_PROCESSES = f'{CONFIG} {WORKDIR} --multihost --num_processes='
_CONFIGS = f'{WORKDIR} --config={{tmp}}/'

LINES = (
  *(
    main(
      f'train.seed={value}', f"seed={value}: invalid literal for int.*'{value}'"
    )
    for value in ('nan', 'inf', '1.5', 'true', 'many')
  ),
  main('train.seed=-1', 'train.seed must be in 0..4294967295, got -1'),
  main(f'train.seed={10**20}', f'train.seed must be in .*, got {10**20}'),
  main('train.steps=0', r'train.steps must be in 1\.\..*got 0'),
  main('train.steps=-3', r'train.steps must be in 1\.\..*got -3'),
  main('train.steps=1e3', "steps=1e3: invalid literal for int.* '1e3'"),
  main('train.steps', 'Missing value for flag --config.train.steps'),
  main('train.batch_size=0', r'batch_size must be in 1\.\..*got 0'),
  main('train.learning_rate=nan', 'must be a finite number > 0, got nan'),
  main('train.learning_rate=inf', 'must be a finite number > 0, got inf'),
  main('train.learning_rate=-1', 'must be a finite number > 0, got -1.0'),
  main('train.learning_rate=many', "could not convert string to float: 'many'"),
  main(
    'train.learning_rate=',
    "learning_rate=: could not convert .*: ''",
  ),
  main('train.keep_best=maybe', "Non-boolean argument .*'maybe'"),
  main('train.log_every=0', r'log_every must be in 1\.\..*got 0'),
  main('train.eval_every=-1', r'eval_every must be in 0\.\..*got -1'),
  main('train.stepz=3', 'Did you mean "steps" instead of "stepz"'),
  main('trian.steps=3', 'Did you mean "train" instead of "trian"'),
  main('train=3', "'3' as a ConfigDict"),
  main('nothing=3', 'Key "nothing" does not exist'),
  main('data.name=cifar', "data.name must be .*'cifar10'"),
  main('data.augment=3', "augment=3: .*Non-boolean argument .*'3'"),
  main('data.test_split=file', "test or validation for digits, got 'file'"),
  main('data.final_split=test', "another split than data.test_split.*'test'"),
  main('data.final_split=dev', "data.final_split='dev': .* got 'dev'"),
  main('data.name=mnist data.dir={tmp}', "no data set 'mnist'", 1),
  main('data.name=cifar10 data.dir={tmp}/file', 'data.dir must be a folder', 1),
  main('data.name=cifar10 data.test_split=x', "test_split must be one .*'x'"),
  main('model.name=resnet', "model.name must .*got 'resnet'"),
  main('optimizer.momentum=1.5', r'momentum must be in \[0, 1\), got 1.5'),
  main('optimizer.weight_decay=inf', 'weight_decay must be a finite .*got inf'),
  main('optimizer.accumulate=7', 'multiple of optimizer.accumulate=7, got 660'),
  main('compression.name=nope', "compression.name must be one of .*got 'nope'"),
  main('compression.density=0.1', 'density is not an argument of dense'),
  main('compression.clip_norm=nan', 'clip_norm must be a finite .*got nan'),
  main('compression.local_gradient=all', "'partial', 'error'., got 'all'"),
  main(
    'compression.param_sync_every=0',
    r'must be in 1\.\..*got 0',
  ),
  main(_DGC + 'nan', "density must be a number or a schedule, got 'nan'"),
  main(_DGC + '2', r'density must be in \(0, 1\], got 2'),
  main(_DGC + '0.1 compression.dencity=1', "dencity is not .*'density'"),
  main(_DGC + '0.1 compression.seed=-1', 'seed must be in .*got -1'),
  main(_VARIANCE + '1.0 compression.microbatch=3', 'batch_size=16, got 3'),
  main(
    _VARIANCE + '1.0 compression.microbatch=1.5',
    "invalid literal for int.* '1.5'",
  ),
  main(_VARIANCE + '0.0', 'alpha must be a finite number > 0, got 0.0'),
  main('parallel.num_workers=many', "invalid literal for int.* 'many'"),
  main(f'parallel.num_workers={10**9}', f'must be in 1..65536, got {10**9}'),
  main('parallel.num_workers=1000', 'need 16000 examples a step; .* has 1437'),
  main('parallel.runner=vmap', "runner must be one of .*got 'vmap'"),
  #
  Line('main', '', 'Flag --config must have a value .*--workdir must have'),
  Line('main', CONFIG, 'Flag --workdir must have a value'),
  Line('main', f'{CONFIG} {WORKDIR} surplus', "unexpected argument 'surplus'"),
  Line('main', f'{CONFIG} {WORKDIR} --nonsense=1', "flag 'nonsense'"),
  Line('main', f'{CONFIG} --workdir=', "must name a file or a folder, got ''"),
  Line('main', f'{CONFIG} --workdir={{tmp}}/nul\0', 'must name a file or'),
  Line('main', _CONFIGS + 'none.py', r'none\.py.*No such file'),
  Line('main', _CONFIGS + 'syntax.py', r'invalid syntax.*syntax\.py, line 1'),
  Line('main', _CONFIGS + 'returns_dict.py', 'return a ConfigDict, got dict'),
  Line('main', _CONFIGS + 'empty.py', 'have the fields of .*missing: comp'),
  Line('main', f'{WORKDIR} --config={{tmp}}', 'Is a directory'),
  Line('main', f'{WORKDIR} --config=configs/digits.py:dcg', "setting 'dcg'"),
  Line('main', f'{WORKDIR} {CONFIG}:dgc', ':dgc: .*TypeError: get_config'),
  *(
    Line('main', f'{CONFIG} {WORKDIR} --{flag}=2', f'{flag} goes with --multi')
    for flag in ('num_processes', 'process_id', 'host_timeout')
  ),
  Line('main', _PROCESSES + 'many', "invalid literal for int.* 'many'"),
  Line('main', _PROCESSES + '0', 'num_processes=0: .*not a positive integer'),
  Line(
    'main',
    _PROCESSES + '2 --process_id=5 --coordinator=a:1',
    'go together, got a:1, 2 and 5',
  ),
  Line(
    'main',
    _PROCESSES + '2 --process_id=0 --coordinator=nowhere',
    'go together, got nowhere, 2 and 0',
  ),
  Line('main', _PROCESSES + '2', 'go together, got None, 2 and None'),
  Line('main', f'{CONFIG} {WORKDIR} --writer=wand', "one of tens.*got 'wand'"),
  Line('main', f'{CONFIG} {WORKDIR} --writer=os:', "factory, got 'os:'"),
  Line('main', f'{CONFIG} {WORKDIR} --writer=no.module:f', "module named 'no'"),
  Line(
    'main', f'{CONFIG} {WORKDIR} --writer=os:getcwd', 'must name a function'
  ),
  Line('sweep', f'{CONFIG} {WORKDIR} --sweep=x --writer=,', 'must be one of'),
  #
  Line('demo', '--schemes=dcg', 'value should be one of <dense|'),
  Line('demo', '--schemes=', 'value should be one of <dense|'),
  Line('demo', 'dense dgc', "unexpected argument 'dense'; .*has commas"),
  Line('papers', '', 'TABLE is missing; --list shows them'),
  Line('papers', 'dgc_table9', "unknown table 'dgc_table9' .did you mean 'dgc"),
  Line('papers', 'dgc_table2 dgc', "no setting 'dgc'.*it has dense_4workers,"),
  Line('papers', 'dgc_table2 --json=', "must name a file or a folder, got ''"),
  Line('papers', 'dgc_table2 --seeds=x', "seeds=x: invalid literal .*'x'"),
  Line('papers', 'dgc_table2 --seeds=1.5', "invalid literal .*'1.5'"),
  Line(
    'papers',
    'dgc_table2 --seeds=-1',
    '-1 is not an integer in the',
  ),
  Line('papers', f'dgc_table2 --seeds={10**20}', f'{10**20} is not an'),
  Line('papers', 'schemes_digits nope', "no setting 'nope'; it has dense, den"),
  Line('papers', 'dgc_table2 --budget=-1', 'budget=-1: .* not a non-negative'),
  Line('papers', 'dgc_table2 --budget=soon', "convert string to float: 'soon'"),
  Line('papers', 'dgc_table2 --full --held_out', 'are two settings: take one'),
  Line('papers', 'dgc_table2 --full=perhaps', "Non-boolean .*'perhaps'"),
  Line('papers', 'dgc_table2 --json={tmp}/file', 'file is damaged: .*JSON', 1),
  Line('papers', 'dgc_table2 --json={tmp}/rows.json', 'no record of .*dgc', 1),
  Line('qsvrg', '', 'Flag --config must have a value'),
  Line(
    'qsvrg', CONFIG, 'fields must be epochs, inner_steps, .*got compression'
  ),
  Line('qsvrg', '--config={tmp}/returns_dict.py', 'return a ConfigDict, got d'),
  qsvrg('epochs=nan', "epochs=nan: invalid literal .*'nan'"),
  qsvrg('epochs=0', 'epochs must be a finite number > 0, got 0'),
  qsvrg('epoch=3', 'fields must be .*got epoch, epochs, inner'),
  qsvrg('penalty=0', 'penalty must be a finite number > 0, got 0.0'),
  qsvrg('learning_rate=inf', 'learning_rate must be a finite .*got inf'),
  Line('report', '', 'DIR... is missing'),
  Line('report', '{tmp}/file', 'no run in .*file: neither', 1),
  Line('report', '{tmp}/bad', 'config.json is damaged: .*no JSON', 1),
  Line('results_page', 'x', "unexpected argument 'x'"),
  Line('results_page', '--root={tmp}/none', 'must have the folder exp', 1),
  Line('results_page', '--check=perhaps', "Non-boolean .*'perhaps'"),
)


def write_files(folder: pathlib.Path) -> None:
  """Makes what the lines name."""
  (folder / 'file').write_text('no folder')
  (folder / 'rows.json').write_text('[{}]')
  (folder / 'bad').mkdir()
  (folder / 'bad' / 'config.json').write_text('{')
  (folder / 'syntax.py').write_text('def get_config(:')
  (folder / 'returns_dict.py').write_text('def get_config(): return {}')
  (folder / 'empty.py').write_text(
    'import ml_collections\n'
    'def get_config(): return ml_collections.ConfigDict()\n'
  )
