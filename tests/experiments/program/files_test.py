"""Files are whole or not there, and all JSON looks alike."""

from experiments.program import errors
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


def test_json_is_indented(tmp_path):
  path = tmp_path / 'new' / 'curve.json'
  files.write_json(path, {'b': [0.5], 'a': 'x'})
  assert path.read_text() == '{\n  "b": [\n    0.5\n  ],\n  "a": "x"\n}\n'
  with pytest.raises(ValueError, match='not JSON compliant'):
    files.write_json(path, float('nan'))


def test_what_cannot_be_done_with_a_file_is_one_line(tmp_path):
  path = tmp_path / 'file'
  path.write_bytes(b'\xff{')
  with pytest.raises(errors.FileError, match='file is damaged: it is no JSON'):
    files.read_json(path)
  with pytest.raises(errors.FileError, match='cannot make the folder .*file'):
    files.write_json(path / 'below' / 'x.json', {})
  (tmp_path / 'folder').mkdir()
  with pytest.raises(errors.FileError, match='cannot write .*directory'):
    files.write_json(tmp_path / 'folder', {})
  assert sorted(p.name for p in tmp_path.iterdir()) == ['file', 'folder']
