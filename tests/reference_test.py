"""docs/reference has every public name, and none that is not there."""

import functools
import importlib
import pathlib
import re
import types

import gradsparse as gs
import pytest

_REFERENCE = pathlib.Path(__file__).resolve().parents[1] / 'docs/reference'
_DIRECTIVE = re.compile(
  r'^\.\. (?:py:data|auto(\w+)):: ([\w.]+)$', re.MULTILINE
)
_SHOWN = [
  (kind, name)
  for page in sorted(_REFERENCE.glob('*.md'))
  for kind, name in _DIRECTIVE.findall(page.read_text())
]
_PUBLIC = (gs, gs.workers, gs.extend, gs.testing)


def _find(name):
  """What a dotted name stands for."""
  try:
    return importlib.import_module(name)
  except ModuleNotFoundError:
    first, *rest = name.split('.')
    return functools.reduce(getattr, rest, importlib.import_module(first))


def test_there_are_names():
  assert ('function', 'gradsparse.dgc') in _SHOWN and len(_SHOWN) > 80


@pytest.mark.parametrize('name', [name for _, name in _SHOWN])
def test_a_name_that_is_shown_exists(name):
  _find(name)


@pytest.mark.parametrize('module', _PUBLIC, ids=lambda m: m.__name__)
def test_every_public_name_is_shown(module):
  shown = {name for _, name in _SHOWN}
  whole = [_find(name) for kind, name in _SHOWN if kind == 'module']
  missing = []
  for name in module.__all__:
    value = getattr(module, name)
    is_shown = (
      f'{module.__name__}.{name}' in shown
      or module in whole
      or value in _PUBLIC
      or (isinstance(value, types.ModuleType) and value in whole)
    )
    # Of the table of schemes, the schemes are shown by their own names.
    if not is_shown and value is not gs.recipes:
      missing.append(name)
  assert not missing


def test_the_table_of_schemes_is_shown():
  shown = {name for _, name in _SHOWN}
  for name in gs.recipes.__all__:
    scheme = f'gradsparse.{name}'
    assert scheme in shown or f'gradsparse.recipes.{name}' in shown
