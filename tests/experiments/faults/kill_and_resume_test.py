"""Runs killed at random moments are resumed bit for bit.

A scheme trains undisturbed, and killed again and again: while the processes
start, between steps, and while a checkpoint is being written; with outer steps,
while they exchange. One process dies first, the others a moment later, and the
same command resumes the run.

  GRADSPARSE_KILLS=10 python -m pytest -m slow ...

kills runs of six kinds on three processes so many times each.
"""

import dataclasses
import json
import os
import random
import signal
import time

from experiments.hosts.placement import Placement
from experiments.run import checkpoints
from experiments.run import records
import jax.numpy as jnp
import numpy as np
import pytest
from tests.experiments.faults import attempts

_STEPS, _EVERY = 60, 4
_KILLS = os.environ.get('GRADSPARSE_KILLS')
_CASES = (
  [(scheme, 3) for scheme in attempts.SCHEMES]
  if _KILLS
  else [('dgc', 1), ('dgc', 2), ('outer', 2)]
)
# Where in a run a kill may fall, and how often it does.
_KINDS = {'start': 1, 'step': 4, 'write': 5}
# A kill of a kind falls into these seconds after its moment.
_LATER = {'start': 10.0, 'step': 0.03, 'sync': 0.0, 'write': 0.03}
_REST_SECONDS = 0.2  # the other processes live so much longer


@dataclasses.dataclass
class Kill:
  """What happened: last step in the metrics then, and after the resume."""

  kind: str
  victim: int
  after_step: int
  writing: bool
  resumed: int = 0


def _killed(tried, rng, sync_every):
  """Kills an attempt at a random moment, or returns None: it came to its end.

  The moment is one while the processes start, or one some steps after the
  last: any, or the next at which a checkpoint is being written. With outer
  steps it is in an exchange: the victim is halted when the step before has
  ended, and killed while the others wait for its message.
  """
  (kind,) = rng.choices(list(_KINDS), list(_KINDS.values()))
  kind = 'sync' if sync_every else kind
  victim = rng.randrange(len(tried.children))
  if kind != 'start':
    step = attempts.last_step(tried.workdir) + rng.randint(1, 3 * _EVERY)
    if kind == 'sync':
      step += -(step + 1) % sync_every
    if not tried.reaches(step, kind == 'write'):
      return None
  time.sleep(rng.uniform(0, _LATER[kind]))
  if any(child.poll() is not None for child in tried.children):
    return None
  writing = attempts.is_writing(tried.workdir)
  if kind == 'sync':
    tried.children[victim].send_signal(signal.SIGSTOP)
    time.sleep(_REST_SECONDS)
  tried.children[victim].kill()
  time.sleep(_REST_SECONDS)
  after = attempts.last_step(tried.workdir)
  if kind == 'sync' and (after + 1) % sync_every:
    kind = 'step'  # the exchange had ended
  return Kill(kind, victim, after, writing)


def _disturbed(setting, workdir, most, rng, sync_every):
  """Makes a run that is killed on its way; returns the kills."""
  kills = []
  while True:
    with attempts.Attempt(setting, workdir) as tried:
      more = len(kills) < most
      kill = _killed(tried, rng, sync_every) if more else None
      if kill is None:
        tried.finish()
      if kills:
        kills[-1].resumed = tried.resumed()
      if kill is None:
        return kills
    kills.append(kill)


@pytest.fixture(scope='module')
def rows():
  """Of the record, which is kept as it grows."""
  return []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize('scheme, processes', _CASES)
def test_killed_runs_end_like_an_undisturbed_one(
  scheme, processes, rows, tmp_path
):
  setting = attempts.Setting(scheme, processes, _STEPS, _EVERY)
  with attempts.Attempt(setting, tmp_path / 'whole') as whole:
    whole.finish()
  rng, most = random.Random(f'0 {scheme}'), int(_KILLS or 2)
  sync_every = attempts.SCHEMES[scheme].get('optimizer.sync_every', 0)
  row = {'scheme': scheme, 'runs': 0, 'bit_exact_resumes': 0}
  row |= {'differences': [], 'kills': []}
  # A run that reaches its end before is followed by another.
  while (
    left := most
    - sum(not sync_every or kill['kind'] == 'sync' for kill in row['kills'])
  ) > 0:
    broken = tmp_path / f'broken{row["runs"]}'
    kills = _disturbed(setting, broken, left, rng, sync_every)
    wrong = attempts.differences(broken, whole.workdir)
    row['runs'] += 1
    row['kills'] += map(dataclasses.asdict, kills)
    row['differences'] += wrong
    row['bit_exact_resumes'] += 0 if wrong else len(kills)
  rows.append(row)
  attempts.keep(
    {
      'processes': processes,
      'steps': _STEPS,
      'checkpoint_every': _EVERY,
      'seed': 0,
      'kills': sum(len(row['kills']) for row in rows),
      'bit_exact_resumes': sum(row['bit_exact_resumes'] for row in rows),
      'schemes': rows,
    }
  )
  assert row['bit_exact_resumes'] == len(row['kills']) >= most, row


def _write(folder, *, param=1.0, loss=0.5, memory=2.0, seconds=1.0):
  placement = Placement('simulate', 1)
  saver = checkpoints.Checkpoints(folder / 'checkpoints', 1, placement)
  saver.prepare(0)
  saver.save(4, {'memory': jnp.full(3, memory), 'step': jnp.asarray(4)}, {})
  saver.close()
  records.write_params(folder / records.PARAMS, {'w': np.full(2, param)})
  (folder / records.METRICS).write_text(
    json.dumps({'step': 4, 'train/loss': loss, 'time/seconds': seconds})
  )
  return folder


def test_any_difference_but_of_time_is_seen(tmp_path):
  whole = _write(tmp_path / 'whole')
  same = _write(tmp_path / 'same', seconds=9.0)
  assert attempts.differences(same, whole) == []
  tiny = float(np.nextafter(np.float32(2), np.float32(3)))
  other = _write(tmp_path / 'other', memory=tiny)
  assert attempts.differences(other, whole) == ['the last checkpoint']
  other = _write(tmp_path / 'both', param=tiny, loss=0.25)
  assert attempts.differences(other, whole) == ['params.npz', 'metrics.jsonl']


def test_the_page_says_what_is_recorded():
  page = ' '.join(attempts.page('checkpoints').split())
  for name, said in (
    (
      'kill_and_resume',
      '{none} of the {all} kills on record at random moments left no trace; '
      '{writing} of them came while a checkpoint was written',
    ),
    (
      'kill_and_resume_outer',
      '{none} of {all} kills of runs with outer steps left no trace; {sync} of '
      'them came in an exchange',
    ),
  ):
    record = attempts.recorded(name)
    kills = [kill for row in record['schemes'] for kill in row['kills']]
    assert (
      said.format(
        none=record['bit_exact_resumes'],
        all=len(kills),
        writing=sum(kill['writing'] for kill in kills),
        sync=sum(kill['kind'] == 'sync' for kill in kills),
      )
      in page
    )
