"""What a repository's rules on GitHub make of the bot's pushes, before there is one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bot.cli.doctor.services import Check
from bot.github.answers import BranchRule

# https://docs.github.com/rest/repos/rules#get-rules-for-a-branch
_REFUSE = ("creation", "update", "pull_request", "merge_queue")
_SIGNATURES, _LINEAR, _NAMES = "required_signatures", "required_linear_history", "branch_name_pattern"
_OF_EACH_PUSH = ("file_path_restriction", "max_file_path_length", "file_extension_restriction", "max_file_size")
_HARMLESS = ("deletion", "non_fast_forward", "copilot_code_review", "tag_name_pattern")
_OPERATORS: Mapping[str, Callable[[str, str], bool]] = {
    "starts_with": str.startswith,
    "ends_with": str.endswith,
    "contains": str.__contains__,
}
"""Those of patterns; a regular expression is GitHub's own to judge."""


def pushes_check(full_name: str, branch: str, rules: Sequence[BranchRule] | None, *, signs: bool) -> Check:
    """Return whether these rules of rulesets take the bot's pushes to such a branch; None where GitHub tells none.

    `signs`: the bot's commits are signed.
    """
    name = f"pushes to {full_name}"
    if rules is None:
        found = (
            f"GitHub does not tell the rules for branches such as `{branch}`: whether they take pushes shows the first"
        )
        return Check(name, "warning", found, "Give the bot `Metadata: read`, which GitHub asks for.")
    by_type = {rule.type: rule for rule in rules}
    judged = {_NAMES: _fits(by_type[_NAMES].parameters, branch)} if _NAMES in by_type else {}
    refused = [one for one in (*_REFUSE, *(() if signs else (_SIGNATURES,))) if one in by_type]
    refused += [one for one, fits in judged.items() if fits is False]
    known = (*_REFUSE, _SIGNATURES, _LINEAR, *_OF_EACH_PUSH, *_HARMLESS)
    unsure = [_shown(by_type[one]) for one in by_type if one not in known and judged.get(one) is None]
    if refused:
        shown = ", ".join(_shown(by_type[one]) for one in refused)
        found = f"rules of the repository refuse them for branches such as `{branch}`: {shown}"
        where = f"Take the branches `{branch.removesuffix('issue-1')}…` out of these rules, in its settings on GitHub"
        step = f"{where}, or set BRANCH_PREFIX to names that they allow. Until then answers show the edits as a patch."
        if refused == [_SIGNATURES]:
            step = "Set SIGN_COMMITS: docs/connect.md. Until then answers show the edits as a patch."
        return Check(name, "problem", found, step)
    if unsure:
        found = f"rules of the repository may refuse some to branches such as `{branch}`: {', '.join(unsure)}"
        step = "GitHub judges each push, and an answer quotes what it says. Tell agents of such rules in AGENTS.md."
        return Check(name, "warning", found, step)
    each = [one for one in (_LINEAR, *_OF_EACH_PUSH) if one in by_type]
    but = f"; each one is judged by {', '.join(map(_quoted, each))}" if each else ""
    return Check(name, "ok", f"no ruleset refuses them to branches such as `{branch}`{but}")


def _fits(parameters: Mapping[str, Any], text: str) -> bool | None:
    """Return whether the text fits a rule's pattern; None where GitHub alone can tell."""
    compare, pattern = _OPERATORS.get(parameters.get("operator", "")), parameters.get("pattern")
    if compare is None or not isinstance(pattern, str):
        return None
    return compare(text, pattern) != bool(parameters.get("negate"))


def _shown(rule: BranchRule) -> str:
    pattern = rule.parameters.get("pattern")
    if not isinstance(pattern, str):
        return _quoted(rule.type)
    how = "not " if rule.parameters.get("negate") else ""
    how += str(rule.parameters.get("operator", "regex")).replace("_", " ")
    return f"{_quoted(rule.type)} ({how} {_quoted(pattern)})"


def _quoted(text: str) -> str:
    return f"`{text}`"
