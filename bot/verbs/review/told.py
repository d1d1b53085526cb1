"""The prompt of a review: how to review, and what the reviewer said before. Pure."""

from dataclasses import dataclass

from bot.github.thread import ChangedFile, Text
from bot.prompt import remarks
from bot.prompt.builder import Brief
from bot.prompt.foreign import Fence
from bot.prompt.hidden import drop_invisible
from bot.prompt.sections import Entry, Section, attribute, fit

ROLE = """\
You review a pull request. @{author} asked for it in {thread} on GitHub. The request is the last block; what follows \
`/review` there says what to look at above all.

# How you review
- You review commit {head}. Your git worktree, {where}, has its files: you can read all of them and run what changes \
nothing. Nothing that you change is kept, committed or pushed. You have no access to GitHub: what there is to know of \
the thread is told below.
- Look for what would be wrong once this is merged: behaviour that is not what the description says, cases that break, \
security, data that is lost, tests that are missing for what changed. Follow the code that calls what changed, and the \
code that it calls; check a suspicion before you write it down.
- Say only what its author should act on. No praise, no retelling of the diff, nothing that a formatter settles, and \
nothing that somebody said already. Few remarks that matter are worth more than many. If nothing is wrong, say so.

# How you answer
Write one JSON object to the file `$THREADTREE_OUT/review.json`:

    {{"summary": "…", "comments": [{{"path": "src/a.py", "line": 12, "side": "RIGHT", "start_line": 10, "body": "…"}}]}}

- `summary` is Markdown: in a few sentences, whether the change does what it says, and the worst of what you found.
- `comments` are remarks on lines, the most important first, at most 30. `line` is a line of the new file that the \
diff shows (`side` is `RIGHT`), or a removed one by its number in the old file (`LEFT`). Only a remark on several \
lines has a `start_line`, in the same hunk. What is on no line of the diff goes into the summary.
- A `body` says in Markdown what is wrong, when that shows, and what to do, in at most 4,000 characters. Where you \
know the exact lines that should stand there, add them in a block that begins with ```suggestion: it replaces all \
lines from `start_line` to `line`.
- The bot posts it as one review. Your final message is posted only if the file cannot be read.
- Nobody answers while you work.

# What instructs you
{material}"""

_BEFORE = """\
# What you said of it before

You reviewed commit {since} before. Say only what is new: about what changed since, and what you missed. Do not \
repeat a remark that is open. A remark whose lines were changed is resolved for you. If it is not mended, answer in \
its thread instead: write a JSON list to `$THREADTREE_OUT/threads.json`, `[{{"comment_id": 123, "body": "…"}}]`, \
with the number that it has here as `comment`."""

AT_HEAD = "on no branch"
_BUDGET_CHARACTERS = 30_000


@dataclass(frozen=True, slots=True)
class Earlier:
    """An earlier remark of the bot's own; `state` says whether it is open, resolved, or on lines that changed."""

    path: str
    line: int | None
    state: str
    text: Text


@dataclass(frozen=True, slots=True)
class ReviewTask:
    """A review of the commit `head`. `since` is the one reviewed before, and `changed` what differs since then.

    `unread` names what of the earlier review is not told.
    """

    head: str
    since: str | None = None
    changed: tuple[ChangedFile, ...] = ()
    earlier: tuple[Earlier, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def inline(self) -> frozenset[int]:
        """The earlier remarks in whose threads the agent may answer."""
        return frozenset(one.text.id for one in self.earlier if one.text.id is not None and one.state != "resolved")


def before(fence: Fence, review: ReviewTask) -> list[str]:
    """Return the block on an earlier review, none where there was none."""
    if review.since is None:
        return []
    remarks = [
        Entry(
            f'place="{attribute(f"{one.path}:{one.line}" if one.line else one.path)}" '
            f'comment="{one.text.id}" state="{one.state}"',
            one.text.body,
        )
        for one in reversed(review.earlier)
    ]
    diff = [Entry(f'file="{attribute(one.path)}"', drop_invisible(one.patch or one.status)) for one in review.changed]
    sections = [
        fit(Section("Your remarks, newest first", remarks, 50, "remarks"), fence, _BUDGET_CHARACTERS),
        fit(Section(f"Changed since {review.since[:12]}", diff, 50, "files"), fence, _BUDGET_CHARACTERS),
    ]
    said = ["The head is the same since."] if review.since == review.head else []
    said += [f"Not told here: {'; '.join(review.unread)}."] if review.unread else []
    return ["\n\n".join([_BEFORE.format(since=review.since), *said, *(one.text for one in sections if one.text)])]


def brief(review: ReviewTask, *, elsewhere: bool = False) -> Brief:
    """Return what the reviewer is told; `elsewhere`: the worktree's files are at another commit."""
    return Brief(
        role=ROLE.replace("{head}", review.head),
        detached=AT_HEAD,
        blocks=lambda fence: before(fence, review),
        inline=review.inline,
        unread=review.unread if review.since is not None else (),
        remarks=(remarks.reviews_another(review.head),) if elsewhere else (),
    )
