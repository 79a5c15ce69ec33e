"""Files of a run: parameters keep their bits, steps only rise."""

import json

from experiments.program import errors
from experiments.run import records
from experiments.run import writers
import ml_collections
import numpy as np
import pytest


def test_parameters_keep_their_bits_and_get_flat_names(tmp_path):
  params = {'Dense_0': {'kernel': np.float32([[np.pi, -0.0]])}, 'b': np.ones(2)}
  records.write_params(tmp_path / 'params.npz', params)
  with np.load(tmp_path / 'params.npz') as archive:
    assert sorted(archive) == ['Dense_0/kernel', 'b']
    kernel = archive['Dense_0/kernel']
  assert kernel.tobytes() == params['Dense_0']['kernel'].tobytes()


def test_lines_of_a_lost_attempt_go(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  with records.open_metrics(path) as file:
    for step in (2, 4, 6):
      file.write(records.json_line({'step': step, 'train/loss': 1.0}))
    file.write('{"step": 8, "tr')  # torn
  # The last checkpoint is of step 5: step 6 will come again.
  with records.open_metrics(path, 5) as file:
    file.write(records.json_line({'step': 6, 'train/loss': 2.0}))
  lines = records.read_metrics(path)
  assert [line['step'] for line in lines] == [2, 4, 6]
  assert lines[-1]['train/loss'] == 2


def test_lines_are_json_whatever_was_measured():
  text = records.json_line(
    {'step': 1, 'a': float('nan'), 'b': 4.0, 'c': 0.1234567890}
  )
  line = json.loads(text, parse_constant=pytest.fail)
  assert line == {'step': 1, 'a': None, 'b': 4, 'c': 0.1234568}


def test_damaged_lines_are_left_out_and_steps_rise(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  path.write_bytes(
    b'{"step": 1}\n\xff\xfe\n[3]\n{"loss": 1}\n{"step": "2"}\n{"step": 2}\n'
    b'{"step": 2}\n{"step": 1}\n{"step": 3'
  )
  assert records.read_metrics(path) == [{'step': 1}, {'step': 2}]


def test_a_line_that_cannot_be_written_is_told(tmp_path):
  train = ml_collections.ConfigDict({'log_every': 1, 'steps': 2})
  log = records.RunLog(
    tmp_path / 'metrics.jsonl',
    train,
    resume_step=0,
    seconds_before=0.0,
    describe=lambda step, metrics: {},
    writers=writers.Writers({}, {}, tmp_path, 0),
  )
  log._file.close()
  log._file = open('/dev/full', 'a')
  measured = {'train/loss': 1.0, 'comm/rejected_steps_in_a_row': 0.0}
  log.put(1, {name: np.float32(x) for name, x in measured.items()})
  with pytest.raises(errors.FileError, match='cannot write /dev/full: No'):
    log.flush()
  log.close()
