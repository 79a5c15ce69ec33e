"""Parallel text: sentences with their translations."""

from experiments.data.translation.bpe import Vocabulary
from experiments.data.translation.files import NAMES
from experiments.data.translation.files import Corpus
from experiments.data.translation.files import load
from experiments.data.translation.pairs import Pairs
from experiments.data.translation.sampler import Sampler
from experiments.data.translation.sampler import walk

__all__ = [
  'NAMES',
  'Corpus',
  'Pairs',
  'Sampler',
  'Vocabulary',
  'load',
  'walk',
]
