"""Everything unusual that an answer says besides itself: sentences of the box below it."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

from bot.model import Saved
from bot.sharing_rules import Misfit, SharingRefused
from bot.thread.formatting import (
    capitalize,
    clause,
    code_block,
    details,
    format_count,
    format_dollars,
    format_duration,
    format_list,
    inline_code,
    truncate,
    url_target,
)
from bot.thread.reasons import OF_CAP, CapReached
from bot.thread.worktree_replies import restored_clause

_LONGEST_REFUSAL = 3000
BranchRule = Literal[
    "protected-branch",
    "update",
    "creation",
    "pull_request",
    "merge_queue",
    "required_linear_history",
    "required_signatures",
]
PushRule = BranchRule | Literal["workflow-files", "secret", "submodule", "filter", "lfs-object", "too-much"]
"""What forbids a push: the bot's own rules, and GitHub's by the names that it gives them."""
Elsewhere = Literal["excluded", "taken-off", "conflict"]
"""Why commits are on another branch than that of the thread."""
LeftOut = Literal["large", "filter", "product"]

_STANDING = (
    "Not committed, because ",
    "`.threadtree/setup` left files that git does not ignore: ",
    "The agent saw only the Git LFS pointers of ",
)


def is_standing(notice: str) -> bool:
    """Return whether a notice tells a fact that stays: it is said once a thread, and again when it changes."""
    return notice.startswith(_STANDING)


RECORD_RESTORED = (
    "Git had lost its record of this thread's files, and the bot repaired it. Files and commits are unchanged."
)
CONTEXT_LOST = "The agent could not resume its earlier conversation and started without that context."
VARIABLES_WITHHELD = (
    "The repository's variables were withheld: the code, or the words of the request, are of somebody who may not ask."
)
TAKES_NO_PUSHES = (
    "The branch of this pull request takes no pushes of the bot: it is the default branch, or a rule protects it. So "
    "the edits are below as a patch."
)
CONTEXT_ENDED = "The agent started without its earlier context."
THREAD_NOT_READ = "The thread could not be read from GitHub, so the agent saw the request only."
ANSWER_CUT = "The answer is longer than the bot posts, so its end is left out."
STOPPED_AT_COST_LIMIT = "The agent was stopped before it could say what is done and what is left."
RESUMED_AFTER_CUT_OFF = "This request was interrupted once and then continued."


THREADS_UNREADABLE = (
    "Left out: what the agent answered to inline comments. Its `threads.json` is no list of answers, or too large."
)


QUESTIONS_UNREADABLE = "Left out: questions of the agent. Its `questions.json` is no list of questions, or too large."


def questions_left_out(most: int, choices: int) -> str:
    """`most` and `choices` are the limits."""
    return (
        f"Left out: questions of the agent. At most {most} are asked, each once, with two to {choices} choices of one "
        "line."
    )


DESCRIPTION_UNREADABLE = (
    "Left out: the agent's description of the pull request. Its `pull_request.md` is no text, or too large."
)


def message_left_out(login: str, url: str, why: str) -> str:
    """A message was told to the agent before it was cut off; by now it may not be repeated, because of `why`."""
    return f"[{clause(login)}'s message]({url_target(url)}) was left out when the agent continued. {why}"


def threads_left_out(answers: int, most: int, longest: int) -> str:
    """`most` and `longest` are the limits: answers, and characters of one."""
    return (
        f"Left out: {format_count(answers, 'answer')} of the agent to inline comments. An answer is posted if it is to "
        f"a comment that the agent was told of, the first one there, not empty, and at most {longest:,} characters; "
        f"{most} at most."
    )


def cost_limit_reached(reached: CapReached) -> str:
    """The agent was told to finish in the middle of its work."""
    when = "" if reached.cap == "turn" else " after 00:00 UTC, when it resets"
    return (
        f"The cost limit of {format_dollars(reached.limit_usd)} {OF_CAP[reached.cap]} was reached "
        f"({format_dollars(reached.spent_usd)}), so the agent was told to finish early. Its work so far is kept. "
        f"Ask it to go on{when}."
    )


def taken_over(node: str) -> str:
    """`node` is the name of the machine that had the thread's worktree."""
    name = inline_code(node)
    return (
        f"The machine {name} does not answer, so this request runs on another one, in a fresh session, from what is on "
        f"GitHub. Work that was not pushed is still on {name}. It will be rescued when that machine is back."
    )


def agent_changed(agent: str) -> str:
    """The thread's session is another agent's; `agent` is the one that works now."""
    return (
        f"The agent is {inline_code(agent)} now. It started without the earlier agent's conversation and was told this "
        "thread's last answers."
    )


def agent_gone(gone: str, agent: str) -> str:
    """The agent that was chosen cannot be asked any more; `agent` works instead."""
    return (
        f"The agent {inline_code(gone)} is not available any more, so {inline_code(agent)} did this. `/agent` shows "
        "which ones are."
    )


LATE = timedelta(minutes=5)
"""Mention a delay of the bot itself from this length on."""


def not_running(since: datetime, until: datetime) -> str:
    """For a request that waited while no worker of the bot ran on any machine."""
    first, last = (f"{at.astimezone(UTC):%Y-%m-%d %H:%M}" for at in (since, until))
    return f"This request waited: no machine of the bot ran from {first} to {last} UTC."


def taken_up_late(late: timedelta) -> str:
    return (
        f"The bot got this request {format_duration(late)} after it was made: it was not running, or GitHub and the "
        "bot did not reach each other."
    )


# Checkout and branch


def worktree_remade(branch: str | None, kept: str | None = None) -> str:
    """`kept` is the folder on the bot's machine that has the damaged files."""
    source = inline_code(branch) if branch else "the pull request's head"
    copy = f" The damaged files are kept on the bot's machine as {inline_code(f'kept/{kept}')}." if kept else ""
    state = "damaged" if kept else "missing"
    return f"This thread's files were {state} and were checked out again from {source}.{copy}"


def clone_replaced(kept: str) -> str:
    """`kept` is the folder on the bot's machine that has the damaged clone."""
    return (
        "The bot's copy of the repository was damaged and was fetched again. The damaged copy is kept on the bot's "
        f"machine as {inline_code(f'kept/{kept}')}, with unpushed commits and rescued work that only it had."
    )


def diverged(branch: str) -> str:
    return (
        f"{inline_code(branch)} has commits on GitHub that the bot's copy lacks, and the other way round. "
        "The agent worked on the bot's copy."
    )


def rewritten(branch: str) -> str:
    """The branch was force-pushed on GitHub, and there is work here that was never published."""
    return (
        f"{inline_code(branch)} was rewritten on GitHub. The agent worked on the commits from before that. "
        "Commits that were removed on GitHub are not pushed again."
    )


def followed(branch: str, commits: int, ref: str) -> str:
    """The branch was force-pushed on GitHub, and nothing here was never published: `commits` were taken off."""
    return (
        f"{inline_code(branch)} was rewritten on GitHub, and this request worked on what is there now. What was taken "
        f"off it ({format_count(commits, 'commit')}) is kept on the bot's machine as {inline_code(ref)}, and is not "
        "pushed again."
    )


def branch_gone(branch: str) -> str:
    """The head branch of a pull request was deleted; GitHub has its last commit."""
    return (
        f"{inline_code(branch)} is no longer on GitHub, so this request worked on the last commit of the pull request. "
        "What it changed is not pushed, and shown as a patch. Once the branch is restored, the next request pushes it."
    )


def renamed(before: str, after: str) -> str:
    """The head branch of the pull request was renamed on GitHub."""
    return f"{inline_code(before)} is called {inline_code(after)} on GitHub now, and this thread's files are on it."


def branch_deleted(branch: str) -> str:
    return (
        f"{inline_code(branch)} was deleted on GitHub. If this request made changes, the branch is there again with "
        "its earlier commits."
    )


def continued(before: str, after: str, base: str | None) -> str:
    """The branch `before` was merged, so the issue's next request works on `after`."""
    start = f", which starts from {inline_code(base)}" if base else ""
    return f"{inline_code(before)} was merged. Work continues on {inline_code(after)}{start}."


def uncommitted(files: int, behind: int) -> str:
    """`files` are left from an earlier request; `behind` commits on GitHub were not merged because of them."""
    left = f"An earlier request left {format_count(files, 'uncommitted file')}, and the agent continued from there."
    if not behind:
        return left
    return f"{left} Because of that, {format_count(behind, 'newer commit')} from GitHub could not be merged yet."


def off_branch(current: str | None, branch: str) -> str:
    now = inline_code(current) if current else "a commit without a branch"
    return (
        f"An earlier request left {now} checked out. Its commits go to {inline_code(branch)} if they build on that "
        "branch."
    )


def unfinished(operation: str) -> str:
    """`operation` is git's word, such as `merge`."""
    return f"An earlier request left a {operation} unfinished."


def pushed_elsewhere(branch: str, url: str, instead_of: str, why: Elsewhere = "conflict") -> str:
    """`excluded`: a branch on GitHub is named like the folder of `instead_of`, or the other way round. `taken-off`:
    commits were taken off it on GitHub, and these were made anew without them.
    """
    because = _ELSEWHERE[why].format(branch=inline_code(instead_of))
    return f"{because}, so the commits are on [{inline_code(branch)}]({url_target(url)})."


_ELSEWHERE: dict[Elsewhere, str] = {
    "excluded": "GitHub has a branch whose name excludes {branch}",
    "taken-off": "Commits were taken off {branch} on GitHub, and this work was made on top of them",
    "conflict": "{branch} has changes on GitHub that do not merge with this work",
}


def other_name(branch: str, folder: str) -> str:
    """The issue's branch has no folder in its name, since a branch is named like the folder."""
    return f"This thread's branch is {inline_code(branch)}, because the repository has a branch {inline_code(folder)}."


def not_pushed(rule: PushRule, branch: str, names: Sequence[str] = ()) -> str:
    """Name the rule that forbids the push, and the files or submodules that break it."""
    are = "is at a commit" if len(names) == 1 else "are at commits"
    why = _PUSH_RULES[rule].format(branch=inline_code(branch), names=format_list(names), are=are)
    if rule in SHOWN_AS_PATCH:
        return f"Not pushed: {why}. {_as_patch(_SIGNING if rule == 'required_signatures' else _ALLOWED)}"
    return f"Not pushed: {why}. The work is kept on the bot's machine."


SHOWN_AS_PATCH: frozenset[PushRule] = frozenset(get_args(BranchRule))
"""Rules of the branch, which the work itself cannot meet."""
_ALLOWED = "that is allowed"
_SIGNING, _SIGN_OFF = "`SIGN_COMMITS` is set where the bot runs", "`SIGN_OFF=true` is set where the bot runs"
_KNOWN = "GitHub knows the signatures (`threadtree doctor` tells why it does not)"
_PUSH_RULES: dict[PushRule, str] = {
    "protected-branch": "{branch} is protected or the default branch",
    "update": "a rule of this repository (`update`) does not let the bot change {branch}",
    "creation": "a rule of this repository (`creation`) does not let the bot make {branch}",
    "pull_request": "a rule of this repository (`pull_request`) takes changes of {branch} by pull requests only",
    "merge_queue": "a rule of this repository (`merge_queue`) takes changes of {branch} from its merge queue only",
    "required_linear_history": (
        "a rule of this repository (`required_linear_history`) takes no merge commits on {branch}, and there is one"
    ),
    "required_signatures": (
        "a rule of this repository (`required_signatures`) takes only signed commits on {branch}, and not all are"
    ),
    "workflow-files": (
        "the commits change {names}, and changes of workflows and actions need `ALLOW_WORKFLOW_CHANGES=true`"
    ),
    "secret": "the commits hold a secret that the bot knows",
    "submodule": "{names} {are} that no branch of its own repository on GitHub has",
    "filter": "the commits hold {names} without the filter (Git LFS, git-crypt) that `.gitattributes` gives them",
    "lfs-object": (
        "the commits hold Git LFS pointers to objects that neither GitHub nor the worktree has, or not as the pointers "
        "tell: {names}"
    ),
    "too-much": "there is more in the commits (data, merges or submodules) than the bot examines before a push",
}


def _as_patch(once: str) -> str:
    return (
        f"The work is kept on the bot's machine, and its edits are below as a patch. Once {once}, the next request "
        "pushes it; `/undo` drops it after a rescue."
    )


def push_refused(branch: str, said: str, *, signs: bool, signs_off: bool) -> str:
    """`said` are the words of the remote; their end names the rule, the file, and the address that unblocks. `signs`
    and `signs_off`: the bot is set up to sign commits, and to sign them off.
    """
    once = _ALLOWED
    if "verified signature" in said:
        once = _KNOWN if signs else _SIGNING
    elif "Signed-off-by" in said and not signs_off:
        once = _SIGN_OFF
    lines = [line.removeprefix("remote:").strip() for line in said.splitlines()]
    told = "\n".join(line for line in lines if any(map(str.isalnum, line)))
    if len(told) > _LONGEST_REFUSAL:
        told = "…" + told[-_LONGEST_REFUSAL:]
    return f"GitHub refused the push to {inline_code(branch)}:\n\n{code_block(told)}\n\n{_as_patch(once)}"


def earlier_work_pushed(branch: str, url: str) -> str:
    """The request itself changed nothing."""
    return f"Work of an earlier request that was not on GitHub is on [{inline_code(branch)}]({url_target(url)}) now."


def needs_taken(branch: str, names: Sequence[str]) -> str:
    """The work changes the files `names` where commits changed them that were taken off the branch on GitHub."""
    where = f" ({format_list(names)})" if names else ""
    return (
        f"Not pushed: commits were taken off {inline_code(branch)} on GitHub, and this work changes the same lines"
        f"{where}. It is kept on the bot's machine. `/reset` starts from what GitHub has, after a rescue. If the "
        "commits are put back on GitHub, the next request pushes it."
    )


def push_failed(branch: str | None, why: str) -> str:
    """`branch` is None where the edits were to be shown as a patch; `why` are the words of git, GitHub or the disk."""
    said = inline_code(truncate(why))
    if branch is None:
        return f"The edits could not be shown as a patch: {said}. They are kept, and the next request shows them too."
    return (
        f"The commits could not be pushed to {inline_code(branch)}: {said}. They are kept, and the next request pushes "
        "them."
    )


def files_left_out(why: LeftOut, names: Sequence[str]) -> str:
    """Files that the agent changed and the bot did not commit."""
    return f"Not committed, because {_LEFT_OUT[why]}: {format_list(names)}."


_LEFT_OUT: dict[LeftOut, str] = {
    "large": "they are large or changed inside a repository of their own",
    "filter": "`.gitattributes` gives them a filter (Git LFS, git-crypt), which the bot does not run",
    "product": "they look like build products (put them into `.gitignore`, or let the agent commit them)",
}


def lfs_beyond(names: Sequence[str]) -> str:
    """These files under Git LFS are too large or too many to be fetched."""
    return f"The agent saw only the Git LFS pointers of {format_list(names)}: there is more than the bot fetches."


def lfs_refused(names: Sequence[str], why: str) -> str:
    """GitHub did not give these files under Git LFS; `why` are the words of git-lfs or of GitHub."""
    return f"The agent saw only the Git LFS pointers of {format_list(names)}: {inline_code(truncate(why))}."


def submodules_empty(empty: Mapping[str, str]) -> str:
    """The reasons why submodules were not filled, by path."""
    paths = {why: [path for path, one in empty.items() if one == why] for why in dict.fromkeys(empty.values())}
    named = "; ".join(f"{format_list(names)} ({why})" for why, names in paths.items())
    return f"The agent worked without the files of these submodules: {named}."


def live_commits(names: Sequence[str]) -> str:
    """The messages of these commits, which the agent wrote, were pushed as they are."""
    return (
        "Messages of the agent's commits mention somebody or close an issue when they are merged: "
        f"{format_list(names)}. Squash or reword them first if that is not wanted."
    )


def stray_work(ref: str, uncovered: Sequence[str]) -> str:
    """The agent left HEAD on commits that do not descend from the branch, whose `.gitignore` hid files `uncovered`."""
    words = (
        "The agent made commits that do not build on this branch. They are kept on the bot's machine as "
        f"{inline_code(ref)}."
    )
    if not uncovered:
        return words
    return (
        f"{words} Files that only those commits ignore are still there: {format_list(uncovered)}. The next request "
        "commits them, unless this branch ignores them too."
    )


def commits_kept(kept: Sequence[str]) -> list[str]:
    """What somebody committed on the bot's machine, beside the bot, is not on the branch."""
    return [
        "Somebody made commits in this worktree on the bot's machine that could not stay on the branch. They are kept "
        f"there as {format_list(kept)}."
    ] * bool(kept)


def unresolved(files: Sequence[str]) -> str:
    return f"Nothing was committed, because a merge has conflicts in {format_list(files)}. The work is kept."


# Files that several threads share


def in_worktree_of(number: int) -> str:
    return f"This request worked on the files of #{number}, which this pull request closes."


def in_worktree_on_branch(owner: int, branch: str) -> str:
    """`owner` is the thread that the files were checked out for."""
    return f"This request worked on the files of #{owner}, which are on {inline_code(branch)} too."


def switched(owner: int, before: str, after: str) -> str:
    """For the pull request whose turn switched the worktree to its branch."""
    return f"The files of #{owner} were switched from {inline_code(before)} to {inline_code(after)} for this request."


def not_shared(instead_of: SharingRefused, branch: str | None, owner: int | None = None) -> str:
    """Say why the request did not run in the worktree of the issue that the pull request closes.

    `branch` is the pull request's; `owner` is the thread of another worktree that has it by now.
    """
    why = _OBSTACLES[instead_of.why].format(
        files=f"The files of #{instead_of.owner}",
        pull=f"#{instead_of.other_pull}",
        branch=inline_code(branch or ""),
    )
    if owner is not None:
        return f"{why}, so this request worked on the files of #{owner}, which are on {inline_code(branch or '')} too."
    where = f" on {inline_code(branch)}" if branch else ""
    return f"{why}, so this request worked on files of its own{where}."


CLOSES_UNKNOWN = (
    "GitHub did not say which issues this pull request closes, so this request worked on files of its own. The next "
    "request asks again."
)


def shared_by_now(number: int) -> str:
    """For a pull request that had a worktree of its own, because GitHub had not said that it closes that issue."""
    return (
        f"GitHub says by now that this pull request closes #{number}, so this request worked on the files of "
        f"#{number}, in a new conversation with the agent."
    )


_OBSTACLES: dict[Misfit, str] = {
    "fork": "{files} are on a branch of this repository, and this pull request comes from a fork",
    "not-made": "{files} are not checked out yet",
    "other-pull": "{files} are also used by {pull}",
    "busy": "{files} are in use by another request",
    "missing": "{files} are missing",
    "uncommitted": "{files} have uncommitted changes",
    "unfinished": "{files} are in the middle of a merge or rebase",
    "off-branch": "{files} are not on their branch",
    "hidden-edits": "{files} have edits that git was told to ignore",
    "only-here": "{files} come with stashed changes or other work that is on no branch on GitHub",
    "not-contained": "{files} have commits that this pull request does not have",
    "branch-gone": "{branch} is no longer on GitHub",
    "branch-elsewhere": "{branch} is checked out elsewhere",
    "branch-diverged": "{branch} has commits on the bot's machine that are not on GitHub",
    "in-the-way": "{files} include some that {branch} would overwrite",
}


# Work that a removal rescued


def restored_before_turn(back: Saved) -> str:
    """`back` is empty where everything was restored already."""
    if not back.files and not back.commits and not back.whole:
        return "This thread's files had been removed. The work that was rescued then is back."
    return f"This thread's files had been removed. {capitalize(restored_clause(back))} restored before this request."


def not_restored_before_turn(why: str) -> str:
    return f"The work that was rescued earlier was not restored: {clause(why)}. `/worktree restore` tries again."


def restore_refused_before_turn(obstacle: str) -> str:
    """`obstacle` is the text of `worktree_replies.restore_obstacle`, which ends with the next step."""
    return f"The work that was rescued earlier was not restored: {obstacle} `/worktree restore` tries again."


def rescued_on(node: str) -> str:
    """`node` is the name of another machine than that of this request."""
    return (
        f"The work that was rescued earlier is on the machine {inline_code(node)} and stays there; this request ran on "
        "another one. `/worktree restore` says how to get it."
    )


# The script `.threadtree/setup`


def setup_failed(how: str, output: str) -> str:
    """`how` is one of the clauses below; `output` is the end of what the script wrote, without secrets."""
    words = f"`.threadtree/setup` {how}. The agent worked without it, and the next request runs the script again."
    return f"{words}\n\n{setup_output(output)}" if output else words


def setup_left(names: Sequence[str], whose: Literal["this", "the next"] = "this") -> str:
    """`names` are the files that the script made or changed and that git does not ignore."""
    return (
        f"`.threadtree/setup` left files that git does not ignore: {format_list(names)}. They count as changes of "
        f"{whose} request; an entry in `.gitignore` keeps them out."
    )


def setup_output(output: str) -> str:
    """`output` is the end of what the script wrote, without secrets."""
    return details("The end of its output", code_block(output))


def setup_disk_full(limit_bytes: int) -> str:
    """Return a clause."""
    return f"was stopped: it used more disk space than a thread may use ({limit_bytes >> 30} GiB)"


SETUP_STOPPED = "was stopped by a request on the thread"
"""A clause."""


def setup_unread(error: Exception) -> str:
    """Return a clause."""
    return f"could not be read ({clause(str(error))})"


def setup_out_of_time(seconds: float) -> str:
    """Return a clause."""
    return f"was stopped after {format_duration(timedelta(seconds=seconds))}"


def setup_not_startable(why: str) -> str:
    """Return a clause."""
    return f"could not be started ({clause(why)})"


def setup_unusable(default_branch: str, limit_bytes: int) -> str:
    """Return a clause."""
    return f"on {inline_code(default_branch)} is not a regular file of at most {limit_bytes >> 20} MiB, and was not run"
