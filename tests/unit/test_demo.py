"""What the demo tells people to write is what its agent understands."""

import re

from bot.demo.command import TRY
from bot.simulated.agent.plain import commands_in


def test_the_agent_understands_each_sentence_that_the_demo_proposes() -> None:
    sentences = re.findall(r"(?m)^\| (\w[^|]*\.|\w[^|]*\?) \|", TRY)
    assert len(sentences) == 6
    assert [one for one in sentences if not commands_in(one)] == []


def test_the_sentences_of_a_line_are_obeyed_in_their_order() -> None:
    line = "Hello! Please remember that we close at 6. Then write “Bye!” into a/bye.txt, and add “x” to y."
    assert commands_in(line) == [
        "remember we close at 6",
        "write a/bye.txt: Bye!",
        "say I wrote “Bye!” into a/bye.txt.",
        "append y: x",
        "say I added “x” to y.",
    ]
    assert commands_in("Please fix this.") == []
