"""Parallel text: sentences with their translations."""

from experiments.data.translation.bpe import Vocabulary as Vocabulary
from experiments.data.translation.files import NAMES as NAMES
from experiments.data.translation.files import Corpus as Corpus
from experiments.data.translation.files import load as load
from experiments.data.translation.pairs import Pairs as Pairs
from experiments.data.translation.sampler import Sampler as Sampler
from experiments.data.translation.sampler import walk as walk
