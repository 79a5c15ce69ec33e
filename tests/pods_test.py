"""docs/pods.md: its check runs, its JobSets are complete, its errors exist."""

import ast
import importlib.util
import mmap
import pathlib
import re
import runpy
import subprocess
import sys

import jaxlib
import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
DOCS = REPOSITORY / 'docs'
PAGE = (DOCS / 'pods.md').read_text()
CHECK = DOCS / 'check_pod.py'
SAID = re.search(r'```text\n(.*?)```', PAGE, re.DOTALL)[1].splitlines()

# Where the texts of the errors are.
SOURCES = ('experiments.hosts', 'experiments.training', 'gradsparse')
JAX_SOURCES = ('jax._src.distributed', 'jax._src.mesh_utils')


@pytest.mark.slow
def test_the_check_of_one_process(capsys):
  runpy.run_path(str(CHECK))['main']([])
  printed = capsys.readouterr().out.splitlines()
  assert printed[:2] == ['process 0 of 1', SAID[1]]
  assert printed[4] == SAID[4]
  assert re.fullmatch(r'\S+ ms a message, \S+ Gbit/s a replica', printed[5])
  assert len(printed) == len(SAID)


def test_the_check_of_one_device_says_what_it_needs(capsys, monkeypatch):
  monkeypatch.setattr('jax.devices', lambda: [object()])
  with pytest.raises(SystemExit, match='needs two devices'):
    runpy.run_path(str(CHECK))['main']([])
  with pytest.raises(SystemExit, match='--multihost'):
    runpy.run_path(str(CHECK))['main'](['--help'])


def test_help_needs_no_package():
  done = subprocess.run(
    [sys.executable, '-I', '-S', str(CHECK), '--help'],
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0 and '--multihost' in done.stdout


def test_a_message_takes_ten_milliseconds():
  check = runpy.run_path(str(CHECK))
  found = check['long_exchange'].__globals__
  found['exchange'] = lambda mesh, elements: (elements, elements / 1e9)
  assert check['long_exchange'](None) == (2**24, 2**24 / 1e9)


def test_the_latency_is_that_of_a_message():
  """A mean over P replicas has 2 (P - 1) successive messages."""
  numbers = runpy.run_path(str(CHECK))['message_and_rate']
  few, many = (8, 0.012), (8 + 10**6, 0.022)
  latency, rate = numbers({'replica': 4, 'inner': 2}, few, many)
  assert latency == pytest.approx(0.002)
  assert rate == pytest.approx(8 * 2 * 10**6 / 0.01)


@pytest.mark.slow
def test_the_check_of_two_processes(tmp_path):
  pytest.importorskip('absl', reason='needs the `experiments` extra')
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'experiments.cluster', '--hosts=2', '--loopback'),
      *('--', 'env', 'JAX_NUM_CPU_DEVICES=4', f'PYTHONPATH={REPOSITORY}'),
      *(sys.executable, str(CHECK), '--multihost'),
    ],
    cwd=REPOSITORY,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  lines = {line.strip() for line in done.stdout.splitlines()}
  assert {f'host0 | {line}' for line in SAID[:5]} <= lines


def _errors():
  """(whether it is JAX's, its pieces) of each row of the table."""
  table = PAGE.partition('## Errors')[2].partition('\n## ')[0]
  for jax, text in re.findall(r'^\| (JAX: )?`([^`|]+)`', table, re.MULTILINE):
    yield bool(jax), [piece.strip() for piece in text.split('...')]


def _texts(path: pathlib.Path) -> list[str]:
  """The texts in a module; what is formatted into them is left out."""
  return [
    ''.join(
      str(x.value) if isinstance(x, ast.Constant) else '\0' for x in node.values
    )
    if isinstance(node, ast.JoinedStr)
    else str(node.value)
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.JoinedStr | ast.Constant)
  ]


def _modules(names) -> list[pathlib.Path]:
  found = []
  for name in names:
    path = pathlib.Path(importlib.util.find_spec(name).origin)
    whole = path.name == '__init__.py'
    found += sorted(path.parent.rglob('*.py')) if whole else [path]
  return found


def test_there_are_errors():
  assert len(list(_errors())) >= 12


def test_every_error_is_one_that_is_raised():
  own = [text for path in _modules(SOURCES) for text in _texts(path)]
  jax = [text for path in _modules(JAX_SOURCES) for text in _texts(path)]
  (library,) = pathlib.Path(jaxlib.__file__).parent.glob('libjax_common.so')
  with (
    library.open('rb') as file,
    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as compiled,
  ):
    for of_jax, pieces in _errors():
      for piece in pieces:
        assert any(piece in text for text in (jax if of_jax else own)) or (
          of_jax and compiled.find(piece.encode()) >= 0
        ), piece


@pytest.mark.parametrize('name, slices', [('one_slice', 1), ('two_slices', 2)])
def test_a_jobset_has_what_its_schema_and_gke_ask_for(name, slices):
  yaml = pytest.importorskip('yaml', reason='comes with `experiments`')
  jobset = yaml.safe_load((DOCS / 'jobset' / f'{name}.yaml').read_text())
  assert jobset['apiVersion'] == 'jobset.x-k8s.io/v1alpha2'
  assert jobset['kind'] == 'JobSet'
  assert re.fullmatch('[a-z0-9-]{1,40}', jobset['metadata']['name'])
  topology = 'alpha.jobset.sigs.k8s.io/exclusive-topology'
  assert jobset['metadata']['annotations'][topology] == (
    'cloud.google.com/gke-nodepool'
  )
  assert set(jobset['spec']) == {'failurePolicy', 'replicatedJobs'}
  assert jobset['spec']['failurePolicy']['maxRestarts'] > 0
  (replicated,) = jobset['spec']['replicatedJobs']
  assert set(replicated) == {'name', 'replicas', 'template'}
  assert replicated['replicas'] == slices
  job = replicated['template']['spec']
  assert set(job) == {'parallelism', 'completions', 'backoffLimit', 'template'}
  assert job['parallelism'] == job['completions'] and job['backoffLimit'] == 0
  pod = job['template']['spec']
  topology = pod['nodeSelector']['cloud.google.com/gke-tpu-topology']
  assert 'cloud.google.com/gke-tpu-accelerator' in pod['nodeSelector']
  assert pod['hostNetwork'] and pod['dnsPolicy'] == 'ClusterFirstWithHostNet'
  (container,) = pod['containers']
  assert {'name', 'image', 'command', 'resources'} <= set(container)
  chips = container['resources']['limits']['google.com/tpu']
  rows, columns = map(int, topology.split('x'))
  assert chips * job['completions'] == rows * columns
  mounts = {mount['name'] for mount in container['volumeMounts']}
  assert mounts == {volume['name'] for volume in pod['volumes']}
  # The experiments program: a worker a chip, or a worker a slice.
  flags = dict(re.findall(r'--config\.parallel\.(\w+)=(\w+)', str(container)))
  workers = int(flags['num_workers']) * int(flags.get('devices_per_node', 1))
  assert workers == slices * rows * columns


def test_the_page_is_short():
  assert len(PAGE.splitlines()) <= 220
