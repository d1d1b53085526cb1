"""Foreign text in the prompt: whatever a person or a program outside of the bot chose. Pure."""

from dataclasses import dataclass, field

from bot.prompt.hidden import drop_invisible
from bot.thread.formatting import one_line


@dataclass(frozen=True, slots=True)
class Foreign:
    """A text that only a Fence prints: no f-string, no `str`, no `join` takes it."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        raise TypeError("foreign text is printed by a fence only")


Told = tuple[str | Foreign, ...]
"""A sentence of ours with foreign words in it."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The marks of one turn around foreign text. `nonce` is fresh for each turn, so no text can forge them."""

    nonce: str

    def block(self, head: str, text: Foreign) -> str:
        """Return the text on lines of its own; `head` is the rest of the opening tag."""
        return f"<data-{self.nonce} {head}>\n{self._without_nonce(text)}\n</data-{self.nonce}>"

    def told(self, sentence: Told) -> str:
        """Return the sentence; foreign words of one line stand in it, longer ones below it."""
        return "".join(piece if isinstance(piece, str) else self._within_line(piece) for piece in sentence)

    def _within_line(self, words: Foreign) -> str:
        text = drop_invisible(words.text)
        if "\n" in text:
            return "\n" + self.block('from="a program"', Foreign(text))
        return f'<data-{self.nonce} from="git">{self._without_nonce(Foreign(one_line(text)))}</data-{self.nonce}>'

    def _without_nonce(self, text: Foreign) -> str:
        return text.text.replace(self.nonce, "-")
