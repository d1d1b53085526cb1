"""Rows of a bot that has worked: worktrees, sessions, turns and deliveries of two repositories."""

from tests.support.asks import ask

A_PAST = f"""
insert into codebases (platform, repository_id, owner, name, folder)
values ('github.com', 1, 'octo', 'hello', 'octo/hello'), ('github.com', 2, 'octo', 'world', 'octo/world');
insert into nodes (id, name) values ('here', 'here');
insert into worktrees (platform, repository_id, node, path, branch, start_kind, start_number, state,
                       created_at, updated_at)
values ('github.com', 1, 'here', 'worktrees/octo/hello/issue-1',
        'threadtree/issue-1', 'issue', 1, 'ready', '2026-05-01 12:00+02', '2026-05-01 12:30+02'),
       ('github.com', 2, 'here', 'worktrees/octo/world/issue-9', null, 'issue', 9, 'removed',
        '2026-05-02 12:00+00', '2026-05-02 12:00+00');
insert into conversations (platform, repository_id, number, kind, worktree_id, title)
values ('github.com', 1, 4, 'pull', 1, 'Mend the login'), ('github.com', 1, 1, 'issue', 1, 'Login loops'),
       ('github.com', 2, 9, 'issue', null, '');
insert into sessions (conversation_id, agent, assistant_session_id, active, created_at, last_active_at, ended_at,
                      end_reason)
values (2, 'custom', 'abc', false, '2026-05-01 10:00Z', '2026-05-01 10:05Z', '2026-05-01 11:00Z', 'reset-requested'),
       (2, 'custom', null, true, '2026-05-01 11:00Z', '2026-05-01 11:05Z', null, null);
insert into turns (conversation_id, state, reason, requested_by_id, started_at, finished_at)
values (2, 'done', null, 7, '2026-05-01 10:00Z', '2026-05-01 10:05Z'),
       (1, 'failed', 'The agent ended without an answer. Ask again with /retry.', 7,
        '2026-05-01 10:10Z', '2026-05-01 10:15Z'),
       (3, 'queued', null, 8, null, null);
insert into requests (turn_id, conversation_id, ask)
values (1, 2, {ask("one", target="11")}), (2, 1, {ask("two", target="12")}), (3, 3, {ask("three", "bob", "issue")});
insert into steps (turn_id, place, words, output) values (1, 1, 'make test', '60 passed');
update turns set outcome = '{{"came": "changed", "asked": false, "check": {{"state": "failed", "tests": 3, "failed": 2,
                              "new": 1, "skipped": 0, "seconds": 1.5}}}}' where id = 1;
update turns set agent = 'custom', model = 'a-model', cost_usd = 0.25, tokens = 1200, created_at = '2026-05-01 09:59Z'
where id = 1;
insert into outbox (writer, conversation_id, kind, turn_id, part, urgency, target_kind, target_id, content, comment_url)
values ('github.com/token', 2, 'reaction', 1, null, 0, 'comment', 11, 'eyes', null),
       ('github.com/token', 2, 'comment', 1, 1, 1, 'issue', null, 'the answer', 'https://github.com/octo/hello/issues/1#c1'),
       ('github.com/token', 2, 'comment', 1, 2, 1, 'issue', null, 'its rest', 'https://github.com/octo/hello/issues/1#c2'),
       ('github.com/token', 1, 'comment', 2, 1, 1, 'pull', null, 'not posted yet', null);
insert into deliveries (guid, event, action, conversation, lock_key, state, body, received_at, attempts, error)
values ('11111111-aaaa-4bbb-8ccc-dddddddddddd', 'ping', null, null, null, 'ignored', null,
        '2026-05-01 09:00Z', 0, null),
       ('22222222-aaaa-4bbb-8ccc-dddddddddddd', 'issue_comment', 'created', 'octo/hello#1', 'github.com/1#1', 'failed',
        '{{}}', '2026-05-01 10:00Z', 3, 'GitHub answered 502');
"""  # noqa: S608 -- a test's own
