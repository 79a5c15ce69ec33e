"""The arithmetic of the benchmarks: from what was measured to rows."""

from experiments.benchmarks import rows
import pytest


def test_bytes_limit_is_the_contracts():
  assert rows.bytes_limit(0) == 4096
  assert rows.bytes_limit(1448) == 1.05 * (1448 + 66) + 4096
  assert rows.bytes_limit(1449) == 1.05 * (1449 + 2 * 66) + 4096


def _measured(scheme, seconds, sent):
  return {
    'scheme': scheme,
    'plan_bytes': 1000,
    'sent_bytes': sent,
    'seconds': seconds,
  }


def test_rows_are_medians_over_rounds_and_the_largest_host(capsys):
  found = {
    'floats': 50,
    'workers': 2,
    'schemes': [
      _measured('dense', [0.1, 0.4, 0.2], [[10, 30, 20], [1, 9000, 2]]),
      _measured('dgc', [0.1, 0.1, 0.1], [[6000, 7000, 6500], [1, 2, 3]]),
    ],
  }
  dense, dgc = rows.make_rows(found, '1mbit', 0.001)
  assert dense['step_ms'] == pytest.approx(200)
  assert dense['step_ms_spread'] == pytest.approx(150)  # of 100, 200, 400
  assert dense['wire_bytes'] == 20 and dense['bytes_ok']
  assert dense['speedup'] == 1
  assert dgc['wire_bytes'] == 6500 and not dgc['bytes_ok']
  assert dgc['speedup'] == pytest.approx(2)
  rows.show([dense, dgc])
  text = capsys.readouterr().out
  assert '50 floats, 2 workers, 1mbit' in text and 'dgc' in text


def _line(step, seconds, **more):
  return {'step': step, 'time/seconds': seconds, **more}


def test_a_training_run_is_timed_between_its_lines():
  summary = {
    'scheme': 'dgc',
    'steps': 60,
    'num_workers': 2,
    'parameters': 7,
    'seconds': 9.0,
    'compile_seconds': 1.0,
    'final': {'test_perplexity': 99.0, 'train_loss': 1.0},
    'comm': {'sent_bytes_total': 600},
  }
  phases = dict.fromkeys(('compute', 'compress', 'exchange', 'update'), 1.0)
  profile = {f'time/{k}_ms': v for k, v in phases.items()}
  profile |= {'time/other_ms': 0.0, 'time/step_ms': 4.0}
  lines = [_line(10, 5.0), _line(20, 5.5), _line(30, 6.0), _line(40, 6.2)]
  tested = {'test/perplexity': 99.0, 'comm/sent_bytes_total': 600}
  lines += [_line(50, 8.0, **profile), _line(55, 8.2), _line(60, 9.4, **tested)]
  row = rows.training_row(summary, lines, '1gbit', 1200)
  # Steps 31 to 40 took 20 ms each, 51 to 55 took 40; 41 to 50 have a profile,
  # and 56 to 60 a test.
  assert row['step_ms'] == pytest.approx(30)
  assert row['step_ms_spread'] == pytest.approx(10)
  assert row['plan_bytes'] == 10 and row['wire_bytes'] == 20
  assert row['test_perplexity'] == 99 and 'train_loss' not in row
  (test,) = row['evaluations']
  assert test == {
    'step': 60,
    'test_perplexity': 99,
    'sent_bytes': 600,
    'seconds': 9.4,
  }
  assert row['breakdown_ms'] == {**phases, 'other': 0}


def test_every_test_is_kept_with_its_scores():
  line = {'step': 2, 'comm/sent_bytes_total': 20, 'time/seconds': 1.5}
  tested = line | {'test/bleu': 30.0, 'test/loss': 2.0}
  assert rows.evaluations([line, tested | {'step': 4}]) == [
    {
      'step': 4,
      'test_bleu': 30.0,
      'test_loss': 2.0,
      'sent_bytes': 20,
      'seconds': 1.5,
    }
  ]
