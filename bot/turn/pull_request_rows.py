"""Rows about a branch that is to become a pull request: the turns that changed it, and what the bot opened for it."""

from dataclasses import dataclass
from datetime import datetime

from bot.ask import Ask
from bot.model import Repository
from bot.store.database import Connection, Pool, statement
from bot.store.turns import Claim, under_claim


@dataclass(frozen=True, slots=True)
class TurnOnBranch:
    """A turn that changed a branch on GitHub: its answer as the agent wrote it, and where it was asked for."""

    id: int
    answer: str
    ask: Ask
    number: int


@dataclass(frozen=True, slots=True)
class OwnPull:
    """A pull request of the bot's branch for the issue `closes`.

    The titles and the digests of descriptions are those that the bot gave it: none where a person opened it.
    """

    number: int
    closes: int
    titles: tuple[str, ...]
    texts: tuple[str, ...]


@under_claim("""
update turns set pushed_to = $3, pushed_head = $4, pushed_net = $5, head_before = $6, met_push = met_push or $7
where id = $1 and claim = $2 returning id
""")
async def record_push(
    connection: Connection,
    claim: Claim,
    branch: str,
    head: str,
    net: tuple[int, int, int] | None,
    head_before: str,
    *,
    merged: bool,
) -> None:
    """Record that the turn's changes are on this branch on GitHub, up to `head`. Raises ClaimLostError.

    They begin at `head_before`, which may have been made anew for the push.
    `net`: the files that the branch changes, and its commits ahead of its base and behind. `merged`: so is what people
    pushed meanwhile.
    """


@statement("update conversations set pull_request = $2 where id = $1")
async def record_pull_request(connection: Connection, conversation_id: int, number: int | None) -> None:
    """Record the open pull request of the thread's branch, None where there is none."""


@statement("""
-- Oldest first; the running one too, whose answer is saved before it pushes.
select t.id, t.answer, r.ask, c.number
from turns t join requests r on r.turn_id = t.id join conversations c on c.id = t.conversation_id
where t.pushed_to = $3 and t.answer is not null and (c.platform, c.repository_id) = ($1, $2)
  and t.undoes is null and not exists (select from turns u where u.undoes = t.id and u.state in ('running', 'done'))
order by t.id limit 50
""")
async def turns_on_branch(connection: Connection, repository: Repository, branch: str) -> list[TurnOnBranch]:
    """Return the turns that changed the branch, oldest first, without those that were taken back."""


@statement("""
-- The running one too: it is saved with the answer.
select t.description from turns t join conversations c on c.id = t.conversation_id
where t.pushed_to = $3 and t.answer is not null and (c.platform, c.repository_id) = ($1, $2)
order by t.id desc limit 1
""")
async def description_left(connection: Connection | Pool, repository: Repository, branch: str) -> str | None:
    """Return the description that the last turn left which changed the branch, None if it left none."""


@statement("""
select number, closes, titles, texts from pull_requests
where (platform, repository_id, branch) = ($1, $2, $3) order by number desc limit 1
""")
async def own_pull(connection: Connection, repository: Repository, branch: str) -> OwnPull | None:
    """Return the last pull request of the bot's branch."""


@statement("select exists (select from pull_requests where (platform, repository_id, number) = ($1, $2, $3))")
async def is_of_own_branch(connection: Connection | Pool, repository: Repository, number: int) -> bool:
    """Return whether the pull request is of the bot's branch, whoever opened it."""


@statement("""
-- One that a person opened has no description of the bot's.
select exists (select from pull_requests where (platform, repository_id, number) = ($1, $2, $3) and texts <> '{}')
""")
async def is_own_pull(connection: Connection | Pool, repository: Repository, number: int) -> bool:
    """Return whether the bot opened the pull request."""


@statement("""
insert into pull_requests (platform, repository_id, number, branch, closes, titles, texts)
values ($1, $2, $3, $4, $5, array_remove(array[$6::text], null), array[$7::text])
on conflict (platform, repository_id, number) do update set check_at = excluded.check_at
""")
async def adopt(
    connection: Connection, repository: Repository, number: int, branch: str, closes: int, title: str | None, text: str
) -> None:
    """Record a pull request that the bot opened; of a known one, only that its branch may be new. Without `title` a
    person gave it.
    """


@statement("""
select w.start_number from turns t join worktrees w on w.id = t.worktree_id and w.start_kind = 'issue'
where t.pushed_to = $3 and (t.queue_platform, t.queue_repository_id) = ($1, $2) order by t.id desc limit 1
""")
async def issue_of_branch(connection: Connection | Pool, repository: Repository, branch: str) -> int | None:
    """Return the issue for which the bot made the branch, and pushed to it; None for a branch of others."""


@statement("""
-- The description is the person's from the beginning, so nobody is told that.
with opened as (
    insert into pull_requests (platform, repository_id, number, branch, closes, titles, texts, told, opened_at)
    values ($1, $2, $3, $4, $5, '{}', '{}', true, $6) on conflict do nothing returning closes
)
update conversations c set pull_request = $3 from opened
where (c.platform, c.repository_id, c.number) = ($1, $2, opened.closes) returning c.id
""")
async def record_opened(
    connection: Connection, repository: Repository, number: int, branch: str, closes: int, opened_at: datetime
) -> int | None:
    """Record a pull request that a person opened for the bot's branch; return the issue's thread, None if known."""


@statement("""
-- One that is told again, or late, is no news.
update pull_requests p set reviewed_at = $4, reviewed_turn = (
    select max(t.id) from turns t
    where t.pushed_to = p.branch and (t.queue_platform, t.queue_repository_id) = (p.platform, p.repository_id))
where (platform, repository_id, number) = ($1, $2, $3) and (reviewed_at is null or reviewed_at < $4)
""")
async def record_review(connection: Connection, repository: Repository, number: int, at: datetime) -> None:
    """Record that somebody reviewed a pull request of the bot's branch."""


@dataclass(frozen=True, slots=True)
class Unchecked:
    """A pull request of the bot of which GitHub is to be asked whether it conflicts with its base."""

    repository: Repository
    number: int


@statement("""
-- Asked by one process at a time, and again within the hour also where that process dies.
with due as (
    select platform, repository_id, number from pull_requests
    where check_at <= $1 order by check_at limit $2 for update skip locked
)
update pull_requests p set check_at = $1 + interval '1 hour'
from due join codebases b using (platform, repository_id)
where (p.platform, p.repository_id, p.number) = (due.platform, due.repository_id, due.number)
returning b.*, p.number
""")
async def take_unchecked(connection: Pool, now: datetime, most: int) -> list[Unchecked]:
    """Return pull requests whose time to be asked about has come; the next time is in an hour."""


@statement("""
update pull_requests set check_at = least(check_at, $3::timestamptz + interval '1 minute')
where (platform, repository_id, number) = ($1, $2, $4)
   or ((platform, repository_id) = ($1, $2) and $4::integer is null and check_at is not null)
""")
async def check_soon(connection: Connection | Pool, repository: Repository, now: datetime, number: int | None) -> None:
    """Let GitHub be asked in a minute about a pull request, or all open ones of the repository."""


@statement("update pull_requests set check_at = null where (platform, repository_id, number) = ($1, $2, $3)")
async def check_no_more(connection: Connection, repository: Repository, number: int) -> None:
    """Let GitHub not be asked about a pull request that is closed."""


@statement("""
with before as (
    select in_conflict, conflict_told from pull_requests
    where (platform, repository_id, number) = ($1, $2, $3) for update
)
update pull_requests p set in_conflict = $5,
       conflict_told = case when $5 and not before.in_conflict then $4 else p.conflict_told end
from before where (platform, repository_id, number) = ($1, $2, $3)
returning $5 and not before.in_conflict and before.conflict_told is distinct from $4
""")
async def is_new_conflict(
    connection: Connection, repository: Repository, number: int, head: str, conflicts: bool
) -> bool:
    """Record whether the pull request conflicts; return whether that is to be told: not twice of the same head, and
    once for as long as it lasts.
    """


@statement("""
update pull_requests set titles = array_remove(titles || $4::text, null), texts = texts || $5::text
where (platform, repository_id, number) = ($1, $2, $3)
""")
async def note_text(connection: Connection, repository: Repository, number: int, title: str | None, text: str) -> None:
    """Record a new title, if there is one, and the digest of a description, before they are written."""


@statement("""
update pull_requests set told = true
where (platform, repository_id, number) = ($1, $2, $3) and not told returning number
""")
async def tell_once(connection: Connection, repository: Repository, number: int) -> int | None:
    """Return the number if people were not told yet that the description is theirs, and record that they are."""
