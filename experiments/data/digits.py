"""Handwritten digits: 1,797 images of 8 x 8, inside scikit-learn.

Real data without a download: the test set of the UCI "Optical Recognition of
Handwritten Digits" collection, pixels 0 to 16.
"""

from experiments.data import dataset
import numpy as np
from sklearn import datasets

TEST_SIZE = 360  # one image is 0.28 points of accuracy


def load() -> dataset.Dataset:
  """Returns 1,437 training and 360 test images; the split never changes."""
  digits = datasets.load_digits()
  everything = dataset.Split(
    digits.images[..., None].astype(np.uint8), digits.target.astype(np.int32)
  )
  train, test = dataset.hold_out(everything, TEST_SIZE / len(digits.target))
  return dataset.Dataset(train, test, classes=10, mean=(0.0,), std=(16.0,))
