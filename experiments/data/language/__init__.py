"""Text for language models, as one long row of symbols."""

from experiments.data.language.ptb import NAMES
from experiments.data.language.ptb import Corpus
from experiments.data.language.ptb import load
from experiments.data.language.windows import Windows
from experiments.data.language.windows import walk

__all__ = ['NAMES', 'Corpus', 'Windows', 'load', 'walk']
