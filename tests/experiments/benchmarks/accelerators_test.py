"""What the compiler of TPUs says is added up, and asked for in words."""

import importlib.util
import subprocess
import sys

from experiments.benchmarks.accelerators import cost
from experiments.benchmarks.accelerators import targets
from experiments.program import errors
import pytest

_TEXT = """
%body (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %f.1 = f32[8]{0} fusion(%p), kind=kLoop, metadata={op_name="turn"}, \
backend_config={"estimated_cycles":"10"}
}
%small (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %f.2 = f32[8]{0} fusion(%p), backend_config={"estimated_cycles":"3"}
}
%large (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %s.1 = f32[8]{0} sort(%p), dimensions={0}
  ROOT %f.3 = f32[8]{0} fusion(%s.1), backend_config={"estimated_cycles":"7"}
}
ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %w.1 = f32[8]{0} while(%p), condition=%cond, body=%body, \
backend_config={"known_trip_count":{"n":"4"}}
  %w.2 = f32[8]{0} while(%w.1), condition=%cond, body=%body
  %c.1 = f32[8]{0} conditional(%i, %w.2, %w.2), \
branch_computations={%small, %large}
  %a.1 = f32[8]{0} all-gather-done(%c.1), backend_config={"estimated_cycles":\
"99"}
  ROOT %f.4 = f32[8]{0} fusion(%a.1), metadata={op_name="last"}, \
backend_config={"estimated_cycles":"1"}
}
"""


def test_cycles_are_added_up():
  """Loops as often as they turn; of branches the dearest; no end of a wait."""
  found = cost.of(_TEXT.replace('\\\n', ''))
  assert found.cycles == 4 * 10 + cost.UNKNOWN_TURNS * 10 + 7 + 1
  assert found.unknown_loops == 1
  assert found.uncounted == {'sort': 1}
  assert found.launches == 5 + 4 + cost.UNKNOWN_TURNS + 2
  assert found.rows[0] == (240, 'fusion turn')


@pytest.mark.parametrize('name', ['v5e', 'v5e:2', 'a100', 'v9:2x2'])
def test_what_is_no_target_is_told(name):
  with pytest.raises(ValueError, match=f'target must be .* got {name!r}'):
    targets.parse(name)
  assert targets.parse('v5p:2x2x2') == 'v5p:2x2x2'


def test_a_compiler_that_is_missing_is_named(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(errors.ConfigError, match='tpu-compile'):
    targets.prepare()


@pytest.mark.slow
@pytest.mark.skipif(
  importlib.util.find_spec('libtpu') is None, reason='no compiler for TPUs'
)
def test_a_step_is_compiled_for_a_tpu(tmp_path):
  command = 'experiments.benchmarks.accelerators --tree=one --schemes=dense'
  done = subprocess.run(
    [sys.executable, '-m', *command.split(), '--num_params=500000'],
    capture_output=True,
    text=True,
    check=True,
  )
  assert 'v5e:2x4' in done.stdout and 'dense' in done.stdout
