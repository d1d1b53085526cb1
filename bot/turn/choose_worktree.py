"""The worktree of a conversation's next turn, chosen from rows alone. Pure (DESIGN.md §4, the worktree)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from bot.model import BRANCH_PREFIX, DetachedHead, HeadBranch, IssueBranch, Start
from bot.sharing_rules import LiveWorktree, NodeLoad, SharingRefused, WorktreeUsage, sharing_obstacle


def worktree_path(folder: str, name: str) -> str:
    """Return the path of a worktree in its node's DATA_DIR; `folder` is the repository's folder, `<owner>/<repo>`."""
    return f"worktrees/{folder}/{name}"


@dataclass(frozen=True, slots=True)
class PullRequestHead:
    """The head of a pull request: whose it is, whether its branch may be pushed to, which issues it closes.

    Whether it is protected and what it closes is only known where a worktree has to be chosen; `closes` is None where
    GitHub did not tell it. The head was not pushed after `pushed_at`.
    """

    head_ref: str
    head_sha: str
    same_repository: bool
    head_is_protected: bool = False
    closes: tuple[int, ...] | None = ()
    pushed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class SharingCandidate:
    """A live worktree that may be shared; `issue` uses it and is closed by the pull request."""

    worktree: LiveWorktree
    use: WorktreeUsage
    issue: int | None = None


@dataclass(frozen=True, slots=True)
class OwnWorktree:
    """Reserve a new worktree; `folder` names its directory.

    `instead_of`: the worktree that would have been shared, and why it is not.
    """

    folder: str
    start: Start
    instead_of: SharingRefused | None = None


def choose_node(own: str, live: Sequence[NodeLoad]) -> str:
    """Return the node for a new worktree: the live one with the fewest unfinished turns, then the fewest worktrees.

    `own`, this node, where others have no less; it is alive, whatever the rows say.
    """
    least = min(live, key=lambda node: (node.turns, node.worktrees, node.id != own, node.id), default=None)
    return least.id if least is not None else own


def choose_worktree(
    number: int, pull: PullRequestHead, linked: Sequence[SharingCandidate], on_branch: SharingCandidate | None
) -> SharingCandidate | OwnWorktree:
    """Return the worktree on the head branch, else one of a closed issue that can be switched, else a new one.

    `linked` are the live worktrees of the issues that the pull request closes, in GitHub's order; `on_branch` has its
    head branch, or soon will. git checks out a branch only once: while one worktree has it, no other can switch to it.
    """
    if not pull.same_repository or pull.head_is_protected:
        of_issue = linked[0].use.owner if linked and not pull.same_repository else None
        return new_worktree(number, pull, SharingRefused(of_issue, "fork") if of_issue else None)
    on_head = next((one for one in linked if one.worktree.branch == pull.head_ref), on_branch)
    if on_head is not None:
        return on_head
    reasons = []
    for one in linked:
        reason = sharing_obstacle(one.use)
        if reason is None:
            return one
        reasons.append(reason)
    return new_worktree(number, pull, reasons[0] if reasons else None)


def new_worktree(
    number: int,
    pull: PullRequestHead | None,
    instead_of: SharingRefused | None = None,
    branch_prefix: str = BRANCH_PREFIX,
) -> OwnWorktree:
    """Return the thread's own worktree: on an issue's branch, on a head branch, or detached at a head."""
    if pull is None:
        return OwnWorktree(f"issue-{number}", IssueBranch(number, branch_prefix), instead_of)
    if not pull.same_repository or pull.head_is_protected:
        return OwnWorktree(f"pr-{number}", DetachedHead(pull.head_sha, f"refs/pull/{number}/head"), instead_of)
    return OwnWorktree(f"pr-{number}", HeadBranch(pull.head_ref, pull.head_sha), instead_of)
