"""What `help` says of every recipe, and the one table of them."""

from __future__ import annotations

import ast
import inspect
import pathlib
import re
import typing

import gradsparse as gs
import pytest

LIBRARY = pathlib.Path(gs.__file__).parent


def sections(recipe):
  """The parts of a docstring by their headings; what is before them is ''."""
  doc = inspect.getdoc(gs.recipes.RECIPES[recipe].factory)
  parts = re.split(r'^(\w+):$', doc, flags=re.MULTILINE)
  return {'': parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def entries(recipe):
  """(argument, what its entry says, on one line), in their order."""
  parts = re.split(r'^  (\w+): ', sections(recipe)['Args'], flags=re.MULTILINE)
  return [
    (name, ' '.join(text.split()))
    for name, text in zip(parts[1::2], parts[2::2], strict=True)
  ]


@pytest.mark.parametrize('recipe', gs.recipes.RECIPES)
def test_every_argument_of_a_recipe_has_an_entry_and_there_is_an_example(
  recipe,
):
  factory = gs.recipes.RECIPES[recipe].factory
  assert [n for n, _ in entries(recipe)] == [
    *inspect.signature(factory).parameters
  ]
  parts = sections(recipe)
  assert '>>> ' in parts['']
  for heading in ('Returns', 'Raises', 'References'):
    assert parts[heading].strip()


@pytest.mark.parametrize('name', ['axis_name', 'dense_paths', 'min_size'])
def test_an_argument_of_all_recipes_is_explained_in_the_same_words(name):
  said = {
    # Each scheme has its own rule of sizes, and terngrad's paper one of names.
    re.split(r' The paper | None is the scheme', text)[0]
    for recipe in gs.recipes.RECIPES
    for argument, text in entries(recipe)
    if argument == name
  }
  assert len(said) == 1


@pytest.mark.parametrize('recipe', gs.recipes.RECIPES)
def test_types_name_the_words_that_an_argument_may_be(recipe):
  """The same as the error for any other word lists (gtopk says why fewer)."""
  line = gs.recipes.RECIPES[recipe]
  for name, kind in typing.get_type_hints(line.factory).items():
    kinds = (kind, *typing.get_args(kind))
    words = [w for k in kinds if is_literal(k) for w in typing.get_args(k)]
    if not words or (recipe, name) == ('gtopk', 'values'):
      assert words or kind is not str
      continue
    with pytest.raises(ValueError, match=f'^{name} must be') as e:
      line.make(**{name: 'another'}, axis_name=None)
    listed = re.findall(r"'(\w+)'", str(e.value).split(', got ')[0])
    assert sorted(listed) == sorted(words)


def is_literal(kind):
  return typing.get_origin(kind) is typing.Literal


def test_no_docstring_points_to_another_for_an_argument():
  for path in LIBRARY.rglob('*.py'):
    assert 'see the module' not in ' '.join(path.read_text().split()), path


def test_the_table_has_every_recipe_and_the_library_exports_it():
  """A recipe is a public function in a module here but `shared_arguments`."""
  sources = {*(LIBRARY / 'recipes').glob('[!_]*.py')}
  sources.remove(LIBRARY / 'recipes' / 'shared_arguments.py')
  written = {
    node.name
    for source in sources
    for node in ast.parse(source.read_text()).body
    if isinstance(node, ast.FunctionDef) and not node.name.startswith('_')
  }
  assert written == set(gs.recipes.RECIPES)
  for name, recipe in gs.recipes.RECIPES.items():
    assert getattr(gs, name) is recipe.factory
    assert name in gs.__all__ and name in gs.recipes.__all__


def test_an_example_is_made_with_changes():
  made = gs.recipes.RECIPES['strom'].make(ladder=(1.0,), axis_name='w').scheme
  assert (made.compressor.name, made.axis_name) == ('strom', 'w')
  with pytest.raises(ValueError, match='got -3'):
    gs.recipes.RECIPES['strom'].make(threshold=-3, axis_name=None)
