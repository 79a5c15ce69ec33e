"""Shared pieces of the tests of `experiments`, which needs its extra."""

import gzip
import json
import os
import pathlib
import struct
import subprocess
import sys

import jax
import numpy as np
import pytest

for _module in (
  'flax',
  'jiwer',
  'ml_collections',
  'orbax.checkpoint',
  'PIL',
  'sacrebleu',
  'sentencepiece',
  'sklearn',
  'soundfile',
):
  pytest.importorskip(_module, reason='needs the `experiments` extra')

REPOSITORY = pathlib.Path(__file__).parents[2]

# Of the 65,530 that Linux allows a process.
_MEMORY_MAPS = 25_000


@pytest.fixture(autouse=True, scope='module')
def _clear_caches():
  """Drops compiled programs when a process has many.

  Runs here have most of their operations in common: each is traced and
  compiled once for many modules.
  """
  yield
  maps = pathlib.Path('/proc/self/maps')
  if not maps.exists() or maps.read_bytes().count(b'\n') > _MEMORY_MAPS:
    jax.clear_caches()


@pytest.fixture(scope='session')
def program():
  """Returns a function that runs `python -m experiments.NAME ARGUMENTS`."""

  def run(name, *arguments, timeout=200, **variables):
    # Without the devices that the tests themselves asked for.
    environment = {**os.environ, 'JAX_PLATFORMS': 'cpu', **variables}
    environment.pop('JAX_NUM_CPU_DEVICES', None)
    return subprocess.run(
      [sys.executable, '-m', f'experiments.{name}', *map(str, arguments)],
      cwd=REPOSITORY,
      env=environment,
      capture_output=True,
      text=True,
      timeout=timeout,
      check=False,
    )

  return run


def _tiny_config(scheme='dense', *, runner='simulate', steps=6, **arguments):
  from configs import default

  config = default.get_config()
  config.train.steps = steps
  config.train.log_every = 2
  config.train.eval_every = 0
  config.train.checkpoint_every = 0
  config.model.name = 'logistic'
  config.parallel.runner = runner
  config.parallel.num_workers = 2
  config.parallel.check_agreement_every = 2
  config.compression.name = scheme
  if scheme != 'dense':
    arguments = {'min_size': 0, **arguments}
  config.compression.update(arguments)
  return config


@pytest.fixture(scope='session')
def tiny_config():
  """Returns a function that makes a run of seconds: one layer on digits."""
  return _tiny_config


# Fields of `train` that no program depends on.
_NOT_COMPILED = {
  'checkpoint_every',
  'eval_every',
  'keep_best',
  'log_every',
  'early_stop_patience',
}


@pytest.fixture(scope='module')
def compiled_once():
  """Lets runs of one configuration share what they compile, in a module.

  Not for tests that change what is compiled otherwise than by a field.
  """
  from experiments.training import experiment

  one, made = experiment.Experiment, {}
  make_train_step, make_evaluation = one.make_train_step, one.evaluation

  def fields(config):
    found = config.to_dict()
    # A constant learning rate does not depend on them either.
    constant = config.optimizer.schedule == 'constant'
    for name in _NOT_COMPILED | ({'steps'} if constant else set()):
      del found['train'][name]
    return found

  def once(key, make):
    key = json.dumps(key, sort_keys=True)
    if key not in made:
      made[key] = make()
    return made[key]

  def make_step_once(self, stage):
    found = fields(self.config)
    for name in ('final_split', 'test_split'):
      del found['data'][name]
    return once([found, str(stage.given)], lambda: make_train_step(self, stage))

  def make_evaluation_once(self, task):
    return once(
      [fields(self.config), task is self.task],
      lambda: make_evaluation(self, task),
    )

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(one, 'make_train_step', make_step_once)
    patch.setattr(one, 'evaluation', make_evaluation_once)
    yield


@pytest.fixture
def cifar_folder(tmp_path, monkeypatch):
  """Writes CIFAR-10's six files, with 40 records instead of 10,000 each."""
  from experiments.data import cifar10

  monkeypatch.setattr(cifar10, 'RECORDS', 40)
  folder = tmp_path / 'cifar-10-batches-bin'
  folder.mkdir()
  rng = np.random.default_rng(0)
  for number, stem in enumerate((*cifar10.TRAIN_STEMS, cifar10.TEST_STEM)):
    records = rng.integers(0, 256, (40, cifar10.RECORD_BYTES), np.uint8)
    records[:, 0] = (number + np.arange(40)) % 10
    records.tofile(folder / f'{stem}.bin')
  return folder


@pytest.fixture
def idx_folder(tmp_path, monkeypatch):
  """Writes Fashion-MNIST's four files, small; the test files gzipped."""
  from experiments.data import idx

  sizes = {'train': 300, 't10k': 20}
  monkeypatch.setattr(idx, 'EXAMPLES', sizes)
  folder = tmp_path / 'fashion-mnist'
  folder.mkdir()
  rng = np.random.default_rng(0)
  for stem, count in sizes.items():
    images = rng.integers(0, 256, (count, 28, 28), np.uint8)
    labels = rng.integers(0, 10, count, np.uint8)
    for kind, array in (('images-idx3', images), ('labels-idx1', labels)):
      header = struct.pack(
        f'>{1 + array.ndim}I', 0x0800 | array.ndim, *array.shape
      )
      data = header + array.tobytes()
      path = folder / f'{stem}-{kind}-ubyte'
      if stem == 't10k':
        path.with_name(path.name + '.gz').write_bytes(gzip.compress(data))
      else:
        path.write_bytes(data)
  return folder


@pytest.fixture
def imagenet_folder(tmp_path):
  """Writes ImageNet's folders: 4 cats, 3 dogs, one each to test.

  Training image i of a class is 48 + 8 i pixels wide and 40 high, and of one
  colour: 40 (i + 1) red, 200 green for dogs, and 60 blue.
  """
  from PIL import Image

  folder = tmp_path / 'imagenet'
  for part, counts in (
    ('train', {'n02_dog': 3, 'n01_cat': 4}),
    ('val', {'n02_dog': 1, 'n01_cat': 1}),
  ):
    for name, count in counts.items():
      (folder / part / name).mkdir(parents=True)
      for number in range(count):
        colour = (40 * (number + 1), 200 * name.endswith('dog'), 60)
        image = Image.new('RGB', (48 + 8 * number, 40), colour)
        image.save(folder / part / name / f'{number}.JPEG', quality=95)
  return folder


@pytest.fixture(scope='module')
def namespaces():
  """Skips where this machine has no network namespaces for us."""
  from experiments import cluster
  from experiments.cluster import network

  try:
    with network.Network(1, cluster.Shape()):
      pass
  except cluster.NotPermittedError as error:
    pytest.skip(str(error))


@pytest.fixture
def small_disk(tmp_path):
  """Returns a function that mounts a file system with little room."""
  mounted = []

  def mount(options):
    place = tmp_path / 'disk'
    place.mkdir()
    done = subprocess.run(
      ['mount', '-t', 'tmpfs', '-o', options, 'tmpfs', str(place)],
      capture_output=True,
    )
    if done.returncode:
      pytest.skip('needs root to mount a tmpfs')
    mounted.append(place)
    return place

  try:
    yield mount
  finally:
    for place in mounted:
      subprocess.run(['umount', '-l', str(place)], check=True)
