# The baseline of compose_vs_buildkit.py: the same closure, the way it is done without verlstack, and as fast as that goes.
#
# Contexts, all local, so that no network plays a part: the image `base` (Debian, a C compiler, Python), `uv` (the folder
# that holds the program), `wheels` (every wheel of the lock, the built ones too, and requirements.txt with all hashes).
# uv's cache lies on the file system of the venv: files are linked, not copied, which is the fastest there is.
# No `# syntax=` line: the frontend image would have to be pulled; the engine's own knows all that is used here.
FROM base
ARG PYTHON=python3.10
RUN --mount=type=bind,from=uv,source=uv,target=/run/uv \
    --mount=type=bind,from=wheels,target=/run/wheels \
    /run/uv venv --quiet --clear --python "/usr/local/bin/$PYTHON" /opt/verl && \
    UV_CACHE_DIR=/opt/verl/.uv /run/uv pip install --python /opt/verl --offline --no-deps --no-index --find-links /run/wheels \
        --require-hashes --compile-bytecode --requirements /run/wheels/requirements.txt && \
    rm -rf /opt/verl/.uv
ENV PATH=/opt/verl/bin:$PATH VIRTUAL_ENV=/opt/verl
