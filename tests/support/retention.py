"""A retention policy in days."""

from datetime import datetime, timedelta

from bot.care.retention_rules import Kind, RetentionPolicy


def policy_for(
    now: datetime,
    *,
    detached_days: int,
    branch_days: int,
    orphan_days: int,
    rescue_days: int,
    older_than: timedelta | None = None,
) -> RetentionPolicy:
    """Return the policy of these expiries in days; `older_than` replaces the three of worktrees."""
    days = {Kind.DETACHED: detached_days, Kind.BRANCH: branch_days, Kind.ORPHAN: orphan_days}
    kept_for = {kind: timedelta(days=number) if older_than is None else older_than for kind, number in days.items()}
    return RetentionPolicy(now, kept_for, timedelta(days=rescue_days))
