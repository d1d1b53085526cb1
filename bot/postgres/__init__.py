"""The embedded Postgres for machines without one."""
