"""Holds the arrows: a module imports only from lower layers.

The rules are read off the source with `ast`, so an import inside a function or
under `TYPE_CHECKING` counts too, and nothing has to be importable.
"""

import ast
from collections.abc import Iterator
import pathlib
import re
import sys
import tomllib

import pytest

# Lowest first. A name is a file or a folder directly in gradsparse/; those on
# one line may import each other. A new module needs a place here.
LAYERS = (
  ('backend',),
  (
    'arguments',
    'draws',
    'health',
    'losses',
    'tables',
    'traced',
  ),
  ('schedules',),
  ('sockets',),
  ('wire',),
  ('codes', 'selection'),
  ('traffic',),
  ('collectives',),
  ('compressors',),
  ('memories',),
  ('exchanges',),
  ('state',),
  ('transform',),
  ('recipes',),
  ('wrappers',),
  ('workers',),
  ('extend', 'testing'),
  ('moments',),
  ('as_printed',),
  ('advise',),
  ('__init__',),
  ('__main__',),
)

# Off the main road: of the library only gradsparse/__init__.py imports these.
OPTIONAL = ('advise', 'as_printed', 'moments')

# The rooms of experiments/, likewise; its docstring says what is in them.
# Files directly in there are programs.
ROOMS = (
  ('program',),
  ('cluster',),
  ('data',),
  ('scores',),
  ('models',),
  ('tasks',),
  ('config',),
  ('hosts',),
  ('run',),
  ('training',),
  ('report',),
  ('benchmarks',),
  ('papers',),
  ('sweep',),
  ('results_page',),
  (
    'advise_records',
    'demo',
    'main',
    'qsvrg',
  ),
  ('__init__',),
)

# The only module that calls these of jax.lax: it alone knows the runner.
COLLECTIVES_MODULE = 'collectives'
COLLECTIVES = frozenset(
  {
    'all_gather',
    'all_to_all',
    'axis_index',
    'axis_size',
    'pbroadcast',
    'pcast',
    'pmax',
    'pmean',
    'pmin',
    'ppermute',
    'pshuffle',
    'psum',
    'psum_scatter',
    'pswapaxes',
    'pvary',
    'ragged_all_to_all',
  }
)

MAX_LINES = 400

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
LEVELS = {
  package: {name: level for level, names in enumerate(table) for name in names}
  for package, table in (
    ('gradsparse', LAYERS),
    ('experiments', ROOMS),
  )
}


def sources(root: pathlib.Path, package: str) -> list[pathlib.Path]:
  """Python files of a package, none where the package does not exist."""
  return sorted((root / package).rglob('*.py'))


def component(root: pathlib.Path, path: pathlib.Path) -> str:
  """The name in its package's table that a file belongs to."""
  return path.relative_to(root).parts[1].removesuffix('.py')


def imports(
  root: pathlib.Path, path: pathlib.Path
) -> Iterator[tuple[str, int]]:
  """Yields the absolute dotted name of all that a file imports, with its line.

  `from a.b import c` gives `a.b.c`, whether `c` is a module or a name in one.
  """
  package = path.relative_to(root).parent.parts
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      for alias in node.names:
        yield alias.name, node.lineno
    elif isinstance(node, ast.ImportFrom):
      # One dot is the file's own package, each further dot the one above.
      base = package[: len(package) + 1 - node.level] if node.level else ()
      module = '.'.join([*base, *filter(None, [node.module])])
      for alias in node.names:
        yield f'{module}.{alias.name}', node.lineno


def imported_component(
  root: pathlib.Path, package: str, name: str
) -> str | None:
  """The name in a package's table that an import points to; None: elsewhere."""
  top, _, rest = name.partition('.')
  if top != package:
    return None
  module = rest.partition('.')[0]
  if module in LEVELS[package]:
    return module
  folder = root / package / module
  if module and (folder.exists() or folder.with_suffix('.py').exists()):
    return None  # not in the table: `missing_from_table` says so
  # The package itself, or a name that it exports.
  return '__init__'


def lax_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
  """Yields each name of jax.lax that the source mentions, with its line."""
  # What each local name stands for, as far as it leads to jax.lax.
  meaning = {}
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      for alias in node.names:
        if alias.asname:
          meaning[alias.asname] = alias.name
        else:
          top = alias.name.split('.')[0]
          meaning[top] = top
    elif isinstance(node, ast.ImportFrom) and node.module:
      for alias in node.names:
        meaning[alias.asname or alias.name] = f'{node.module}.{alias.name}'
        if node.module == 'jax.lax':
          yield alias.name, node.lineno

  def dotted(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
      return meaning.get(node.id)
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
      return f'{base}.{node.attr}'
    return None

  for node in ast.walk(tree):
    if isinstance(node, ast.Attribute) and dotted(node.value) == 'jax.lax':
      yield node.attr, node.lineno


def missing_from_table(root: pathlib.Path) -> list[str]:
  return sorted(
    name
    for package, level in LEVELS.items()
    for name in {component(root, p) for p in sources(root, package)} - {*level}
  )


def upward_imports(root: pathlib.Path) -> list[str]:
  wrong = []
  for package, level in LEVELS.items():
    for path in sources(root, package):
      own = component(root, path)
      for name, line in imports(root, path):
        other = imported_component(root, package, name)
        if other and level[other] > level.get(own, len(level)):
          wrong.append(f'{path.relative_to(root)}:{line}: {own} imports {name}')
  return wrong


def optional_imports(root: pathlib.Path) -> list[str]:
  """Imports of optional rooms, from elsewhere than the package itself."""
  wrong = []
  for path in sources(root, 'gradsparse'):
    own = component(root, path)
    for name, line in imports(root, path):
      other = imported_component(root, 'gradsparse', name)
      if other in OPTIONAL and own not in ('__init__', other):
        wrong.append(f'{path.relative_to(root)}:{line}: {own} imports {name}')
  return wrong


def imported_programs(root: pathlib.Path) -> list[str]:
  """Imports of what is run: a program defines flags, which must be its own."""
  files = sources(root, 'experiments')
  programs = {
    '.'.join(path.relative_to(root).with_suffix('').parts)
    for path in files
    if "if __name__ == '__main__'" in path.read_text()
  }
  return [
    f'{path.relative_to(root)}:{line}: imports {name}'
    for path in (*files, *sources(root, 'configs'))
    for name, line in imports(root, path)
    if name in programs or name.rpartition('.')[0] in programs
  ]


def foreign_imports(root: pathlib.Path, allowed: set[str]) -> list[str]:
  wrong = []
  for path in sources(root, 'gradsparse'):
    for name, line in imports(root, path):
      top = name.split('.')[0]
      if top not in allowed | {'gradsparse'} | sys.stdlib_module_names:
        wrong.append(f'{path.relative_to(root)}:{line}: imports {name}')
  return wrong


def stray_collectives(root: pathlib.Path) -> list[str]:
  return [
    f'{path.relative_to(root)}:{line}: jax.lax.{name}'
    for path in sources(root, 'gradsparse')
    if component(root, path) != COLLECTIVES_MODULE
    for name, line in lax_names(ast.parse(path.read_text()))
    if name in COLLECTIVES
  ]


def long_files(root: pathlib.Path) -> list[str]:
  lengths = {
    path: len(path.read_text().splitlines())
    for package in LEVELS
    for path in sources(root, package)
  }
  return [
    f'{path.relative_to(root)}: {length} lines'
    for path, length in lengths.items()
    if length > MAX_LINES
  ]


def hard_dependencies() -> set[str]:
  project = tomllib.loads((REPOSITORY / 'pyproject.toml').read_text())[
    'project'
  ]
  return {re.match(r'[\w-]+', d)[0] for d in project['dependencies']}


def test_every_module_has_a_layer():
  assert not missing_from_table(REPOSITORY)


def test_arrows_point_down():
  assert not upward_imports(REPOSITORY)


def test_nothing_imports_an_optional_room():
  assert not optional_imports(REPOSITORY)


def test_nothing_imports_a_program():
  assert not imported_programs(REPOSITORY)


def test_only_hard_dependencies():
  """No Flax, no config objects, and nothing of experiments/ either."""
  assert hard_dependencies() == {'jax', 'numpy', 'optax'}
  assert not foreign_imports(REPOSITORY, hard_dependencies())


def test_wire_formats_import_what_their_docstring_says():
  used = {
    imported_component(REPOSITORY, 'gradsparse', name)
    for path in sources(REPOSITORY, 'gradsparse/wire')
    for name, _ in imports(REPOSITORY, path)
  }
  assert used - {None, 'wire'} == {'backend'}


def test_one_file_calls_collectives():
  assert not stray_collectives(REPOSITORY)


def test_one_room_asks_for_the_platform():
  """Nothing else asks where a program runs, or what it is lowered for.

  What differs between platforms has a name in `backend/platforms.py`.
  """
  words = (
    *('default_backend', 'platform_dependent', "platform='"),
    *('platforms.name', 'platforms.is_cpu', 'platforms.elsewhere'),
  )
  asking = {
    component(REPOSITORY, path)
    for path in sources(REPOSITORY, 'gradsparse')
    if any(word in path.read_text() for word in words)
  }
  assert asking == {'backend'}


def test_files_are_short():
  assert not long_files(REPOSITORY)


# The checks themselves: each must see what it is there for.


def _library(
  root: pathlib.Path, path: str, source: str, package: str = 'gradsparse'
) -> pathlib.Path:
  file = root / package / path
  file.parent.mkdir(parents=True, exist_ok=True)
  file.write_text(source)
  return root


@pytest.mark.parametrize(
  'path, source, wrong',
  [
    ('wire/elias_fano.py', 'from gradsparse import selection', True),
    ('wire/elias_fano.py', 'from gradsparse.selection import top_k', True),
    ('wire/elias_fano.py', 'import gradsparse.selection', True),
    ('wire/elias_fano.py', 'from .. import selection', True),
    ('wire/elias_fano.py', 'from ..selection import top_k', True),
    ('wire/elias_fano.py', 'from . import fixed_width', False),
    ('wire/elias_fano.py', 'from gradsparse.wire import fixed_width', False),
    ('selection.py', 'from gradsparse.wire import fixed_width', False),
    ('selection.py', 'from .wire import fixed_width', False),
    ('selection.py', 'def f():\n  from .recipes import dgc', True),
    ('recipes.py', 'import gradsparse as gs', True),
    ('recipes.py', 'from gradsparse import dgc', True),
    ('memories.py', 'from gradsparse import sockets', False),
    ('__init__.py', 'from gradsparse.recipes import dgc', False),
  ],
)
def test_sees_upward_imports(tmp_path, path, source, wrong):
  assert bool(upward_imports(_library(tmp_path, path, source))) == wrong


@pytest.mark.parametrize(
  'path, source, wrong',
  [
    ('extend.py', 'from gradsparse import as_printed', True),
    ('as_printed/elias.py', 'from gradsparse.moments import uses', True),
    ('workers/axis.py', 'def f():\n  import gradsparse.moments.uses', True),
    ('moments/tapped.py', 'from gradsparse.moments import uses', False),
    ('__init__.py', 'from gradsparse import as_printed', False),
  ],
)
def test_sees_imports_of_optional_rooms(tmp_path, path, source, wrong):
  assert bool(optional_imports(_library(tmp_path, path, source))) == wrong


@pytest.mark.parametrize(
  'path, source, wrong',
  [
    ('run/records.py', 'from experiments.training import train', True),
    ('run/records.py', 'from experiments.program import files', False),
    ('cluster/traffic.py', 'from experiments.run import records', True),
    ('papers/page.py', 'def f():\n  from experiments import main', True),
    ('main.py', 'from experiments.training import train', False),
  ],
)
def test_sees_upward_imports_of_rooms(tmp_path, path, source, wrong):
  root = _library(tmp_path, path, source, 'experiments')
  assert bool(upward_imports(root)) == wrong


@pytest.mark.parametrize(
  'source, wrong',
  [
    ('from experiments.benchmarks import exchange', True),
    ('from experiments.benchmarks.exchange import main', True),
    ('from experiments.benchmarks import rows', False),
  ],
)
def test_sees_imports_of_programs(tmp_path, source, wrong):
  code = "if __name__ == '__main__':\n  pass\n"
  _library(tmp_path, 'benchmarks/exchange.py', code, 'experiments')
  root = _library(tmp_path, 'benchmarks/network.py', source, 'experiments')
  assert bool(imported_programs(root)) == wrong


@pytest.mark.parametrize(
  'source, wrong',
  [
    ('import jax\njax.lax.psum(1, "w")', True),
    ('import jax.lax\njax.lax.pcast(1, "w")', True),
    ('import jax.lax as l\nl.ppermute(1, "w")', True),
    ('from jax import lax\nlax.all_gather(1, "w")', True),
    ('from jax.lax import axis_index', True),
    ('import jax\njax.lax.top_k(1, 2)', False),
    ('import jax\ncomm = object()\ncomm.psum(1)', False),
  ],
)
def test_sees_collectives(tmp_path, source, wrong):
  root = _library(tmp_path, 'selection.py', source)
  assert bool(stray_collectives(root)) == wrong
  (root / 'gradsparse/selection.py').rename(root / 'gradsparse/collectives.py')
  assert not stray_collectives(root)


@pytest.mark.parametrize('name', ['flax.linen', 'experiments.train', 'absl'])
def test_sees_foreign_imports(tmp_path, name):
  root = _library(tmp_path, 'recipes.py', f'import jax, math\nimport {name}')
  assert len(foreign_imports(root, {'jax'})) == 1


def test_sees_new_modules_and_long_files(tmp_path):
  root = _library(tmp_path, 'utils/alias.py', 'x = 1\n' * (MAX_LINES + 1))
  assert missing_from_table(root) == ['utils']
  assert len(long_files(root)) == 1


def test_an_empty_tree_passes(tmp_path):
  assert not missing_from_table(tmp_path)
  assert not upward_imports(tmp_path)
  assert not long_files(tmp_path)
