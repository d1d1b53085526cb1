"""Requests for tests that write rows."""


def ask(text: str = "do it", login: str = "ada", kind: str = "comment", target: str = "null", at: str = "now()") -> str:
    """Return a stored request as an expression of SQL; the `target`'s id and the time `at` are expressions too."""
    return (
        f"jsonb_build_object('text', '{text}', 'by', jsonb_build_object('login', '{login}', 'id', 7), 'at', {at},"
        f" 'target', jsonb_build_object('kind', '{kind}', 'id', {target}), 'verb', 'work')"
    )


def asks(turns: str, text: str = "do it", login: str = "ada", kind: str = "comment", at: str = "now()") -> str:
    """Return the statement that writes the same request of each of these turns."""
    made = ask(text, login, kind, at=at)
    return f"insert into requests (turn_id, conversation_id, ask) select id, conversation_id, {made} from {turns}"  # noqa: S608 -- a test's own
