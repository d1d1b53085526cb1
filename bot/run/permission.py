"""The requester's permission, asked once more before the agent starts: it may be gone since the request was made."""

from bot.authority import Denied, before_asking_github, by_permission
from bot.messages import replies
from bot.model import Actor
from bot.run.context import TurnContext
from bot.store.turns import ClaimedTurn


async def denied(ctx: TurnContext, turn: ClaimedTurn) -> str | None:
    """The reason to refuse the turn now, or None. Raises GitHubError."""
    sender = Actor(turn.requested_by, turn.requested_by_id, turn.requested_by_id in ctx.policy.allowed_bots)
    verdict = before_asking_github(ctx.policy, sender, turn.repository)
    if verdict is None:
        verdict = by_permission(await ctx.github.permission(turn.repository, turn.requested_by))
    return replies.permission_withdrawn(turn.requested_by) if isinstance(verdict, Denied) else None
