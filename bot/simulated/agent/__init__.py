"""A scripted agent: speaks the Agent Client Protocol on stdio and does what the lines of a request say.

`python -m bot.simulated.agent [--resume] [--no-load]` stands in for an AI agent in the demo and the tests. The
request is the last block of the prompt; a leading `@name` is not part of it. Each line can be a command:

    write PATH: TEXT     append PATH: TEXT     commit MESSAGE     switch BRANCH
    say TEXT             long BYTES            plan A | B | C     cost AMOUNT (in USD)
    remember WORD        recall                env (names only)   echo prompt
    permission           wait FILE             hang               hang deaf
    fail TEXT            crash STATUS          stop REASON        empty
    junk                 stderr TEXT

`wait` goes on when the file exists; `hang` ends when cancelled, `hang deaf` only when killed; `junk` goes to stdout.
Other lines are left alone, and a request that was answered by nothing is acknowledged with its first line. Sessions
are kept in `$HOME/.scripted-agent/<session id>.json`. It runs git, and nothing of the directory it works in.

The protocol is written out on the standard library: the tests start this program often, so it must start fast.
"""
