"""Without the `experiments` extra the programs say how to get it."""

import importlib
import importlib.util

import experiments
import pytest


def test_a_missing_package_is_told_with_its_cure(monkeypatch):
  find = importlib.util.find_spec
  monkeypatch.setattr(
    importlib.util,
    'find_spec',
    lambda name, *more: None if name == 'rich' else find(name, *more),
  )
  with pytest.raises(ModuleNotFoundError, match=r"rich .*\[experiments\]'"):
    importlib.reload(experiments)
