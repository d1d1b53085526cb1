"""What was stashed: all worktrees of a clone share one list. In a cage each has a list of its own, see `importing`."""

import re
from collections.abc import Set

from bot.clones.clone import Clone
from bot.git import refs


async def not_rescued(clone: Clone, branches: Set[str | None]) -> list[str]:
    """What was stashed on these branches (None: without one) and no rescue has yet, newest first. Raises GitError.

    The list itself is left as it is: whoever stashes in another worktree at this moment holds no lock of ours.
    """
    if await clone.commit_at("refs/stash") is None:
        return []
    names = "|".join(re.escape(branch or "(no branch)") for branch in branches)
    on_these = re.compile(rf"(\w+) (?:WIP on|On) (?:{names}): ")
    listed = (await clone.run("reflog", "show", "--format=%H %gs", "refs/stash")).text.splitlines()
    found = [matched[1] for line in listed if (matched := on_these.match(line))]
    return [stash for stash in found if await clone.count(stash, "--not", f"--glob={refs.RESCUE_PREFIX}*")]
