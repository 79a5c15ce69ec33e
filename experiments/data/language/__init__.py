"""Text for language models, as one long row of symbols."""

from experiments.data.language.ptb import NAMES as NAMES
from experiments.data.language.ptb import Corpus as Corpus
from experiments.data.language.ptb import load as load
from experiments.data.language.windows import Windows as Windows
from experiments.data.language.windows import walk as walk
