# The baseline of bake_vs_uv.py: the lock's closure the way one would do it by hand: one `uv pip install`, then export.
#
# Contexts: `os`, as the other side has it; `uv`, the folder of the program; `lock`, requirements.txt with all hashes.
FROM os
RUN --mount=type=bind,from=uv,source=uv,target=/run/uv --mount=type=bind,from=lock,target=/run/lock \
    --mount=type=secret,id=uv_toml,target=/run/secrets/uv_toml --mount=type=secret,id=ca,target=/run/secrets/ca \
    UV_CONFIG_FILE=/run/secrets/uv_toml SSL_CERT_FILE=/run/secrets/ca UV_CACHE_DIR=/opt/verl/.uv \
    /run/uv pip install --python /opt/verl --no-deps --require-hashes --compile-bytecode \
        --requirements /run/lock/requirements.txt && \
    rm -rf /opt/verl/.uv
