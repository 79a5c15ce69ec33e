"""Trainings on a slow network: the table, the target and the pictures."""

import io
import json

from experiments.results_page import networks
from experiments.results_page import page
from PIL import Image
import pytest
from tests.experiments.results_page import made_up

# The second reaches 93 %, dense's score less a point, in its last test.
_ACCURACIES = {'dense': (0.5, 0.9, 0.94), 'same': (0.3, 0.92, 0.935)}


def _row(name, *, rate='1gbit', wire_bytes=2**20):
  tests = [
    {
      'step': 10 * i,
      'test_accuracy': accuracy,
      'sent_bytes': i * 2**20,
      'seconds': 7.0 * i,
    }
    for i, accuracy in enumerate(_ACCURACIES[name], 1)
  ]
  return {
    'setting': f'{name}:quick',
    'workers': 4,
    'rate': rate,
    'seconds': 30.0,
    'compile_seconds': 4.0,
    'test_accuracy': _ACCURACIES[name][-1],
    'evaluations': tests,
    'step_ms': 40.0,
    'breakdown_ms': {'compute': 10.0, 'exchange': 27.0, 'other': 3.0},
    'wire_bytes': wire_bytes,
  }


@pytest.fixture
def root(tmp_path):
  made_up.write(tmp_path)
  folder = tmp_path / page.NETWORKS
  folder.mkdir(parents=True)
  record = {
    'command': 'python -m experiments.benchmarks.training',
    'environment': made_up.run('dense', 0)['environment'],
    'date': '2020-02-04',
    'rows': [
      _row('dense'),
      _row('same'),
      _row('dense', rate='loopback', wire_bytes=None),
    ],
  }
  (folder / f'{made_up.NAME}.json').write_text(json.dumps(record))
  return tmp_path


def test_each_network_has_its_rows_and_their_way_to_the_target(root):
  first, second = networks.read(made_up.CATALOGUE, root / page.NETWORKS)
  assert (first.workers, first.rate, list(first.rows)) == (
    4,
    '1gbit',
    ['dense', 'same'],
  )
  header, _, dense, same = networks.results(first).splitlines()
  assert 'test accuracy (%)' in header
  assert 'compute | exchange | other' in header
  # Seconds, a step, its parts, MiB a step; the target, and the way to it.
  parts = '30 | 4 | 40 | 10 | 27 | 3 | 1.000 | 93.00 | 21 | 3.00 |'
  assert dense == f'| `dense` | 94.00 | {parts}'
  assert same == f'| `same` | 93.50 | {parts}'
  assert list(second.rows) == ['dense'] and second.rate == 'loopback'
  assert '| 3 | - |' in networks.results(second)


def test_a_target_that_was_not_reached_has_no_number(root):
  path = root / page.NETWORKS / f'{made_up.NAME}.json'
  record = json.loads(path.read_text())
  record['rows'][1]['evaluations'].pop()
  path.write_text(json.dumps(record))
  (first, _) = networks.read(made_up.CATALOGUE, root / page.NETWORKS)
  assert networks.results(first).splitlines()[-1].endswith('| 93.00 | - | - |')
  assert '2 or 3 tests' in ' '.join(networks.text(first).split())


def test_the_page_has_them_with_pictures_that_open(root):
  content = page.content(made_up.CATALOGUE, root)
  flat = ' '.join(content.text.split())
  assert '## On a slow network ### `made_up`, 4 hosts, 1gbit' in flat
  assert 'Measured on 1 x abacus, 2 cores, jax 0.0 (2020-02-04), by' in flat
  found = [p for p in content.pictures if 'hosts' in p.name]
  assert [picture.name for picture in found] == [
    'made_up_4hosts_1gbit_scores.png',
    'made_up_4hosts_1gbit_breakdown.png',
    'made_up_4hosts_loopback_scores.png',
    'made_up_4hosts_loopback_breakdown.png',
  ]
  for picture in found:
    assert f'({page.PICTURES / picture.name})' in content.text
    image = Image.open(io.BytesIO(picture.draw()))
    image.load()
    assert len(image.convert('RGB').getcolors(1 << 20)) > 10


def test_without_records_the_page_does_not_speak_of_them(tmp_path):
  made_up.write(tmp_path)
  content = page.content(made_up.CATALOGUE, tmp_path)
  assert '## On a slow network' not in content.text
