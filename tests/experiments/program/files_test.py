"""Files are whole or not there, and all JSON looks alike."""

from experiments.program import files
import pytest


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
  path = tmp_path / 'summary.json'
  files.write_json(path, {'a': 1})
  with pytest.raises(RuntimeError), files.replacing(path) as file:
    file.write(b'{"a":')
    raise RuntimeError
  assert files.read_json(path) == {'a': 1}
  assert [p.name for p in tmp_path.iterdir()] == ['summary.json']
  assert files.read_json(tmp_path / 'none.json') is None


def test_json_is_indented_and_points_have_a_line_each(tmp_path):
  path = tmp_path / 'new' / 'curve.json'
  files.write_json(path, {'b': [[1, 0.5], [2, 0.25]], 'a': 'x'})
  assert path.read_text() == (
    '{\n  "b": [\n    [1, 0.5],\n    [2, 0.25]\n  ],\n  "a": "x"\n}\n'
  )
  with pytest.raises(ValueError, match='not JSON compliant'):
    files.write_json(path, float('nan'))
