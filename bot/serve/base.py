"""What every process of the bot needs, and little to import: the web process has nothing else of this room."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from bot import logs
from bot.node.variables import secrets_in
from bot.redaction import Redactor
from bot.settings import Settings, known_secrets
from bot.store.database import Connection
from bot.store.migrate import MigrationError, missing_migrations

if TYPE_CHECKING:
    from bot.operator.api.calls import ApiContext


class CannotStartError(Exception):
    """The process cannot start with these settings; the message names the next step."""


def redactor_of(settings: Settings) -> Redactor:
    """Return what knows the secrets of this process; from now on the log holds none of them, nor of any repository."""
    places = {str(settings.data_dir.absolute()), str(settings.data_dir.resolve())}
    redactor = Redactor(known_secrets(settings), places=places)
    logs.redact_with(Redactor(secrets_in(settings.data_dir), parent=redactor))
    return redactor


def api_context(settings: Settings) -> "ApiContext":
    """Return what the API's handlers need besides rows."""
    from bot.operator.api.calls import ApiContext  # it takes memory

    return ApiContext(
        platform=settings.platform,
        server_url=settings.github_server_url,
        data_dir=settings.data_dir,
        rescues_kept_for=timedelta(days=settings.rescue_expiry_days),
        sessions_kept_for=timedelta(seconds=settings.session_ttl_seconds),
        clock=lambda: datetime.now(UTC),
    )


async def require_current_schema(connection: Connection) -> None:
    """Raise CannotStartError unless the database has this version's schema."""
    try:
        missing = await missing_migrations(connection)
    except MigrationError as problem:
        raise CannotStartError(str(problem)) from problem
    if missing:
        raise CannotStartError(f"The database's schema is old, {missing[0]} is missing; run `threadtree migrate`.")
