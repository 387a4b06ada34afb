# A server. docs/operating.md ("In a container") says how to run it; `docker build --tag weir .` makes it.

FROM debian:trixie-slim AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
# The version that the Makefile has.
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir uv==0.13.8
WORKDIR /src
COPY LICENSE NOTICE README.md pyproject.toml uv.lock ./
COPY scanner scanner
COPY spark_source spark_source
COPY pyspark_weir pyspark_weir
COPY transport transport
COPY weir weir
# What uv.lock pins, and weir itself as a wheel.
RUN UV_PROJECT_ENVIRONMENT=/opt/weir UV_PYTHON_DOWNLOADS=never UV_COMPILE_BYTECODE=1 \
    /opt/uv/bin/uv sync --frozen --no-default-groups --no-editable --extra server --no-cache

FROM debian:trixie-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 weir \
    && useradd --uid 10001 --gid weir --no-create-home --shell /usr/sbin/nologin weir \
    && install --directory --owner weir --group weir --mode 0700 /var/lib/weir
COPY --from=build /opt/weir /opt/weir
# WEIR_HEALTH: options of `weir health`, where the server speaks TLS.
ENV PATH=/opt/weir/bin:$PATH PYTHONUNBUFFERED=1 WEIR_HEALTH=
# By number, so that an orchestrator can see that it is not root.
USER 10001:10001
WORKDIR /var/lib/weir
VOLUME /var/lib/weir
EXPOSE 9123 9124
# Drains: running calls may finish within --drain-timeout, which is half of what `docker stop` waits.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s CMD weir health $WEIR_HEALTH || exit 1
ENTRYPOINT ["weir"]
# Beyond the container's own loopback a server wants TLS and credentials, or --insecure-bind-any.
CMD ["serve", "--data", "/var/lib/weir", "--host", "0.0.0.0", "--log-format", "json"]
