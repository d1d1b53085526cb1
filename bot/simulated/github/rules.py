"""Rules of rulesets, by type, and the hook that refuses pushes in GitHub's words.

https://docs.github.com/repositories/configuring-branches-and-merges-in-your-repository/managing-rulesets/available-rules-for-rulesets
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import join, quote

SIGNERS = "allowed_signers"
"""A file beside the repositories: who signs with which key."""
VERDICT = ("-c", f"gpg.ssh.allowedSignersFile=../{SIGNERS}", "log", "-1", "--format=%G? %GS %ce")
"""A command of git that tells what it thinks of a commit's signature, who signed, and who committed."""
NEW = '$(git rev-list "$new" --not --all)'
BROKEN: Mapping[str, tuple[str, str]] = {
    "creation": ('[ "$old" = "$none" ]', "Cannot create ref due to creations being restricted."),
    "update": ('[ "$old" != "$none" ] && [ "$new" != "$none" ]', "Cannot update this protected ref."),
    "deletion": ('[ "$new" = "$none" ]', "Cannot delete this protected ref."),
    "non_fast_forward": (
        '[ "$old" != "$none" ] && ! git merge-base --is-ancestor "$old" "$new"',
        "Cannot force-push to this branch",
    ),
    "pull_request": ("true", "Changes must be made through a pull request."),
    "merge_queue": ("true", "Changes must be made through the merge queue"),
    "required_linear_history": (
        '[ -n "$(git rev-list --min-parents=2 "$new" --not --all)" ]',
        "This branch must not contain merge commits.",
    ),
    "required_signatures": (
        f'for one in {NEW}; do git {join(VERDICT)} "$one" | grep -qx "G \\(.*\\) \\1" || break; one=; done; '
        '[ -n "$one" ]',
        "Commits must have verified signatures.",
    ),
    "commit_message_pattern": (
        f'for one in {NEW}; do git log -1 --format=%B "$one" | grep -Eq -- {{pattern}} || break; one=; done; '
        '[ -n "$one" ]',
        "Commit message must match a given regex pattern: {pattern}",
    ),
    "branch_name_pattern": (
        '! echo "$branch" | grep -Eq -- {pattern}',
        "Branch name must match a given regex pattern: {pattern}",
    ),
}
"""For each type the condition, in the shell, under which a push breaks it, and what GitHub then says."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of a ruleset: its type, the pattern of the branches that it is for, and its parameters."""

    type: str
    branches: str
    parameters: Mapping[str, str]


def write_hook(repository: Path, rules: Sequence[Rule], full_name: str) -> None:
    """Let a bare repository refuse the pushes that break one of the rules."""
    checks = []
    for rule in rules:
        condition, words = BROKEN[rule.type]
        pattern = rule.parameters.get("pattern", "")
        broken = condition.replace("{pattern}", quote(pattern))
        said = quote("- " + words.replace("{pattern}", pattern))
        checks.append(f'case "$branch" in {rule.branches}) one=; if {broken}; then say {said}; fi;; esac')
    page = quote(f"Review all repository rules at https://github.com/{full_name}/rules?ref=refs%2Fheads%2F")
    hook = repository / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(
        f"""#!/bin/sh
none=0000000000000000000000000000000000000000 failed=0
say() {{
    if [ $failed = 0 ]; then
        printf 'error: GH013: Repository rule violations found for %s.\\n' "$ref" >&2
        printf '%s\\n\\n' {page}"$branch" >&2
    fi
    printf '%s\\n\\n' "$1" >&2
    failed=1
}}
while read old new ref; do
    case "$ref" in refs/heads/*) branch=${{ref#refs/heads/}};; *) continue;; esac
    {chr(10).join(checks)}
done
exit $failed
"""
    )
    hook.chmod(0o755)
