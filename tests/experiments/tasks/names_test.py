"""The names of data sets, which decide the task."""

from experiments import data
from experiments import tasks
from experiments.data import language
from experiments.data import speech
from experiments.data import translation


def test_all_loaders_names_are_known():
  loaders = (data, language, speech, translation)
  assert tasks.DATA == tuple(name for each in loaders for name in each.NAMES)
  assert tasks.TRANSCRIPTS == speech.TRANSCRIPTS
