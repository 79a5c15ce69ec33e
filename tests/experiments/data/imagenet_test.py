"""ImageNet's folders: what is read, which part of it is seen, and when.

Files that are damaged are in tests/bad_input.
"""

import shutil
import threading

from experiments import data
from experiments.data import augmentation
from experiments.program import errors
from experiments.training import train
import numpy as np
from PIL import Image
import pytest


def _load(folder, size=8, split='test'):
  return data.load('imagenet', str(folder), split, size)


def test_classes_are_numbered_by_the_names_of_their_folders(imagenet_folder):
  loaded = _load(imagenet_folder)
  assert loaded.classes == 2
  assert loaded.train.labels.tolist() == [0] * 4 + [1] * 3
  images, labels = loaded.train.take(np.array([5, 0]))
  assert images.shape == (2, 8, 8, 3) and images.dtype == np.uint8
  assert labels.tolist() == [1, 0]
  # JPEG rounds a little.
  np.testing.assert_allclose(images[0, 3, 3], (80, 200, 60), atol=4)
  np.testing.assert_allclose(images[1, 3, 3], (40, 0, 60), atol=4)
  assert loaded.test.take(slice(1, 2)).labels.tolist() == [1]


def test_a_root_of_data_sets_works_like_the_sets_own_folder(imagenet_folder):
  assert len(_load(imagenet_folder.parent).train.labels) == 7


def test_held_out_images_come_from_the_training_set(imagenet_folder):
  whole, loaded = (
    _load(imagenet_folder),
    _load(imagenet_folder, 8, 'validation'),
  )
  assert len(loaded.train.labels) == 6 and len(loaded.test.labels) == 1
  parts = [x.take(slice(None)).images for x in (loaded.train, loaded.test)]
  everything = whole.train.take(slice(None)).images
  assert np.concatenate(parts).sum(dtype=int) == everything.sum(dtype=int)


def test_folders_that_do_not_go_together_are_told(imagenet_folder):
  shutil.move(imagenet_folder / 'val/n02_dog', imagenet_folder / 'val/n03_cow')
  with pytest.raises(errors.DataFileError, match="only one .* has 'n02_dog'"):
    _load(imagenet_folder)
  shutil.rmtree(imagenet_folder / 'val')
  with pytest.raises(
    errors.DataFileError, match='val is missing; expected a f'
  ):
    _load(imagenet_folder)
  (imagenet_folder / 'val').mkdir()
  with pytest.raises(errors.DataFileError, match='val is damaged: no folder;'):
    _load(imagenet_folder)


def test_tested_is_the_middle(imagenet_folder):
  # 7/8 of the height of 80 pixels, in the middle of the width.
  image = np.full((80, 160, 3), (200, 0, 0), np.uint8)
  image[5:75, 45:115] = (0, 0, 200)
  path = imagenet_folder / 'val/n01_cat/0.JPEG'
  Image.fromarray(image).save(path, quality=95, subsampling=0)
  seen = _load(imagenet_folder, 10).test.take(slice(0, 1)).images[0]
  inside = seen[1:-1, 1:-1].reshape(-1, 3)
  np.testing.assert_allclose(inside, [(0, 0, 200)] * len(inside), atol=12)


@pytest.mark.parametrize('mode', ['L', 'CMYK'])
def test_other_kinds_of_jpeg_become_red_green_and_blue(imagenet_folder, mode):
  path = imagenet_folder / 'val/n01_cat/0.JPEG'
  Image.new('RGB', (30, 30), (90, 90, 90)).convert(mode).save(path)
  seen = _load(imagenet_folder).test.take(slice(0, 1)).images
  np.testing.assert_allclose(seen, 90, atol=4)


def _sampler(train, **changes):
  settings = {'num_workers': 2, 'batch_size': 3, 'seed': 0, 'augment': True}
  return data.Sampler(train, **{**settings, **changes})


def _equal(one, other):
  return all(map(np.array_equal, *map(_arrays, (one, other))))


def _arrays(batch):
  return [*batch.inputs.values(), batch.noise]


def test_what_is_drawn_is_a_pure_function_of_the_step(imagenet_folder):
  # Red to the left and blue to the right: a mirror image shows.
  for number in range(4):
    image = np.zeros((64, 96, 3), np.uint8)
    image[:, :48, 0] = image[:, 48:, 2] = 200
    path = imagenet_folder / f'train/n01_cat/{number}.JPEG'
    Image.fromarray(image).save(path, quality=95)
  train = _load(imagenet_folder).train
  sampler = _sampler(train)
  batches = [sampler.batch(step) for step in range(12)]
  for step in (11, 4):
    assert _equal(_sampler(train).batch(step), batches[step])
    own = _sampler(train, workers=[1]).batch(step)
    for part, whole in zip(*map(_arrays, (own, batches[step])), strict=True):
      np.testing.assert_array_equal(part, whole[1:])
  inputs = [batch.inputs for batch in batches]
  cats = np.concatenate([b['images'][b['labels'] == 0] for b in inputs])
  assert len(np.unique(cats.reshape(len(cats), -1), axis=0)) > 12
  left = [tuple(image[:, 0].mean(axis=0) > 100) for image in cats]
  assert (True, False, False) in left and (False, False, True) in left


def test_without_augmentation_an_image_is_the_same_each_epoch(imagenet_folder):
  train = _load(imagenet_folder).train
  inputs = _sampler(train, augment=False).batch(5).inputs
  images = inputs['images'].reshape(-1, 8, 8, 3)
  for image, label in zip(images, inputs['labels'].ravel(), strict=True):
    known = train.take(train.labels == label).images
    assert any(np.array_equal(image, other) for other in known)


def test_crops_are_parts_of_the_image_of_the_published_sizes():
  drawn = augmentation.draw_crops(np.random.default_rng(0), 500)
  shares = []
  for image in range(500):
    left, top, right, bottom = augmentation.crop_box(120, 90, drawn, image)
    assert 0 <= left < right <= 120 and 0 <= top < bottom <= 90
    shares.append((right - left) * (bottom - top) / (120 * 90))
    assert 0.7 < (right - left) / (bottom - top) < 1.42
  assert 0.07 < min(shares) < 0.12 and 0.9 < max(shares) <= 1
  # Of a long image nothing that is drawn may fit: then the middle is taken.
  boxes = {augmentation.crop_box(1000, 3, drawn, image) for image in range(500)}
  assert (498, 0, 502, 3) in boxes
  boxes = {augmentation.crop_box(3, 1000, drawn, image) for image in range(500)}
  assert (0, 498, 3, 502) in boxes


class _Numbers:
  """A sampler that notes what it reads."""

  steps_per_epoch = 5
  counts = {'examples': 5}

  def __init__(self):
    self.read = []
    self.second = threading.Event()

  def batch(self, step):
    self.read.append(step)
    if step == 1:
      self.second.set()
    if step == 7:
      raise errors.DataFileError('torn')
    return step


def test_a_few_batches_are_read_before_they_are_asked_for():
  sampler = _Numbers()
  ahead = data.Ahead(sampler, batches=2, steps=6)
  assert ahead.batch(0) == 0
  assert sampler.second.wait(20)
  for step in (1, 2, 5, 4, 3, 4, 5):  # in any order
    assert ahead.batch(step) == step
    assert max(sampler.read) <= 5  # nothing beyond the last
  far = _Numbers()
  ahead = data.Ahead(far, batches=2, steps=100)
  for step in range(5):
    assert ahead.batch(step) == step
    assert max(far.read) <= step + 2
  with pytest.raises(errors.DataFileError, match='torn'):
    ahead.batch(7)


@pytest.mark.slow
def test_a_run_reads_its_images_from_disk(
  imagenet_folder, tiny_config, tmp_path
):
  config = tiny_config(steps=2)
  config.train.batch_size = 3
  config.model.name = 'logistic'
  config.data.update(
    name='imagenet', dir=str(imagenet_folder), image_size=4, augment=True
  )
  summary = train.train_and_evaluate(config, tmp_path / 'run')
  assert summary['parameters'] == 4 * 4 * 3 * 2 + 2
  config.model.name = 'vgg_like'
  with pytest.raises(errors.ConfigError, match='32 x 32 .* got 4 x 4'):
    train.train_and_evaluate(config, tmp_path / 'other')
