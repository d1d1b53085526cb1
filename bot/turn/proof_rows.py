"""Rows about checks: the last one of each base branch, and that a turn's agent was told of a failure."""

from dataclasses import dataclass

from bot.model import Repository
from bot.store.database import Connection, statement
from bot.store.turns import Claim


@dataclass(frozen=True, slots=True)
class KnownCheck:
    """How the check ended at `commit` of a base branch; `script` is the digest of what ran."""

    commit: str
    script: str
    failure: str | None
    passed: tuple[str, ...]
    failed: tuple[str, ...]


@statement("""
select commit, script, failure, passed, failed from base_checks
where (platform, repository_id) = ($1, $2) and branch = $3
""")
async def last_on(connection: Connection, repository: Repository, branch: str) -> KnownCheck | None:
    """Return the last check of the base branch, None before the first."""


@statement("""
insert into base_checks (platform, repository_id, branch, commit, script, failure, passed, failed)
values ($1, $2, $3, $4, $5, $6, $7, $8)
on conflict (platform, repository_id, branch) do update
set (commit, script, failure, passed, failed) =
    (excluded.commit, excluded.script, excluded.failure, excluded.passed, excluded.failed)
""")
async def record(connection: Connection, repository: Repository, branch: str, known: KnownCheck) -> None:
    """Record the newest check of the base branch."""


@statement("""
update turns set told_of_check = true where (id, claim) = ($1, $2) and not told_of_check returning true
""")
async def may_tell(connection: Connection, claim: Claim) -> bool:
    """Record that the agent is told that the check fails; return False if it was before, also by an earlier run."""
