"""The symbols that a speech model can say, and their numbers."""

from collections.abc import Sequence
import string
from typing import NamedTuple


class Alphabet(NamedTuple):
  """Symbols of transcripts; 0 is CTC's blank, and the padding.

  Attributes:
    symbols: the first has the number 1.
    separator: between two of them in a text.

  Example:
    >>> LETTERS.encode("it's")
    [11, 22, 2, 21]
    >>> DIGITS.decode([2, 3])
    'one two'
  """

  symbols: tuple[str, ...]
  separator: str

  @property
  def classes(self) -> int:
    """How many symbols a model tells apart, the blank among them."""
    return len(self.symbols) + 1

  def split(self, text: str) -> list[str]:
    """Returns the symbols of a text, whether known or not."""
    return text.split(self.separator) if self.separator else list(text)

  def encode(self, text: str) -> list[int]:
    """Returns the numbers of a text's symbols, all of which are known."""
    numbers = {symbol: 1 + index for index, symbol in enumerate(self.symbols)}
    return [numbers[symbol] for symbol in self.split(text)] if text else []

  def decode(self, numbers: Sequence[int]) -> str:
    """Returns the text of symbols, none of which is the blank."""
    return self.separator.join(self.symbols[number - 1] for number in numbers)


LETTERS = Alphabet((' ', "'", *string.ascii_lowercase), '')
_WORDS = 'zero one two three four five six seven eight nine'
DIGITS = Alphabet(tuple(_WORDS.split()), ' ')
