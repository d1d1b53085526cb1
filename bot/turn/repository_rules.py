"""The repository's own rules in a turn: those that were known first, and once it has fetched, those of git."""

from bot.model import Actor
from bot.node.repository_rules import StoredConfig, before, config_in, save_config, stored
from bot.rules import Config, as_stored, counting, stored_config, within
from bot.store import turns
from bot.thread import reasons
from bot.thread import repository_rules as words
from bot.thread.tracking import TurnResult
from bot.turn.confirm import asked_by_rule, denied
from bot.turn.turn_run import TurnRun


async def use_known_rules(run: TurnRun) -> None:
    """Let the rules hold that the last turn of the repository found, until it is fetched."""
    known = await stored(run.ctx.pool, run.turn.worktree.repository)
    _use(run, stored_config(known.config))


async def use_fetched_rules(run: TurnRun) -> TurnResult | None:
    """Let the rules hold that the default branch has now; tell the thread once what is wrong in them.

    Return the turn's end where they name the people who may ask, and who asks is none of them. Raises GitError,
    GitHubError.
    """
    turn, repository, allowed = run.turn, run.turn.worktree.repository, run.ctx.rules.allowed
    if (branch := repository.default_branch) is None:
        return None
    blob, found = await config_in(run.tree.clone, branch)
    known = await stored(run.ctx.pool, repository)
    config, wrong = counting(found, before(known))
    beyond = _use(run, config)
    of_operator = [words.beyond(key, found.lines[key], *why) for key, why in beyond.items() if key in found.lines]
    problems = [*wrong, *of_operator]
    now = StoredConfig(as_stored(config), blob, "\n".join(problems) or None)
    if now != known:
        await run.write(save_config, repository, now)
    if problems:
        notice = words.notice(branch, problems, is_read=found.config is not None)
        if not await run.write(turns.was_told, turn.conversation.id, turn.id, notice):
            run.notices.append(notice)
    if turn.so_far.answer is None and run.ctx.rules.allowed != allowed and not asked_by_rule(run.ctx, turn.ask):
        person = Actor(turn.ask.by.login, turn.ask.by.id, turn.ask.by.id in run.ctx.policy.allowed_bots)
        if (refusal := await denied(run.ctx, turn, person)) is not None:
            return TurnResult("refused", reasons.may_not_ask_any_more(turn.ask.by.login, refusal.why))
    return None


def _use(run: TurnRun, config: Config) -> dict[str, tuple[str, str]]:
    """Let the choices hold that the operator allows; return the others."""
    rules, beyond = within(run.operators, config)
    run.ctx = run.ctx.with_rules(rules)
    return beyond
