"""The README's table of schemes is the one that the code gives."""

import pathlib

from experiments import scheme_table
import gradsparse as gs

_README = pathlib.Path(__file__).parents[2] / 'README.md'


def test_readme_has_the_generated_table():
  assert scheme_table.markdown() in _README.read_text(), (
    'paste the output of `python -m experiments.scheme_table` into README.md'
  )


def test_every_recipe_has_a_setting():
  assert set(scheme_table.SETTINGS) == set(gs.recipes.RECIPES)
