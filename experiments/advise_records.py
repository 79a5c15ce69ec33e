"""Writes what `gs.advise` quotes of this project's records.

  python -m experiments.advise_records

Run it in the root of the repository, after records have changed. It reads
experiments/results and writes gradsparse/advise/recorded.py.
"""

from experiments.papers import catalogue
from experiments.program import command_line
from experiments.program import files
from experiments.results_page import shipped

_ROOT = command_line.define_path('root', '.', 'root of the repository')


def main() -> None:
  """Writes the module and says where."""
  root = _ROOT.value
  tables = {name: catalogue.load(name) for name in catalogue.NAMES}
  files.write_bytes(
    root / shipped.MODULE, shipped.module(tables, root).encode()
  )
  print(root / shipped.MODULE)


if __name__ == '__main__':
  command_line.run(main)
