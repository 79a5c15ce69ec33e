"""Prints the table of docs/schemes.md, from the code.

python -m experiments.scheme_table
"""

from experiments.program import command_line
from experiments.studies import scheme_table


def main() -> None:
  """Prints the table as the page has it."""
  print(scheme_table.markdown())


if __name__ == '__main__':
  command_line.run(main)
