"""Loaders of the published formats, and which examples a step sees.

Files that are damaged are in tests/bad_input.
"""

import os

from experiments import data
from experiments.data import cifar10
from experiments.data import dataset
from experiments.program import errors
import numpy as np
import pytest


def test_digits_are_split_the_same_way_always():
  digits = data.load('digits')
  assert digits.train.images.shape == (1437, 8, 8, 1)
  assert digits.test.images.shape == (360, 8, 8, 1)
  assert digits.train.images.dtype == np.uint8
  # Fixed for good: results in documents rest on it.
  assert digits.test.labels[:10].tolist() == [4, 5, 6, 9, 4, 7, 8, 9, 9, 6]
  assert np.bincount(digits.test.labels).min() > 25


def test_validation_split_never_holds_a_test_image():
  digits = data.load('digits')
  held_out = data.load('digits', test_split='validation')
  assert len(held_out.test.labels) == 287
  assert len(held_out.train.labels) + 287 == len(digits.train.labels)
  joined = np.concatenate([held_out.train.images, held_out.test.images])
  assert joined.sum() == digits.train.images.sum()


def test_cifar10_reads_channels_and_rows_in_their_order(cifar_folder):
  records = np.fromfile(cifar_folder / 'data_batch_2.bin', np.uint8)
  record = records.reshape(40, -1)[3]
  loaded = data.load('cifar10', str(cifar_folder))
  image = loaded.train.images[40 + 3]
  assert loaded.train.labels[40 + 3] == record[0]
  assert image[0, 1, 0] == record[1 + 1]  # red, second of the first row
  assert image[1, 0, 0] == record[1 + 32]  # red, second row
  assert image[0, 0, 2] == record[1 + 2048]  # blue
  assert len(loaded.train.labels) == 200
  assert len(loaded.test.labels) == 40


def test_root_folder_works_like_the_sets_own(cifar_folder, monkeypatch):
  own = data.load('cifar10', str(cifar_folder))
  root = data.load('cifar10', str(cifar_folder.parent))
  monkeypatch.setenv('GRADSPARSE_DATA', str(cifar_folder.parent))
  environment = data.load('cifar10')
  np.testing.assert_array_equal(own.train.images, root.train.images)
  np.testing.assert_array_equal(own.train.images, environment.train.images)


def test_cifar10_can_test_on_a_training_file(cifar_folder):
  (cifar_folder / 'test_batch.bin').unlink()
  loaded = data.load('cifar10', str(cifar_folder), 'data_batch_5')
  assert len(loaded.train.labels) == 160
  assert loaded.test.labels[0] == 4  # as the fixture numbers them
  validation = data.load('cifar10', str(cifar_folder), 'validation')
  assert len(validation.train.labels) + len(validation.test.labels) == 160


def test_idx_reads_plain_and_gzip(idx_folder):
  loaded = data.load('fashion_mnist', str(idx_folder.parent))
  assert loaded.train.images.shape == (300, 28, 28, 1)
  assert loaded.test.images.shape == (20, 28, 28, 1)
  raw = (idx_folder / 'train-images-idx3-ubyte').read_bytes()
  assert loaded.train.images[1, 0, 5, 0] == raw[16 + 784 + 5]


def _numbered(count):
  images = np.zeros((count, 8, 8, 1), np.uint8)
  return dataset.Split(images, np.arange(count, dtype=np.int32))


def _sampler(**changes):
  settings = {'num_workers': 3, 'batch_size': 4, 'seed': 0, **changes}
  return data.Sampler(_numbered(100), **settings)


def _labels(sampler, step):
  return sampler.batch(step).inputs['labels']


def test_batches_are_a_pure_function_of_the_step():
  forwards, backwards = _sampler(), _sampler()
  steps = range(20)
  seen = {step: _labels(forwards, step) for step in steps}
  for step in reversed(steps):
    np.testing.assert_array_equal(_labels(backwards, step), seen[step])
  assert not np.array_equal(_labels(_sampler(seed=1), 0), seen[0])


def test_an_epoch_repeats_nothing_and_the_next_is_another():
  sampler = _sampler()
  assert sampler.steps_per_epoch == 8
  epochs = [
    np.concatenate([_labels(sampler, e * 8 + s).ravel() for s in range(8)])
    for e in range(2)
  ]
  assert all(len(set(epoch)) == 96 for epoch in epochs)
  assert not np.array_equal(*epochs)
  assert sampler.position(19) == (19, 2, 36)


def test_inner_workers_share_what_would_be_their_workers_batch():
  whole = _labels(_sampler(num_workers=2, batch_size=12), 3)
  shared = _labels(_sampler(num_workers=2 * 3, batch_size=4), 3)
  np.testing.assert_array_equal(shared.reshape(2, 12), whole)
  one = _sampler(num_workers=2 * 3, batch_size=4, workers=[4])
  np.testing.assert_array_equal(_labels(one, 3), shared[[4]])


def test_dropouts_noise_is_a_workers_own_and_follows_from_the_step():
  sampler = _sampler()
  noise = np.concatenate([sampler.batch(step).noise for step in range(4)])
  assert noise.dtype == np.uint32
  assert len(np.unique(noise, axis=0)) == 3 * 4
  one = _sampler(workers=[2]).batch(3)
  np.testing.assert_array_equal(one.noise, sampler.batch(3).noise[[2]])
  assert not np.any(_sampler(seed=1).batch(3).noise[2] == one.noise[0])


def test_too_small_a_training_set_is_a_clear_error():
  with pytest.raises(errors.ConfigError, match='has 100'):
    _sampler(num_workers=30)


def test_augmentation_moves_and_flips_whole_images():
  image = np.zeros((1, 32, 32, 3), np.uint8)
  image[0, 10:20, 5:9] = np.arange(1, 4)
  many = dataset.Split(image.repeat(64, 0), np.zeros(64, np.int32))
  sampler = data.Sampler(
    many, num_workers=1, batch_size=64, seed=0, augment=True
  )
  images = sampler.batch(0).inputs['images'][0]
  np.testing.assert_array_equal(images, sampler.batch(0).inputs['images'][0])
  assert not np.array_equal(images, sampler.batch(1).inputs['images'][0])
  # The patch never reaches an edge, so all of it is there, wherever it is.
  np.testing.assert_array_equal(
    images.sum(axis=(1, 2)), image.sum(axis=(1, 2)).repeat(64, 0)
  )
  columns = {int(np.argmax(i.any(axis=(0, 2)))) for i in images}
  assert min(columns) < 10 and max(columns) > 18  # left, and flipped


@pytest.mark.slow
@pytest.mark.skipif(
  not os.environ.get('GRADSPARSE_DATA'), reason='needs GRADSPARSE_DATA'
)
def test_the_real_cifar10_has_its_published_moments():
  loaded = data.load('cifar10', test_split='data_batch_5')
  assert loaded.train.images.shape == (40_000, 32, 32, 3)
  assert cifar10.RECORDS == len(loaded.test.labels)
  pixels = loaded.train.images[::10].reshape(-1, 3)
  np.testing.assert_allclose(pixels.mean(0), loaded.mean, atol=1.5)
  np.testing.assert_allclose(pixels.std(0), loaded.std, atol=1.5)
