# One image for everything: SuperLink, gate, ServerApp, SuperNodes and the commands.
#
#   docker build -t fedsketch .
#     --build-arg TORCH_BACKEND=cu130      torch for CUDA, or any name that `uv pip install --torch-backend` knows
#     --build-arg TORCH_INDEX=URL          torch from this index instead of PyTorch's own
#     --build-context wheels=DIR           torch from a wheel in this folder: no index but the usual one is needed
#     --build-arg PLUGINS="DIR WHEEL ..."  packages of your own, such as examples/own_task (docs/how-to/extend.md)
#     --build-arg PYTHON_IMAGE=IMAGE       another base image than the pinned one, such as python:3.11-slim
#     --secret id=pip,src=pip.conf         pip's settings for a mirror; they stay out of the image
#
# A plain `pip install torch` brings gigabytes of CUDA. uv knows where PyTorch keeps its builds for each backend; the
# default is `cpu`.
ARG PYTHON_IMAGE=pinned

# python:3.11-slim (Python 3.11.15, for all platforms) as docker-library/repo-info listed it in August 2026. The newest:
# docker buildx imagetools inspect python:3.11-slim
FROM python:3.11-slim@sha256:90744cff8f32887f075c47d747a173ff333e9e98801667af93c357fa9f5e28ff AS pinned

FROM scratch AS wheels

# Only what is asked for by name, so that other changes of pyproject.toml install nothing anew. Nobody simulates
# clients here: without Ray.
FROM ${PYTHON_IMAGE} AS requirements
COPY pyproject.toml /
RUN python -c 'import tomllib; \
        needed = tomllib.load(open("/pyproject.toml", "rb"))["project"]["dependencies"]; \
        print(*needed, sep="\n")' | sed 's/\[simulation\]//' > /all.txt \
    && grep -E '^torch(vision)?==' /all.txt > /torch.txt

FROM ${PYTHON_IMAGE} AS dependencies
ARG TORCH_BACKEND=cpu
ARG TORCH_INDEX=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv --without-pip /opt/venv
COPY docker/constraints.txt /
COPY --from=requirements /torch.txt /
RUN --mount=type=bind,from=wheels,target=/wheels --mount=type=secret,id=pip,target=/root/.config/pip/pip.conf \
    set -e; \
    if ls /wheels/torch-*.whl > /dev/null 2>&1; then \
        pip --python /opt/venv/bin/python install --find-links /wheels -c /constraints.txt -r /torch.txt; \
    elif [ -n "$TORCH_INDEX" ]; then \
        pip --python /opt/venv/bin/python install --index-url "$TORCH_INDEX" -r /torch.txt; \
    else \
        pip install -c /constraints.txt uv; \
        uv pip install --no-cache --compile-bytecode --python /opt/venv/bin/python \
            --torch-backend "$TORCH_BACKEND" -r /torch.txt; \
    fi
COPY --from=requirements /all.txt /
# Tests, headers and tools for building take a fifth of it, and nobody uses them here.
RUN --mount=type=secret,id=pip,target=/root/.config/pip/pip.conf \
    pip --python /opt/venv/bin/python install -c /constraints.txt -r /all.txt \
    && cd /opt/venv/lib/python*/site-packages \
    && find . -type d -name tests -prune -exec rm -rf {} + \
    && find torch/bin -type f ! -name torch_shm_manager -delete \
    && rm -rf torch/include torch/test /opt/venv/bin/uv /opt/venv/bin/uvx

# Editable: the app bundle that goes to the devices is packed from /app.
FROM dependencies AS app
COPY . /app
RUN --mount=type=secret,id=pip,target=/root/.config/pip/pip.conf \
    pip --python /opt/venv/bin/python install --no-deps --prefix /opt/app --editable /app \
    && rm -rf /app/examples /app/docker/plugins \
    && python -m compileall -q /app

# Packages of your own. Each is a folder or a wheel of the build context, never a name that an index could answer.
# What they need comes in the versions that fedsketch has, or the build ends.
FROM dependencies AS plugins
ARG PLUGINS=
COPY --from=app /opt/app /opt/venv
COPY --from=app /app /app
RUN --mount=type=bind,target=/context,rw --mount=type=secret,id=pip,target=/root/.config/pip/pip.conf \
    set -e; mkdir /opt/plugins; cd /context; \
    for one in $PLUGINS; do \
        [ -e "./$one" ] || { echo "PLUGINS: there is no $one below examples or docker/plugins." >&2; exit 1; }; \
        set -- "$@" "./$one"; \
    done; \
    [ $# -eq 0 ] || \
        pip --python /opt/venv/bin/python install -c /constraints.txt -c /torch.txt --prefix /opt/plugins "$@"

FROM ${PYTHON_IMAGE}
RUN useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin fedsketch \
    && install --directory --owner fedsketch --group fedsketch --mode 700 \
        /certs /certs/server /certs/gate /certs/nodes /certs/nodes/0 /certs/nodes/1 /certs/nodes/2 /server /gate \
        /registry /registry/nodes /node /trust /roster /superexec /state /runs /results
COPY --from=dependencies /opt/venv /opt/venv
COPY --from=app /opt/app /opt/venv
COPY --from=plugins /opt/plugins /opt/venv
COPY --from=app /app /app
ENV PATH=/opt/venv/bin:$PATH HOME=/tmp FLWR_HOME=/tmp/flwr MPLCONFIGDIR=/tmp/matplotlib PYTHONUNBUFFERED=1 \
    FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 \
    FEDSKETCH_RUNS=/runs
USER 10001:10001
WORKDIR /tmp
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["python", "/app/docker/healthy.py"]
CMD ["fedsketch", "--help"]
