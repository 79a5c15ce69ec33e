"""What the pages name exists, and docs/architecture.md misses no room."""

import functools
import hashlib
import importlib
import pathlib
import re

from gradsparse import sockets
import pytest
from tests.layers_test import LAYERS

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
LIBRARY = REPOSITORY / 'gradsparse'
TEXT = (REPOSITORY / 'docs' / 'architecture.md').read_text()
FOR_USERS = [
  REPOSITORY / 'README.md',
  *sorted(
    path
    for path in (REPOSITORY / 'docs').rglob('*.md')
    if '_build' not in path.parts
  ),
]

# The package itself, and what `python -m gradsparse` runs.
OUTSIDE = {'__init__', '__main__'}
ROOMS = re.findall(r'^\| (\d+) \| `(\w+)` \|', TEXT, flags=re.MULTILINE)
NAMES = sorted(
  {
    *re.findall(r'`([A-Z]\w+|\w+(?:\.\w+)+)`', TEXT),
    *(
      name
      for path in FOR_USERS
      for name in re.findall(r'\bgs(?:\.\w+)+', path.read_text())
    ),
  }
)
FILES = sorted(set(re.findall(r'`([\w/]+/(?:\w+\.py)?)`', TEXT)))


def find(name):
  """What a name of the page stands for.

  It begins with `gs`, a room, a class of the sockets, or `Comm`.

  Raises:
    AttributeError: nothing.
  """
  first, *rest = name.split('.')
  if first == 'gs':
    top = importlib.import_module('gradsparse')
  elif first == 'Comm':
    top = importlib.import_module('gradsparse.collectives').Comm
  elif first in sockets.__all__:
    top = getattr(sockets, first)
  else:
    top = importlib.import_module('gradsparse')
    rest = [first, *rest]
  return functools.reduce(getattr, rest, top)


def test_the_rooms_are_the_folders_and_modules_of_the_library():
  found = {path.stem for path in LIBRARY.glob('*.py')}
  found |= {path.parent.name for path in LIBRARY.glob('*/__init__.py')}
  assert sorted(room for _, room in ROOMS) == sorted(found - OUTSIDE)


def test_the_rooms_stand_in_the_order_of_imports():
  layers = [names for names in LAYERS if not OUTSIDE.intersection(names)]
  assert [(int(level), room) for level, room in ROOMS] == [
    (level, room) for level, names in enumerate(layers, 1) for room in names
  ]


def test_there_are_names_and_files_to_look_for():
  assert 'gs.plan' in NAMES and 'Comm.gather' in NAMES
  assert 'sockets/ownership.py' in FILES


@pytest.mark.parametrize('name', NAMES)
def test_a_name_exists(name):
  find(name)


@pytest.mark.parametrize('name', ['gs.nothing', 'Memory.release', 'wire.no'])
def test_a_name_that_does_not_exist_is_not_found(name):
  with pytest.raises(AttributeError):
    find(name)


@pytest.mark.parametrize('name', FILES)
def test_a_file_exists(name):
  assert (LIBRARY / name).exists() or (REPOSITORY / name).exists()


def test_the_picture_on_the_site_is_that_of_the_page():
  """mermaid draws it: the block is the source of docs/architecture.svg."""
  block = re.search(r'```mermaid\n(.*?)```', TEXT, re.DOTALL)[1]
  digest = hashlib.sha256(block.encode()).hexdigest()
  picture = (REPOSITORY / 'docs' / 'architecture.svg').read_text()
  assert f'<!-- of the block with SHA-256 {digest} -->' in picture
