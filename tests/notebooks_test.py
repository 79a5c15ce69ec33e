"""docs/notebooks: what is in them, and that they run as they stand."""

import ast
import functools
import json
import os
import re
import resource
import subprocess
import sys

import gradsparse as gs
import pytest
from tests import notebooks

REPOSITORY = notebooks.FOLDER.parents[1]
NAMES = [page.stem for page in notebooks.PAGES]
ALLOWED = {
  'flax',
  'gradsparse',
  'jax',
  'matplotlib',
  'numpy',
  'optax',
  'sklearn',
} | sys.stdlib_module_names


def text_of(name):
  return (notebooks.FOLDER / f'{name}.md').read_text()


def code_of(name):
  return [c.source for c in notebooks.cells(text_of(name)) if c.kind == 'code']


PAGE = """---
kernelspec:
  name: python3
---

# Title

```{code-cell}
x = [1]

x
```

```text
no cell
```
"""


def test_cells_are_code_and_what_is_between():
  assert notebooks.header(PAGE) == 'kernelspec:\n  name: python3'
  assert notebooks.cells(PAGE) == [
    ('markdown', '# Title'),
    ('code', 'x = [1]\n\nx'),
    ('markdown', '```text\nno cell\n```'),
  ]
  with pytest.raises(ValueError, match='begins with a header'):
    notebooks.header('# Title')


def test_what_a_cell_shows_is_printed(tmp_path, capsys):
  page = tmp_path / 'page.md'
  shows = '```{code-cell}\ntx = gs.dense(axis_name=None)\ntx\n```\n'
  first = '```{code-cell}\nimport gradsparse as gs\n```\n'
  page.write_text(PAGE + first + shows)
  notebooks.run(page)
  printed = capsys.readouterr().out
  assert printed.startswith('[1]\n<table>') and 'gs.dense' in printed


def test_there_are_six():
  assert NAMES == ['chain', 'outer', 'pod', 'scheme', 'start', 'wire']


@pytest.mark.parametrize('name', NAMES)
def test_a_page_is_myst_for_python(name):
  header = notebooks.header(text_of(name))
  for line in ('extension: .md', 'format_name: myst', 'name: python3'):
    assert line in header


@pytest.mark.parametrize('name', NAMES)
def test_a_page_opens_with_what_one_will_know(name):
  opening = notebooks.cells(text_of(name))[0].source
  title, first, *_ = opening.split('\n\n')
  assert title.startswith('# ') and first.startswith('At the end you will')


def imported(tree):
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield node.module


@pytest.mark.parametrize('name', NAMES)
def test_cells_parse_and_import_what_is_allowed(name):
  modules = {m for code in code_of(name) for m in imported(ast.parse(code))}
  assert {module.split('.')[0] for module in modules} <= ALLOWED


@pytest.mark.parametrize('name', NAMES)
def test_names_of_the_library_exist(name):
  used = set(re.findall(r'\bgs((?:\.\w+)+)', text_of(name)))
  assert used
  for dotted in used:
    functools.reduce(getattr, dotted[1:].split('.'), gs)


@pytest.mark.parametrize('name', NAMES)
def test_links_lead_somewhere(name):
  links = re.findall(r'\]\(([^)#]+)\)', text_of(name))
  assert links
  assert all((notebooks.FOLDER / link).exists() for link in links)


@pytest.mark.parametrize('name', NAMES)
def test_the_ipynb_is_that_of_the_page(name):
  """`make notebooks` has been run since the page was changed."""
  file = notebooks.FOLDER / f'{name}.ipynb'
  assert file.stat().st_size < 30_000
  made = json.loads(file.read_text())['cells']
  sources = [(c['cell_type'], ''.join(c['source'])) for c in made]
  assert sources == notebooks.cells(text_of(name))
  code = [c for c in made if c['cell_type'] == 'code']
  assert not any(c['outputs'] or c['execution_count'] for c in code)


# What a run must have printed, among other things.
PRINTS = {
  'chain': (
    'still owed, to the bit: True',
    'switch to gs.gradient_dropping(1.0',
    'owed: 0.0',
    'parameters as before: True',
    'rejected: 1',
  ),
  'outer': ('equal: True', 'B in the last exchange'),
  'pod': ('over fsdp:', "P('replica', 'fsdp')"),
  'scheme': ('3 workers, simulate, one', 'law 1 ('),
  'start': ('measured as planned: True',),
  'wire': ('as planned: True', '6 B more than planned'),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', NAMES)
def test_it_runs_within_a_minute(name):
  pytest.importorskip('matplotlib', reason='needs the `experiments` extra')
  pytest.importorskip('sklearn', reason='needs the `experiments` extra')
  kept = {
    key: value
    for key, value in os.environ.items()
    if key not in ('JAX_DISABLE_MOST_OPTIMIZATIONS', 'XLA_FLAGS')
  }
  before = resource.getrusage(resource.RUSAGE_CHILDREN)
  done = subprocess.run(
    [sys.executable, '-m', 'tests.notebooks', f'docs/notebooks/{name}.md'],
    cwd=REPOSITORY,
    env=kept | {'MPLBACKEND': 'Agg', 'JAX_PLATFORMS': 'cpu'},
    capture_output=True,
    text=True,
    timeout=280,
  )
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  assert not done.returncode, done.stderr
  for line in PRINTS[name]:
    assert line in done.stdout
  scores = re.findall(r'([\d.]+)% of the test images', done.stdout)
  assert all(float(score) > 94 for score in scores)
  # Time of the processor, whatever else the machine has to do. JAX compiles
  # and runs on one thread, most of the time.
  assert after.ru_utime - before.ru_utime < 60
