"""Plain English for the scripted agent: what people write in the demo, as commands."""

import re

_FORMS = (
    (
        r"[Ww]rite “(?P<text>[^”]+)” into (?P<file>[\w./-]*\w)",
        "write {file}: {text}\nsay I wrote “{text}” into {file}.",
    ),
    (r"[Aa]dd “(?P<text>[^”]+)” to (?P<file>[\w./-]*\w)", "append {file}: {text}\nsay I added “{text}” to {file}."),
    (r"[Pp]lease remember that (?P<fact>[^.]+)\.", "remember {fact}"),
    (r"What did I ask you to remember\?", "recall"),
    (r"Tell me what you do: (?P<first>[^.]+?), then (?P<then>[^.]+)\.", "plan {first} | {then}"),
    (r"Begin when the file (?P<file>\w+) is there\.", "wait {file}"),
    (r"Then fail: (?P<why>[^.]+)\.", "fail {why}"),
    (r"Wait until I stop you\.", "hang"),
    (
        r"Let our customers (?P<what>[^.]+)\.",
        "say 1. Say on the first page that customers can {what}.\n"
        "say 2. Write down in a file of its own what it costs.\n"
        "say 3. Extend the check, so that neither gets lost.",
    ),
)


def commands_in(line: str) -> list[str]:
    """Return what a line of plain English asks for, in the order of its sentences; nothing for any other line."""
    found = [(one.start(), form.format(**one.groupdict())) for what, form in _FORMS for one in re.finditer(what, line)]
    return [command for _, form in sorted(found) for command in form.splitlines()]
