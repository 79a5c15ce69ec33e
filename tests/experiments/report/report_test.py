"""The report is one file that needs no other."""

import base64
import csv
import re

from experiments.program import errors
from experiments.program import files
from experiments.report import page
from experiments.report import pareto
from experiments.run import records
from experiments.run import scores
import pytest
from tests.bad_input import programs


def _write_run(folder, scheme, finished=True):
  folder.mkdir(parents=True)
  files.write_json(folder / 'config.json', {'train': {'steps': 20}})
  with records.open_metrics(folder / 'metrics.jsonl') as file:
    for step in (10, 20):
      line = {
        'step': step,
        'train/loss': 1 / step,
        'test/accuracy': 0.9 + step / 1000,
        'comm/sent_bytes_total': 100 * step,
        'comm/residual_norm': float(scheme == 'dgc'),
      }
      file.write(records.json_line(line))
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
    files.write_json(
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
  _, said = programs.run(
    'report', str(tmp_path), f'--figure={tmp_path / "figure.png"}'
  )
  written = capsys.readouterr().out
  assert written.strip() == str(tmp_path / 'report.html'), said
  html = (tmp_path / 'report.html').read_text()
  for text in ('98.76', '800.0×', '25.0×', '1.2.3', 'train.steps = 20'):
    assert text in html
  for last, average in (('5', '160'), ('15', '482'), ('800.0×', '25.0×')):
    assert re.search(rf'<td>{last}</td>\s*<td>{average}</td>', html)
  assert 'not finished, at step 20' in html and 'a&lt;b' in html
  assert 'http' not in html
  (picture,) = re.findall(r'base64,([^"]+)"', html)
  png = base64.b64decode(picture)
  assert png[:8] == b'\x89PNG\r\n\x1a\n' and len(png) > 20_000
  assert (tmp_path / 'figure.png').read_bytes() == png


def _rewrite(folder, tested):
  """Gives a finished run another score."""
  summary = files.read_json(folder / 'summary.json')
  files.write_json(folder / 'summary.json', summary | {'final': tested})
  own = {n.replace('_', '/', 1): score for n, score in tested.items()}
  _rewrite_lines(folder, own)


def _rewrite_lines(folder, tested):
  lines = records.read_metrics(folder / 'metrics.jsonl')
  with records.open_metrics(folder / 'metrics.jsonl') as file:
    for line in lines:
      line.pop('test/accuracy', None)
      file.write(records.json_line(line | tested))


@pytest.mark.slow
def test_a_run_is_shown_by_its_own_score(tmp_path):
  for name in ('dense', 'dgc'):
    _write_run(tmp_path / name, name)
    _rewrite(tmp_path / name, {'test_loss': 4.3, 'test_perplexity': 73.7})
  runs = page.find_runs([tmp_path])
  html = page.page(runs, 'title', page.picture(runs))
  assert '<th>test perplexity</th>' in html and '<td>73.70</td>' in html
  assert 'accuracy' not in html
  drawn = page.picture(runs)
  _rewrite_lines(tmp_path / 'dgc', {'test/perplexity': 99.9})
  assert page.picture(page.find_runs([tmp_path])) != drawn  # it shows them


def test_runs_with_different_scores_have_a_column_each(tmp_path):
  _write_run(tmp_path / 'images', 'dense')
  _write_run(tmp_path / 'speech', 'dense')
  _rewrite(tmp_path / 'speech', {'test_wer': 0.129})
  runs = page.find_runs([tmp_path])
  html = page.page(runs, 'title', page.picture(runs))
  for head in ('test accuracy (%)', 'test word error rate (%)'):
    assert f'<th>{head}</th>' in html
  assert '<td>98.76</td>' in html and '<td>12.90</td>' in html
  assert html.count('<td>–</td>') == 2


def test_output_goes_where_the_directories_meet(tmp_path):
  _write_run(tmp_path / 'a' / 'run', 'dense')
  _write_run(tmp_path / 'b' / 'run', 'dense')
  programs.run('report', f'{tmp_path}/a/run', f'{tmp_path}/b/run')
  html = (tmp_path / 'report.html').read_text()
  assert f'{tmp_path}/a/run' in html  # same folder name: told apart


def test_a_folder_without_runs_is_an_error(tmp_path):
  with pytest.raises(errors.UserError, match='no run in'):
    page.find_runs([tmp_path])
  status, said = programs.run('report', str(tmp_path))
  assert status == 1 and said.startswith('error: no run in')
  assert programs.run('report')[0] == 2


def test_csv_has_a_row_a_run(tmp_path):
  _write_run(tmp_path / 'runs' / 'dense', 'dense')
  _write_run(tmp_path / 'runs' / 'dgc', 'dgc', finished=False)
  file, output = tmp_path / 'all.csv', tmp_path / 'report.html'
  status, said = programs.run(
    'report', str(tmp_path / 'runs'), f'--csv={file}', f'--output={output}'
  )
  assert status == 0, said
  dense, dgc = csv.DictReader(file.open())
  assert (dense['run'], dense['status'], dense['step']) == (
    *('dense', 'finished', '20'),
  )
  assert dense['config.train.steps'] == '20' == dgc['config.train.steps']
  assert dense['final.test_accuracy'] == '0.9876'
  assert dense['comm.run_average_ratio'] == '25.0'
  assert (dgc['run'], dgc['status'], dgc['scheme']) == ('dgc', 'unfinished', '')


@pytest.mark.slow
def test_pareto_draws_finished_runs_that_have_the_score(tmp_path):
  for name in ('dense', 'dgc', 'speech', 'running'):
    _write_run(tmp_path / name, name, finished=name != 'running')
  _rewrite(tmp_path / 'speech', {'test_wer': 0.129})
  runs = page.find_runs([tmp_path])
  score, found = pareto.points(runs)
  assert score is scores.ACCURACY
  assert found.values.tolist() == [
    [name, name, 20 * 481.5, 98.76] for name in ('dense', 'dgc')
  ]
  file, output = tmp_path / 'pareto.png', tmp_path / 'report.html'
  status, said = programs.run(
    'report', str(tmp_path), f'--pareto={file}', f'--output={output}'
  )
  assert status == 0, said
  assert file.read_bytes()[:8] == b'\x89PNG\r\n\x1a\n'


def test_pareto_of_nothing_is_an_error(tmp_path):
  _write_run(tmp_path / 'running', 'dense', finished=False)
  with pytest.raises(errors.UserError, match='needs a finished run'):
    pareto.draw(page.find_runs([tmp_path]))
