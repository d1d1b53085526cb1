"""What people can ask for: one file, or folder, for each verb, and the table of them."""

from bot.turn.request import Verbs
from bot.verbs import (
    agent,
    create,
    fix,
    plan,
    pull_request,
    remove,
    reset,
    reset_context,
    restore,
    retry,
    review,
    standing,
    start,
    status,
    stop,
    undo,
    update,
    work,
    worktree,
)
from bot.verbs import help as commands_help

VERBS = Verbs(
    (
        commands_help.VERB,
        status.VERB,
        stop.VERB,
        start.VERB,
        retry.VERB,
        work.VERB,
        plan.VERB,
        review.VERB,
        undo.VERB,
        update.VERB,
        pull_request.VERB,
        agent.VERB,
        fix.VERB,
        standing.VERB,
        reset_context.VERB,
        reset.VERB,
        worktree.VERB,
        remove.VERB,
        restore.VERB,
        create.VERB,
    )
)
"""In the order in which `/help` lists their commands. To delete a verb, delete its file and its line."""
