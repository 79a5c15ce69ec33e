"""The report is one file that needs no other."""

import base64
import re

from experiments import errors
from experiments import record
from experiments import records
from experiments import report
import pytest


def _write_run(folder, scheme, finished=True):
  folder.mkdir(parents=True)
  records.write_json(folder / 'config.json', {'train': {'steps': 20}})
  file = records.MetricsFile(folder / 'metrics.jsonl')
  for step in (10, 20):
    file.write(
      {
        'step': step,
        'train/loss': 1 / step,
        'test/accuracy': 0.9 + step / 1000,
        'comm/sent_bytes_total': 100 * step,
        'comm/residual_norm': float(scheme == 'dgc'),
      }
    )
  file.close()
  if finished:
    comm = {
      'dense_bytes_per_step': 4000,
      'payload_bytes_per_step': 5,
      'sent_bytes_per_step': 15,
      'ratio': 800.0,
      'run_average_payload_bytes_per_step': 160.5,
      'run_average_sent_bytes_per_step': 481.5,
      'run_average_ratio': 25.0,
    }
    records.write_json(
      folder / 'summary.json',
      {
        'scheme': scheme,
        'steps': 20,
        'seconds': 3.25,
        'final': {'test_accuracy': 0.9876},
        'comm': comm,
        'environment': {'jax': '1.2.3'},
      },
    )


def test_report_has_table_picture_and_nothing_outside(tmp_path, capsys):
  _write_run(tmp_path / 'dense', 'dense')
  _write_run(tmp_path / 'dgc', 'dgc')
  _write_run(tmp_path / 'a<b', 'dgc', finished=False)
  report.main([str(tmp_path), '--figure', str(tmp_path / 'figure.png')])
  assert capsys.readouterr().out.strip() == str(tmp_path / 'report.html')
  page = (tmp_path / 'report.html').read_text()
  for text in ('98.76', '800.0×', '25.0×', '1.2.3', 'train.steps = 20'):
    assert text in page
  for last, average in (('5', '160'), ('15', '482'), ('800.0×', '25.0×')):
    assert f'<td>{last}</td><td>{average}</td>' in page
  assert 'not finished, at step 20' in page and 'a&lt;b' in page
  assert 'http' not in page
  (picture,) = re.findall(r'base64,([^"]+)"', page)
  png = base64.b64decode(picture)
  assert png[:8] == b'\x89PNG\r\n\x1a\n' and len(png) > 20_000
  assert (tmp_path / 'figure.png').read_bytes() == png


def test_output_goes_where_the_directories_meet(tmp_path):
  _write_run(tmp_path / 'a' / 'run', 'dense')
  _write_run(tmp_path / 'b' / 'run', 'dense')
  report.main([str(tmp_path / 'a' / 'run'), str(tmp_path / 'b' / 'run')])
  page = (tmp_path / 'report.html').read_text()
  assert f'{tmp_path}/a/run' in page  # same folder name: told apart


def test_a_folder_without_runs_is_an_error(tmp_path):
  with pytest.raises(errors.UserError, match='no run in'):
    report.find_runs([tmp_path])
  with pytest.raises(SystemExit, match='error: no run in'):
    report.main([str(tmp_path)])


def test_record_keeps_results_and_curves(tmp_path):
  _write_run(tmp_path / 'runs' / 'dgc', 'dgc')
  output = tmp_path / 'results' / 'kept.json'
  record.main([str(tmp_path / 'runs'), f'--output={output}'])
  kept = records.read_json(output)
  assert kept['dgc']['comm']['ratio'] == 800
  assert kept['dgc']['curves']['train/loss'] == [[10, 0.1], [20, 0.05]]
  assert '[10, 0.1],\n' in output.read_text()
  _write_run(tmp_path / 'runs' / 'late', 'dgc', finished=False)
  with pytest.raises(SystemExit, match='late has not reached its last step'):
    record.main([str(tmp_path / 'runs'), f'--output={output}'])
