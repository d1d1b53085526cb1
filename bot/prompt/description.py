"""What the agent is told of the description of the pull request, which it leaves in a file. Pure."""

from bot.prompt.builder import CONVENTIONAL
from bot.prompt.foreign import Fence, Foreign

_ASK = """\
# The description of the pull request

If you change files, write to `$THREADTREE_OUT/pull_request.md` what the pull request that brings {branch} into {base} \
tells the person who reviews it. It replaces what was there before. Begin with one line `Title: ` and a title of at \
most 72 characters{conventional}, then an empty line, then Markdown:

- what the branch as a whole changes against its base, and why. What was tried and taken back is no part of it
- how it was tested: the commands that you ran, and how they ended. Where nothing was run, say that
- what is not done, and where a reviewer should look first

{form} The line that closes the issue is added for you."""

_SHORT = "Be brief: a paragraph or a short list for a small change, headings only for a large one."
_TEMPLATE = """\
Fill in the repository's template (`git show` tells it: {template}): keep its headings and tasks, tick what was done, \
and leave out its comments. Leave a line that waits for the number of an issue as it is."""


def ask_for_description(fence: Fence, branch: str, base: str, template: str | None, *, conventional: bool) -> str:
    """Return the block; `template` names the file of the repository's template for git."""
    form = _TEMPLATE.format(template=fence.told((Foreign(template),))) if template is not None else _SHORT
    return _ASK.format(
        branch=fence.told((Foreign(branch),)),
        base=fence.told((Foreign(base),)),
        conventional=CONVENTIONAL if conventional else "",
        form=form,
    )
