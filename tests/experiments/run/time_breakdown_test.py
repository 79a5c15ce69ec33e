"""The time of a step by phase, from a profile of the program that trains."""

import json

from experiments.report import page
from experiments.run import time_breakdown
from experiments.training import train
import numpy as np
import pytest

_HLO = """HloModule jit_step, is_scheduled=true

%body (p: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  ROOT %sort.3 = f32[2]{0} sort(%p), metadata={op_name="jit(step)/train.update/\
gradsparse.compress/while/body/sort"}
}

ENTRY %main (x: f32[2]) -> f32[2] {
  %x = f32[2]{0} parameter(0), metadata={op_name="x"}
  %tanh.1 = f32[2]{0} tanh(%x), metadata={op_name="jit(step)/jvp(train.compute)\
/tanh"}
  %copy.2 = f32[2]{0} copy(%tanh.1)
  %while.4 = f32[2]{0} while(%copy.2), body=%body, metadata={op_name="jit(step)\
/train.update/gradsparse.compress/while"}
  %all-reduce.5 = f32[2]{0} all-reduce(%while.4), metadata={op_name="jit(step)/\
train.update/gradsparse.compress/gradsparse.exchange/psum"}
  ROOT %fusion.6 = f32[2]{0} fusion(%all-reduce.5), metadata={op_name=\
"jit(step)/vmap(train.update)/add"}
}
"""


def test_operations_belong_to_the_innermost_scope():
  assert time_breakdown.phases(_HLO) == {
    'p': None,
    'sort.3': 'compress',
    'x': None,
    'tanh.1': 'compute',
    'copy.2': 'compute',  # of its operand
    'all-reduce.5': 'exchange',
    'fusion.6': 'update',
  }  # and not the loop: what it runs is there already


def test_times_are_means_over_devices():
  events = [
    (0, 'tanh.1', 3e6),
    (1, 'tanh.1', 5e6),
    (1, 'sort.3', 1e6),
    (1, 'while.4', 9e6),
  ]
  found = time_breakdown.summed(events, time_breakdown.phases(_HLO))
  assert found == {'compute': 4, 'compress': 0.5, 'exchange': 0, 'update': 0}


@pytest.mark.slow
@pytest.mark.parametrize('runner', ['shard_map', 'pmap'])
def test_profiled_steps_train_the_same(runner, tiny_config, tmp_path):
  for folder, every in (('plain', 0), ('timed', 3)):
    config = tiny_config('dgc', runner=runner, density=0.01, min_size=0)
    config.model.name = 'mlp'  # whose times are large enough to compare
    config.train.time_breakdown_every = every
    train.train_and_evaluate(config, tmp_path / folder)
  with (
    np.load(tmp_path / 'plain' / 'params.npz') as plain,
    np.load(tmp_path / 'timed' / 'params.npz') as timed,
  ):
    for name in plain:
      np.testing.assert_array_equal(plain[name], timed[name])
  text = (tmp_path / 'timed' / 'metrics.jsonl').read_text()
  lines = [json.loads(line) for line in text.splitlines()]
  assert [line['step'] for line in lines] == [2, 3, 4, 6]
  for line in lines:
    assert (time_breakdown.STEP in line) == (line['step'] % 3 == 0)
  for line in lines[1], lines[3]:
    parts = [line[name] for name in time_breakdown.NAMES]
    assert all(part > 0 for part in parts[:4]) and parts[4] >= 0
    # Operations of one device may overlap, but not much on two cores.
    assert sum(parts) == pytest.approx(line[time_breakdown.STEP], rel=0.5)
  without = page.picture(page.find_runs([tmp_path / 'plain']))
  with_bars = page.picture(page.find_runs([tmp_path / 'timed']))
  assert _height(with_bars) > _height(without)


def _height(png):
  return int.from_bytes(png[20:24], 'big')
