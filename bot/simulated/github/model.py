"""GitHub's state: accounts, repositories, threads and what people wrote in them. Plain values, no I/O."""

import asyncio
import base64
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Literal, Protocol

from bot.simulated.github.git import BareRepository
from bot.simulated.github.rules import Rule, write_hook

Permission = Literal["none", "read", "triage", "write", "maintain", "admin"]
PERMISSIONS: tuple[Permission, ...] = ("none", "read", "triage", "write", "maintain", "admin")

ReactionContent = Literal["+1", "-1", "laugh", "confused", "heart", "hooray", "rocket", "eyes"]
REACTION_CONTENTS: tuple[ReactionContent, ...] = (
    "+1",
    "-1",
    "laugh",
    "confused",
    "heart",
    "hooray",
    "rocket",
    "eyes",
)
State = Literal["open", "closed"]
UserType = Literal["User", "Bot", "Organization"]
ReviewState = Literal["commented", "approved", "changes_requested"]


class Account(Protocol):
    """The owner of an account: a `User`, or the `Person` who acts with it."""

    @property
    def id(self) -> int: ...
    @property
    def login(self) -> str: ...


@dataclass(slots=True, unsafe_hash=True)
class User:
    """An account; its id outlives a change of the login."""

    id: int
    login: str = field(hash=False)
    type: UserType = "User"

    @property
    def node_id(self) -> str:
        return node_id("BOT" if self.type == "Bot" else "U", self.id)


@dataclass(frozen=True, slots=True)
class Label:
    id: int
    name: str
    color: str = "ededed"


@dataclass(frozen=True, slots=True)
class Reaction:
    id: int
    user: User
    content: ReactionContent
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Gesture:
    """A label or an assignee that was given to a thread, or a reviewer who was asked for a review."""

    id: int
    at: datetime
    actor: User
    given: Label | User
    is_reviewer: bool = False


@dataclass(frozen=True, slots=True)
class Revision:
    """A text as it stands after it was written or edited."""

    at: datetime
    editor: User
    body: str


@dataclass(slots=True, eq=False, kw_only=True, repr=False)
class Comment:
    """A comment on a thread; `edits` holds the body after each edit, `revisions` all bodies, both oldest first."""

    id: int
    thread: "Issue"
    author: User
    original: str
    created_at: datetime
    updated_at: datetime
    edits: list[str] = field(default_factory=list)
    revisions: list[Revision] = field(default_factory=list)
    reactions: list[Reaction] = field(default_factory=list)
    minimized_as: str | None = None

    @property
    def body(self) -> str:
        return self.edits[-1] if self.edits else self.original

    def edit(self, at: datetime, editor: User, body: str) -> None:
        self.revisions = self.revisions or [Revision(self.created_at, self.author, self.original)]
        self.revisions.append(Revision(at, editor, body))
        self.edits.append(body)
        self.updated_at = at

    @property
    def node_id(self) -> str:
        return node_id("IC", self.id)

    def __repr__(self) -> str:
        return f"<{self.author.login} on {self.thread!r}: {self.body!r}>"


@dataclass(slots=True, eq=False, kw_only=True, repr=False)
class ReviewComment(Comment):
    """An inline comment on lines of a pull request's diff; `line` is as it was at its commit."""

    review: "Review"
    path: str
    line: int
    commit_id: str
    side: str = "RIGHT"
    start_line: int | None = None
    in_reply_to: "ReviewComment | None" = None
    resolved: bool = False

    @property
    def node_id(self) -> str:
        return node_id("PRRC", self.id)


@dataclass(slots=True, eq=False, kw_only=True, repr=False)
class Review:
    id: int
    pull: "Pull"
    author: User
    body: str | None
    state: ReviewState
    commit_id: str
    submitted_at: datetime
    reactions: list[Reaction] = field(default_factory=list)
    minimized_as: str | None = None

    @property
    def node_id(self) -> str:
        return node_id("PRR", self.id)

    def __repr__(self) -> str:
        return f"<review of {self.pull!r} by {self.author.login}: {self.body!r}>"


@dataclass(frozen=True, slots=True)
class Check:
    """A check run of a commit, made by GitHub Actions. Without a conclusion it runs; `waiting`: for an approval."""

    id: int
    name: str
    conclusion: str
    title: str = ""
    summary: str = ""
    log: str = ""

    @property
    def status(self) -> str:
        return self.conclusion if self.conclusion == "waiting" else "completed" if self.conclusion else "in_progress"


@dataclass(frozen=True, slots=True)
class Push:
    """A move of a branch; `before` and `after` are None for a new and a deleted one."""

    ref: str
    before: str | None
    after: str | None
    pusher: User
    at: datetime


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that was dropped into a comment. `address` is what the comment then holds, `store` where the bytes are."""

    address: str
    store: str
    content: bytes
    private: bool


@dataclass(slots=True, eq=False, kw_only=True, repr=False)
class Issue:
    """An issue, and what a pull request shares with one."""

    id: int
    number: int
    repository: "Repository"
    author: User
    title: str
    body: str | None
    created_at: datetime
    updated_at: datetime
    state: State = "open"
    closed_at: datetime | None = None
    closed_by: User | None = None
    state_reason: str | None = None
    blocked_by: list["Issue"] = field(default_factory=list)
    revisions: list[Revision] = field(default_factory=list)
    renames: list[tuple[datetime, str]] = field(default_factory=list)
    milestone: str | None = None
    labels: list[Label] = field(default_factory=list)
    gestures: list[Gesture] = field(default_factory=list)
    assignees: list[User] = field(default_factory=list)
    comments: list[Comment] = field(default_factory=list)
    reactions: list[Reaction] = field(default_factory=list)

    @property
    def node_id(self) -> str:
        return node_id("I", self.id)

    def __repr__(self) -> str:
        return f"<{self.repository.full_name}#{self.number} {self.state}>"

    def comments_by(self, author: Account) -> list[Comment]:
        """Return the account's comments on the thread, oldest first."""
        return [comment for comment in self.comments if comment.author.id == author.id]

    def reactions_by(self, author: Account) -> list[str]:
        """Return the account's reactions to the thread's opening post."""
        return [reaction.content for reaction in self.reactions if reaction.user.id == author.id]


@dataclass(slots=True, eq=False, kw_only=True, repr=False)
class Pull(Issue):
    """A pull request; GraphQL lists the issues it closes once `closing_references_indexed` is set."""

    head_repository: "Repository"
    head_ref: str
    head_sha: str
    base_ref: str
    base_sha: str
    draft: bool = False
    merged: bool = False
    merged_at: datetime | None = None
    merged_by: User | None = None
    merge_commit_sha: str | None = None
    closing_references_indexed: bool = True
    merge_tried: tuple[str, str] | None = None
    """The head and the base for which it is known whether they merge."""
    reviews: list[Review] = field(default_factory=list)
    review_comments: list[ReviewComment] = field(default_factory=list)

    @property
    def node_id(self) -> str:
        return node_id("PR", self.id)


@dataclass(slots=True, eq=False, kw_only=True, repr=False)
class Repository:
    """A repository: its threads, its permissions, and the bare git repository behind it."""

    id: int
    owner: User
    name: str
    default_branch: str
    created_at: datetime
    git: BareRepository
    private: bool = True
    parent: "Repository | None" = None
    allows_drafts: bool = True
    threads: dict[int, Issue] = field(default_factory=dict)
    gone: dict[int, Issue | None] = field(default_factory=dict)
    """The issues that were transferred, and where they are now; None for those that were deleted."""
    comments: dict[int, Comment] = field(default_factory=dict)
    labels: dict[str, Label] = field(default_factory=dict)
    permissions: dict[int, Permission] = field(default_factory=dict)
    protected_branches: set[str] = field(default_factory=set)
    rules: list[Rule] = field(default_factory=list)
    checks: dict[str, list[Check]] = field(default_factory=dict)
    statuses: dict[str, dict[str, str]] = field(default_factory=dict)
    """The states of a commit, by their contexts."""
    busy_suites: set[str] = field(default_factory=set)
    """Commits of which a workflow goes on though none of its jobs runs."""
    git_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    last_number: int = 0
    pushed_at: datetime | None = None
    pushes: list[Push] = field(default_factory=list)
    lfs: dict[str, bytes] = field(default_factory=dict)
    """The objects of Git LFS, by their sha256."""

    @property
    def full_name(self) -> str:
        return f"{self.owner.login}/{self.name}"

    def __repr__(self) -> str:
        return f"<{self.full_name}>"

    @property
    def node_id(self) -> str:
        return node_id("R", self.id)

    @property
    def pulls(self) -> list[Pull]:
        return [thread for thread in self.threads.values() if isinstance(thread, Pull)]

    def take_number(self) -> int:
        """Return the number of the next thread; issues and pull requests share one sequence."""
        self.last_number += 1
        return self.last_number

    def allow(self, account: Account, permission: Permission) -> None:
        """Make the account a collaborator; "none" removes it."""
        self.permissions[account.id] = permission

    def protect(self, branch: str) -> None:
        """Mark a branch as protected in the API; pushes to it are not refused."""
        self.protected_branches.add(branch)

    def rule(self, type_: str, branches: str = "*", **parameters: str) -> None:
        """Add a rule of a ruleset for the branches that match a pattern; pushes that break it are refused."""
        self.rules.append(Rule(type_, branches, parameters))
        write_hook(self.git.path, self.rules, self.full_name)

    def drop_rules(self) -> None:
        """Delete all rulesets."""
        self.rules.clear()
        write_hook(self.git.path, self.rules, self.full_name)

    def rules_of(self, branch: str) -> list[Rule]:
        """Return the rules for a branch of this name."""
        return [rule for rule in self.rules if fnmatchcase(branch, rule.branches)]

    def report_check(self, sha: str, check: Check) -> None:
        """Add a check run to a commit; of those with one name, the newest counts."""
        older = [one for one in self.checks.get(sha, []) if one.name != check.name]
        self.checks[sha] = [*older, check]

    def permission_of(self, account: Account | None) -> Permission:
        """Return the account's permission; every account may read a public repository."""
        granted = self._granted(account)
        return "read" if granted == "none" and not self.private else granted

    def may(self, account: Account | None, needed: Permission) -> bool:
        return PERMISSIONS.index(self.permission_of(account)) >= PERMISSIONS.index(needed)

    def is_collaborator(self, account: Account) -> bool:
        return self._granted(account) != "none"

    def _granted(self, account: Account | None) -> Permission:
        if account is None:
            return "none"
        return "admin" if account.id == self.owner.id else self.permissions.get(account.id, "none")


_NODE = "_kwDO"


def node_id(prefix: str, number: int) -> str:
    """Return a global node id: opaque, and different for every kind of object."""
    return f"{prefix}{_NODE}{base64.urlsafe_b64encode(number.to_bytes(8, 'big')).decode().rstrip('=')}"


def number_in(identifier: str) -> int | None:
    """Return the number of a global node id, None if it is none."""
    try:
        return int.from_bytes(base64.urlsafe_b64decode(identifier.partition(_NODE)[2] + "="), "big")
    except ValueError:
        return None
