"""A folder that was sealed is what was written, or its damage is named."""

import json
import os
import re
import shutil

from experiments.program import manifest
import pytest

_DATA = 'd/data'


@pytest.fixture
def sealed(tmp_path):
  folder = tmp_path / '7'
  (folder / 'd').mkdir(parents=True)
  (folder / _DATA).write_bytes(bytes(range(256)))
  (folder / 'empty').touch()
  manifest.seal(folder, {'step': 7, 'position': (1, 2)})
  return folder


def _flip(path):
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 4
  path.write_bytes(content)


def _reseal(folder, **changes):
  """Changes a manifest as somebody who knows its own checksum would."""
  path = folder / manifest.NAME
  content = json.loads(path.read_text())
  content.pop('sha256')
  content.update(changes)
  path.write_text(json.dumps({**content, 'sha256': manifest._of_json(content)}))


def test_what_was_sealed_is_given_back(sealed):
  assert manifest.verify(sealed) == {'step': 7, 'position': [1, 2]}
  moved = sealed.rename(sealed.with_name('moved'))
  (moved / 'more').touch()  # what others add does no harm
  assert manifest.verify(moved)['step'] == 7


DAMAGES = {
  'a flipped bit': (
    lambda d: _flip(d / _DATA),
    'd/data does not have its SHA-256 checksum',
  ),
  'cut': (
    lambda d: os.truncate(d / _DATA, 100),
    'd/data has 100 bytes, not 256',
  ),
  'longer': (
    lambda d: (d / _DATA).write_bytes(bytes(257)),
    'd/data has 257 bytes, not 256',
  ),
  'emptied': (lambda d: os.truncate(d / _DATA, 0), 'd/data has 0 bytes'),
  'random bytes': (
    lambda d: (d / _DATA).write_bytes(os.urandom(256)),
    'd/data does not have its SHA-256 checksum',
  ),
  'a missing file': (lambda d: (d / _DATA).unlink(), 'd/data is missing'),
  'a missing empty file': (
    lambda d: (d / 'empty').unlink(),
    'empty is missing',
  ),
  'a missing folder': (lambda d: shutil.rmtree(d / 'd'), 'd/data is missing'),
  'a folder for a file': (
    lambda d: ((d / _DATA).unlink(), (d / _DATA).mkdir()),
    'd/data is missing',
  ),
  'no manifest': (
    lambda d: (d / manifest.NAME).unlink(),
    'manifest.json is missing',
  ),
  'an empty manifest': (
    lambda d: os.truncate(d / manifest.NAME, 0),
    'manifest.json is no JSON',
  ),
  'half a manifest': (
    lambda d: os.truncate(d / manifest.NAME, 100),
    'manifest.json is no JSON',
  ),
  'a random manifest': (
    lambda d: (d / manifest.NAME).write_bytes(b'\xff\xfe' + os.urandom(64)),
    'manifest.json is no JSON',
  ),
  'another manifest': (
    lambda d: (d / manifest.NAME).write_text('[1]'),
    'manifest.json does not have its SHA-256',
  ),
  'a changed manifest': (
    lambda d: (d / manifest.NAME).write_text(
      (d / manifest.NAME).read_text().replace('"step": 7', '"step": 8')
    ),
    'manifest.json does not have its SHA-256',
  ),
  'an empty folder': (
    lambda d: (shutil.rmtree(d), d.mkdir()),
    'the folder is empty',
  ),
  'a file in its place': (
    lambda d: (shutil.rmtree(d), d.touch()),
    'manifest.json cannot be read: Not a directory',
  ),
}


@pytest.mark.parametrize(('damage', 'message'), DAMAGES.values(), ids=DAMAGES)
def test_damage_is_named(damage, message, sealed):
  damage(sealed)
  with pytest.raises(manifest.DamagedError, match=re.escape(message)):
    manifest.verify(sealed)


def test_a_manifest_does_not_lead_out_of_its_folder(sealed, tmp_path):
  (tmp_path / 'secret').write_bytes(b'x')
  _reseal(sealed, files={'../secret': {'bytes': 1, 'sha256': ''}})
  with pytest.raises(manifest.DamagedError, match=r'\.\./secret is missing'):
    manifest.verify(sealed)
