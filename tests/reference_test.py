"""docs/reference has every public name, and none that is not there.

These are the names in `__all__` of gradsparse, gs.workers, gs.extend and
gs.testing, and those of the modules that a page shows as a whole.

Functions and classes have a docstring, which holds an example (`>>>`). Three
kinds of names need none:

  NamedTuples              their fields are explained; functions make them
  constants, type aliases  they have no docstring: a page describes them
  gradsparse.wire          functions belong together: the example of a format
                           is in the docstring of its module
"""

import functools
import importlib
import inspect
import pathlib
import pkgutil
import re
import types

import gradsparse as gs
import pytest

_REFERENCE = pathlib.Path(__file__).resolve().parents[1] / 'docs/reference'
_PAGES = [page.read_text() for page in sorted(_REFERENCE.glob('*.md'))]
_DIRECTIVE = re.compile(
  r'^\.\. (?:py:data|auto(\w+)):: ([\w.]+)$', re.MULTILINE
)
_SHOWN = [
  (kind, name) for page in _PAGES for kind, name in _DIRECTIVE.findall(page)
]
_SUMMARY = re.compile(
  r'^\.\. autosummary::\n   :nosignatures:\n\n((?:   [\w.]+\n)+)', re.MULTILINE
)
_SUMMARIES = {
  name for page in _PAGES for x in _SUMMARY.findall(page) for name in x.split()
}
_PUBLIC = (gs, gs.workers, gs.extend, gs.testing)


def _find(name):
  """What a dotted name stands for."""
  try:
    return importlib.import_module(name)
  except ModuleNotFoundError:
    first, *rest = name.split('.')
    return functools.reduce(getattr, rest, importlib.import_module(first))


_WHOLE = [_find(name) for kind, name in _SHOWN if kind == 'module']


def _names(module):
  """Dotted name -> value of what a module makes public, modules left out."""
  own = [
    name
    for name, value in vars(module).items()
    if getattr(value, '__module__', '') == module.__name__ and name[0] != '_'
  ]
  return {
    f'{module.__name__}.{name}': getattr(module, name)
    for name in getattr(module, '__all__', own)
    if not isinstance(getattr(module, name), types.ModuleType)
  }


def _has_docstring(value):
  """Whether it is a function or a class; others are constants and aliases."""
  return inspect.isroutine(value) or isinstance(value, type)


def _needs_example(value):
  return _has_docstring(value) and not hasattr(value, '_fields')


_EVERY = {
  name: value
  for module in (*_PUBLIC, *_WHOLE)
  for name, value in _names(module).items()
}


def test_there_are_names():
  assert ('function', 'gradsparse.dgc') in _SHOWN and len(_SHOWN) > 80
  assert 'gradsparse.dgc' in _SUMMARIES and len(_SUMMARIES) > 90
  assert 'gradsparse.memories.residual' in _EVERY and len(_EVERY) > 200


@pytest.mark.parametrize('name', [name for _, name in _SHOWN])
def test_a_name_that_is_shown_exists(name):
  _find(name)


def test_a_name_of_a_summary_is_shown():
  assert _SUMMARIES <= {name for _, name in _SHOWN}


@pytest.mark.parametrize('module', _PUBLIC, ids=lambda m: m.__name__)
def test_every_public_name_is_shown(module):
  """Functions and classes also in the summary on top; modules as a whole."""
  shown = {name for _, name in _SHOWN}
  missing = [
    name
    for name, value in _names(module).items()
    if name not in shown or (_has_docstring(value) and name not in _SUMMARIES)
  ]
  assert not missing


def test_every_public_module_is_shown():
  """Of the table of schemes, the schemes are shown by their own names."""
  formats = gs.extend.wire
  public = {
    f'{formats.__name__}.{file.name}'
    for file in pkgutil.iter_modules(formats.__path__)
  }
  for module in (*_PUBLIC, *_WHOLE):
    values = [getattr(module, name) for name in getattr(module, '__all__', ())]
    public |= {x.__name__ for x in values if isinstance(x, types.ModuleType)}
  assert public == {x.__name__ for x in (*_PUBLIC[1:], *_WHOLE, gs.recipes)}


def test_the_table_of_schemes_is_shown():
  shown = {name for _, name in _SHOWN}
  for name in gs.recipes.__all__:
    scheme = f'gradsparse.{name}'
    assert scheme in shown or f'gradsparse.recipes.{name}' in shown


@pytest.mark.parametrize(
  'name', [name for name, value in _EVERY.items() if _needs_example(value)]
)
def test_a_name_has_an_example(name):
  value = _EVERY[name]
  if value.__module__.startswith(f'{gs.extend.wire.__name__}.'):
    value = importlib.import_module(value.__module__)
  assert '>>> ' in value.__doc__


def test_the_rule_sees_names_without_an_example():
  assert _needs_example(_find) and _needs_example(gs.Plan)
  for name in ('Case', 'TREES'):
    assert not _needs_example(getattr(gs.testing, name))
  assert not _needs_example(gs.extend.Delivered)
