"""What users install: the wheel, its dependencies, and the pinned versions."""

import ast
import email
import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib
import zipfile

import gradsparse
from gradsparse import __main__ as where
from gradsparse.advise import __main__ as advise
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((REPOSITORY / 'pyproject.toml').read_text())['project']

# Imports every module of the library from argv[1] ('' where it is installed)
# and refuses the top-level names in argv[2], a JSON list.
PROBE = """
import importlib, json, pathlib, pkgutil, sys

place, refused = sys.argv[1], set(json.loads(sys.argv[2]))

class Refuse:
  def find_spec(self, name, path=None, target=None):
    if name.partition('.')[0] in refused:
      raise ModuleNotFoundError(f'{name} is not a hard dependency', name=name)

sys.meta_path.insert(0, Refuse())
if place:
  sys.path.insert(0, place)
import gradsparse

for module in pkgutil.walk_packages(gradsparse.__path__, 'gradsparse.'):
  importlib.import_module(module.name)
assert 'jax' in sys.modules
print(json.dumps({
  'file': gradsparse.__file__,
  'version': getattr(gradsparse, '__version__', None),
}))
"""


def _run(*command: str | pathlib.Path, cwd: pathlib.Path) -> str:
  env = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'PIP_NO_INPUT': '1'}
  done = subprocess.run(
    [str(word) for word in command],
    cwd=cwd,
    env=env,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout


def _closure(requirements: list[Requirement]) -> set[str]:
  """Names of all distributions that these lead to, in this environment."""
  seen = set()
  stack = list(requirements)
  while stack:
    wanted = stack.pop()
    # The empty extra stands for the distribution without any.
    for extra in {'', *wanted.extras}:
      key = (canonicalize_name(wanted.name), extra)
      if key in seen:
        continue
      seen.add(key)
      try:
        lines = importlib.metadata.requires(wanted.name) or []
      except importlib.metadata.PackageNotFoundError:
        continue
      stack += _applicable(lines, extra)
  return {name for name, _ in seen}


def _applicable(lines: list[str], extra: str) -> list[Requirement]:
  parsed = [Requirement(line) for line in lines]
  return [
    r for r in parsed if not r.marker or r.marker.evaluate({'extra': extra})
  ]


@pytest.fixture(scope='module')
def wheel(tmp_path_factory) -> pathlib.Path:
  pytest.importorskip('build', reason="needs the extra 'dev'")
  pytest.importorskip('hatchling', reason="needs the extra 'dev'")
  folder = tmp_path_factory.mktemp('wheel')
  _run(
    *(sys.executable, '-m', 'build', '--wheel', '--no-isolation'),
    *('--outdir', folder, REPOSITORY),
    cwd=folder,
  )
  (path,) = folder.glob('*.whl')
  return path


@pytest.fixture(scope='module')
def metadata(wheel) -> email.message.Message:
  with zipfile.ZipFile(wheel) as archive:
    (path,) = (n for n in archive.namelist() if n.endswith('/METADATA'))
    return email.message_from_bytes(archive.read(path))


def test_wheel_contains_the_library_only(wheel):
  with zipfile.ZipFile(wheel) as archive:
    names = set(archive.namelist())
  info = f'gradsparse-{PROJECT["version"]}.dist-info/'
  library = {n for n in names if n.startswith('gradsparse/')}
  assert all(n.startswith(info) for n in names - library), names
  assert f'{info}licenses/LICENSE' in names
  # Neither more nor less than the checkout: an entry of .gitignore that
  # matches a module would drop it silently.
  files = (REPOSITORY / 'gradsparse').rglob('*.*')
  expected = {p.relative_to(REPOSITORY).as_posix() for p in files}
  assert library == {n for n in expected if not n.endswith('.pyc')}


def test_wheel_asks_for_the_hard_dependencies_only(metadata):
  hard = _applicable(metadata.get_all('Requires-Dist'), extra='')
  assert {r.name for r in hard} == {'jax', 'numpy', 'optax'}
  assert metadata['Version'] == PROJECT['version']


def test_the_version_is_the_same_everywhere():
  citation = (REPOSITORY / 'CITATION.cff').read_text()
  changes = (REPOSITORY / 'CHANGELOG.md').read_text()
  assert gradsparse.__version__ == PROJECT['version']
  assert f'\nversion: {PROJECT["version"]}\n' in citation
  first = re.search(
    r'^## \[(\d\S+)\] - \d{4}-\d\d-\d\d$', changes, re.MULTILINE
  )
  assert first[1] == PROJECT['version']


@pytest.mark.slow
def test_the_package_says_where_to_begin(capsys):
  where.main()
  said = capsys.readouterr().out
  lines = said.splitlines()
  assert lines[0].startswith(f'gradsparse {PROJECT["version"]}, ')
  assert len(lines) <= 12 and max(map(len, lines)) <= 80
  # What it says is there, and the command does what it says.
  for page in re.findall(r'docs/\S+\.md', said):
    assert (REPOSITORY / page).exists()
  makefile = (REPOSITORY / 'Makefile').read_text()
  for target in re.findall(r'`make (\w+)`', said):
    assert f'\n{target}:' in makefile
  command = re.search(r'python -m gradsparse\.advise (.*\n.*)', said)[1]
  assert advise.main(command.replace('\\\n', '').split()) == 0


def test_wheel_imports_with_hard_dependencies_only(wheel, metadata, tmp_path):
  with zipfile.ZipFile(wheel) as archive:
    archive.extractall(tmp_path)
  hard = _applicable(metadata.get_all('Requires-Dist'), extra='')
  # absl stays: optax needs it. chex, flax and the like go.
  needed = _closure(hard)
  refused = {'experiments', 'configs', 'tests'}
  for module, owners in importlib.metadata.packages_distributions().items():
    if not needed & {canonicalize_name(owner) for owner in owners}:
      refused.add(module)
  refused -= {'gradsparse'}
  found = json.loads(
    _run(
      *(sys.executable, '-I', '-c', PROBE),
      *(tmp_path, json.dumps(sorted(refused))),
      cwd=tmp_path,
    )
  )
  assert pathlib.Path(found['file']).is_relative_to(tmp_path)
  assert found['version'] in (None, PROJECT['version'])


def test_what_experiments_import_is_declared(metadata):
  lines = metadata.get_all('Requires-Dist')
  declared = {
    canonicalize_name(r.name)
    for extra in ('', 'experiments')
    for r in _applicable(lines, extra)
  }
  owners = importlib.metadata.packages_distributions()
  for folder in ('experiments', 'configs'):
    for path in (REPOSITORY / folder).rglob('*.py'):
      for module in _imported(path) & set(owners):
        names = {canonicalize_name(owner) for owner in owners[module]}
        # jaxlib comes with jax, of one version.
        assert names & (declared | {'jaxlib'}), f'{path} imports {module}'


def _imported(path: pathlib.Path) -> set[str]:
  """The first names of what a file imports."""
  found = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      found |= {alias.name.split('.')[0] for alias in node.names}
    elif isinstance(node, ast.ImportFrom) and not node.level:
      found.add(str(node.module).split('.')[0])
  return found


def test_constraints_are_exact_versions():
  for line in _constraint_lines():
    requirement = Requirement(line)
    (specifier,) = requirement.specifier
    assert specifier.operator == '==' and '*' not in specifier.version, line
    assert not requirement.url and not requirement.extras, line


@pytest.mark.parametrize('python', ['3.11', '3.12', '3.13'])
def test_constraints_name_each_distribution_once(python):
  names = [
    canonicalize_name(r.name)
    for r in map(Requirement, _constraint_lines())
    if not r.marker or r.marker.evaluate({'python_version': python})
  ]
  assert len(names) == len(set(names))
  assert {'jax', 'jaxlib', 'optax', 'numpy'} <= set(names)


def test_constraints_pin_all_that_the_extras_lead_to(metadata):
  lines = metadata.get_all('Requires-Dist')
  wanted = [
    r
    for extra in ['', *metadata.get_all('Provides-Extra')]
    for r in _applicable(lines, extra)
    if r.name != 'gradsparse'
  ]
  pinned = {
    canonicalize_name(r.name) for r in map(Requirement, _constraint_lines())
  }
  assert not _closure(wanted) - pinned


def _constraint_lines() -> list[str]:
  lines = (REPOSITORY / 'constraints.txt').read_text().splitlines()
  return [line for line in lines if line and not line.startswith('#')]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_installs_into_an_empty_environment(tmp_path):
  _run(sys.executable, '-m', 'venv', tmp_path / 'venv', cwd=tmp_path)
  python = tmp_path / 'venv/bin/python'
  constraints = REPOSITORY / 'constraints.txt'
  _run(
    *(python, '-m', 'pip', 'install', '-q'),
    *('-c', constraints, REPOSITORY),
    cwd=tmp_path,
  )
  _run(python, '-m', 'pip', 'check', cwd=tmp_path)
  found = json.loads(_run(python, '-I', '-c', PROBE, '', '[]', cwd=tmp_path))
  assert PROJECT['version'] in _run(python, '-m', 'gradsparse', cwd=tmp_path)
  assert pathlib.Path(found['file']).is_relative_to(tmp_path)
