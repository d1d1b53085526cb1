"""The next step of a simulated model, decided from the conversation alone; the same for every vendor's API.

The last text of a user that has commands is the request. One command a line; a leading `@name` is ignored:

    write PATH: TEXT     append PATH: TEXT     run COMMAND        tell (the result of the last tool)
    ask QUESTION         say TEXT             long BYTES         remember WORD
    propose PLAN
    recall               hang                 empty              describe TEXT (of the pull request)
    use TOOL
    mend COMMANDS        answer TEXT (in the thread of the inline comment that this is a line of)
    fail STATUS [RETRY-AFTER]

A backslash and an `n` end a line of a description. Told by the bot that a check fails or to merge, it obeys the last
COMMANDS, with such ends of lines. Asked to finish, it does.
`hang` gives no answer until the agent disconnects, `fail` an HTTP status, `empty` an empty message.
Other lines are ignored. A file is written with the agent's own tool, a command runs in its own shell.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from bot.prompt.remarks import FINISH_NOW

BYTES_PER_TOKEN = 4
Role = Literal["user", "model", "tool"]
MEND = (
    "# The repository's check fails",
    *("The check that is told above has failed", "The checks that are told above have failed"),
    "Merge origin/",
)
"""How the bot's own requests begin."""
FINISHED = "I stop here. Nothing is left."
"""The answer to the bot's request to finish."""
TITLE = "A title"
"""The answer to a request without tools: agents ask that way for titles and summaries of a session."""


@dataclass(frozen=True, slots=True)
class Text:
    """One text of the conversation as it was sent to the model; `tool` is the result of a tool."""

    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class Write:
    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Run:
    command: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to the person, with two options."""

    question: str


@dataclass(frozen=True, slots=True)
class Use:
    """A call of the tool of an MCP server `probe`, without arguments."""

    tool: str


@dataclass(frozen=True, slots=True)
class Propose:
    """The plan in the agent's file for it is shown to the person, who is to approve it."""


Act = Write | Run | Ask | Use | Propose


@dataclass(frozen=True, slots=True)
class Answer:
    """A text, then a tool call; without a call the turn is over."""

    text: str
    act: Act | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """An HTTP error, perhaps with a header that says after how many seconds to ask again."""

    status: int
    retry_after: str | None = None


@dataclass(frozen=True, slots=True)
class Hang:
    """No answer at all."""


Step = Answer | Refuse | Hang


def tokens(text: str) -> int:
    """Return how many tokens this text counts as."""
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


def next_step(conversation: Sequence[Text], *, has_tools: bool) -> Step:
    """Return the model's answer to this conversation; acts whose results are in it are done."""
    newest = next((at for at in range(len(conversation), 0, -1) if conversation[at - 1].role != "user"), 0)
    if any(FINISH_NOW in text.text for text in conversation[newest:]):
        return Answer(FINISHED)
    request = _request(conversation)
    commands = (
        list(_commands(_meant(conversation[: request + 1]), _plan_file(conversation))) if request is not None else []
    )
    if request is None or (not has_tools and any(isinstance(command, Act) for command in commands)):
        return Answer(TITLE if not has_tools else "There is nothing to do.")
    given_back = [text.text for text in conversation[request:] if text.role == "tool"]
    said: list[str] = []
    acts = 0
    for command in commands:
        match command:
            case Write() | Run() | Ask() | Use() | Propose():
                acts += 1
                if acts > len(given_back):
                    return Answer("\n".join(said), command)
                said = []
            case Refuse() | Hang():
                return command
            case "recall", _:
                said.append(f"I remember: {', '.join(_remembered(conversation[:request])) or 'nothing'}.")
            case "tell", _:
                said.append(given_back[acts - 1] if acts else "nothing")
            case "mend", _:
                pass
            case "remember", word:
                said.append(f"I will remember {word}.")
            case "empty", _:
                return Answer("")
            case _, text:
                said.append(text)
            case _:
                assert_never(command)
    return Answer("\n".join(said) or "Done.")


def _request(conversation: Sequence[Text]) -> int | None:
    for index in range(len(conversation) - 1, -1, -1):
        text = conversation[index].text
        if conversation[index].role == "user" and (text.startswith(MEND) or any(_commands(text))):
            return index
    return None


def _meant(conversation: Sequence[Text]) -> str:
    """Return the commands of the last text, or those that an earlier one gave for it."""
    last = conversation[-1].text
    if not last.startswith(MEND):
        return last
    texts = (command for text in conversation if text.role == "user" for command in _commands(text.text))
    mends = [command[1] for command in texts if isinstance(command, tuple) and command[0] == "mend"]
    return mends[-1].replace("\\n", "\n") if mends else "say Nothing to mend."


def _remembered(conversation: Sequence[Text]) -> Iterator[str]:
    for text in conversation:
        if text.role == "user":
            for command in _commands(text.text):
                match command:
                    case "remember", word:
                        yield word
                    case _:
                        pass


def _plan_file(conversation: Sequence[Text]) -> str:
    """Return where Claude wants its plan."""
    named = [found[1] for text in conversation for found in re.finditer(r"your plan at (\S+\.md)", text.text)]
    return named[-1] if named else "plan.md"


def _commands(text: str, plan_file: str = "") -> Iterator[Act | Refuse | Hang | tuple[str, str]]:
    # What the prompt quotes of a thread is no command.
    comment = 0
    for line in re.sub(r"<data-(\w+) .*?</data-\1>", "", text, flags=re.DOTALL).splitlines():
        bare = re.sub(r"\A\s*(@[\w-]+(\[bot\])?[\s,:]+)?", "", line).rstrip()
        if named := re.fullmatch(r"Comment (\d+):", bare):
            comment = int(named[1])
        word, _, rest = bare.partition(" ")
        command = _command(word, rest)
        if word == "answer" and rest:
            answers = json.dumps([{"comment_id": comment, "body": rest}])
            command = Run(f'printf %s {_quoted(answers)} > "$THREADTREE_OUT/threads.json"')
        if word == "describe" and rest:
            left = rest.replace("\\n", "\n")
            command = Run(f'printf %s {_quoted(left)} > "$THREADTREE_OUT/pull_request.md"')
        if word == "propose" and rest:
            yield Write(plan_file, rest + "\n")
            command = Propose()
        if command is not None:
            yield command


def _command(word: str, rest: str) -> Act | Refuse | Hang | tuple[str, str] | None:
    match word, rest:
        case "write", _ if edit := re.fullmatch(r"(\S+): ?(.*)", rest):
            return Write(edit[1], edit[2] + "\n")
        case "append", _ if edit := re.fullmatch(r"(\S+): ?(.*)", rest):
            return Run(f"printf '%s\\n' {_quoted(edit[2])} >> {_quoted(edit[1])}")
        case "run", _ if rest:
            return Run(rest)
        case "use", _ if rest:
            return Use(rest)
        case "ask", _ if rest:
            return Ask(rest)
        case (("say" | "remember" | "mend"), _) if rest:
            return word, rest
        case (("recall" | "tell" | "empty"), ""):
            return word, ""
        case "long", _ if rest.isdecimal():
            return "say", _long(int(rest))
        case "fail", _ if told := re.fullmatch(r"(\d{3})(?: (\d+))?", rest):
            return Refuse(int(told[1]), told[2])
        case "hang", "":
            return Hang()
        case _:
            return None


def _long(size: int) -> str:
    # Agents treat a repeated text as a model that is stuck in a loop.
    return " ".join(map(str, range(size // 2)))[:size]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
