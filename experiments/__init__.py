"""Training programs on top of `gradsparse`: data, models, loop, reports.

Nothing in the library imports this package. It needs the `experiments` extra
(`pip install 'gradsparse[experiments]'`): absl, Flax, Orbax, ml_collections,
scikit-learn, matplotlib, pandas, Pillow and rich; for speech soundfile and
jiwer, for translation sentencepiece and sacrebleu.

A file directly in this folder is a program, `python -m experiments.NAME`: it
takes flags and calls a package. If a package has the name of its program
(`cluster`, `papers`, `report`, `results_page`, `sweep`), the program is the
package's `__main__.py`. The benchmarks are programs in a package of their own.
Nothing imports a program.

The packages, lowest first; each imports only from those above it in this list
(`tests/layers_test.py` checks that):

  program      what all programs share: flags, messages, tables, files
  cluster      hosts on one machine, with a slow network between them
  data         data sets, and which examples a step sees
  scores       decoding of a model's outputs, and their scores
  models       networks by name
  tasks        a data set and a model, joined by a loss and a test
  config       fields of a configuration, and the optimizer that they ask for
  hosts        processes of a run, and the devices of its workers
  run          files, bytes, times, scores and checkpoints of a run
  training     gradients, the step, the loop
  report       pages of finished runs
  benchmarks   measurements of speed
  papers       tables of trainings: what papers printed, and ours
  sweep        the points of a sweep, and their runs
  results_page RESULTS.md and docs/results, made from the records

`results` has the measurements, with their commands.
"""

import importlib.util

for _name in ('absl', 'flax', 'ml_collections', 'rich'):
  if importlib.util.find_spec(_name) is None:
    raise ModuleNotFoundError(
      f'experiments needs the package {_name} and others: in the checkout, '
      "pip install '.[experiments]'",
      name=_name,
    )
