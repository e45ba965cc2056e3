# The image of a lock, built by BuildKit: what must be compiled is compiled here, and uv builds the composer's tree anew.
#
#   docker buildx bake -f docker/docker-bake.hcl -f constraints/cu121.bake.json        builds target `runtime`
#
#   os ── base ─┬─ tools ── installer ─┬─ layer-torch ───────┐    one layer's wheels each, by hash
#               │                      ├─ … ─────────────────┤
#               │                      ├─ layer-verl ────────┤    its wheel from stage `verl`
#               │                      ├─ layer-flash-attn ──┤    empty, unless the lock pins a wheel
#               │                      └─ layer-smoke ───────┴─ runtime ── devel (runtime and toolchain)
#               ├─ build ─┬─ verl ────── verl's wheel, from its tagged source, --no-build-isolation
#               │         └─ sdists ──── wheels of packages that exist only as source
#               └─ toolchain ── flash-attn ── its wheel; compiled only when asked for (target `flash-attn`)
#
# No version stands here: all come from the lock through docker/docker-bake.hcl. Each layer's argument holds its own pins,
# so a bump of one pin runs one stage again. All layers are one build: bake's links between targets would build them
# apart, and BuildKit 0.13 gives up on those whose layers it cannot compress in 20 s (moby/buildkit issue 4327). There is
# no `# syntax=` line: the frontend image would have to be pulled, and the engine's own knows all that is used here.

ARG OS

# The operating system: Python X.Y, a C compiler, certificates, what an admin adds, and an empty venv in /opt/verl.
FROM ${OS:?not-set,build-with:docker-buildx-bake,see-the-first-lines-of-Dockerfile} AS base
ARG PYTHON PACKAGES SOURCE_DATE_EPOCH
ENV PATH=/opt/verl/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
RUN --mount=type=bind,source=docker/base.sh,target=/run/docker/base.sh \
    --mount=type=secret,id=apt_sources --mount=type=secret,id=ca --mount=type=secret,id=proxy \
    /run/docker/base.sh

# What stands in for contexts that bake need not give: pip for a base without it, compiled wheels, a compile's source.
FROM scratch AS pip
FROM scratch AS wheelhouse
FROM scratch AS extension-source
FROM scratch AS debs

FROM base AS tools
ARG UV
RUN --mount=type=bind,source=docker/tools-in-image.sh,target=/run/docker/tools-in-image.sh \
    --mount=type=bind,source=docker/base.sh,target=/run/docker/base.sh \
    --mount=type=bind,from=pip,target=/run/pip \
    --mount=type=secret,id=apt_sources --mount=type=secret,id=proxy \
    --mount=type=secret,id=pip_conf --mount=type=secret,id=ca \
    /run/docker/tools-in-image.sh

# ---- Wheels built from source

FROM base AS build
ARG BUILD_TOOLS SOURCE_DATE_EPOCH
RUN --mount=type=bind,source=docker/build-env.sh,target=/run/docker/build-env.sh \
    --mount=type=bind,from=tools,source=tools,target=/run/tools \
    --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    REQUIREMENTS="${BUILD_TOOLS}" /run/docker/build-env.sh

FROM build AS verl
ARG VERL_WHEEL_SHA256 VERL_STRIP
RUN --mount=type=bind,source=docker/sources.sh,target=/run/docker/sources.sh \
    --mount=type=bind,from=verl-source,target=/run/source \
    STRIP="${VERL_STRIP}" /run/docker/sources.sh /run/source "${VERL_WHEEL_SHA256}"

FROM build AS sdists
ARG SDISTS
RUN --mount=type=bind,source=docker/sources.sh,target=/run/docker/sources.sh \
    --mount=type=secret,id=pip_conf --mount=type=secret,id=ca \
    /run/docker/sources.sh -

# ---- One stage a layer. An argument holds lines `name==version --hash=sha256:…`; empty: not in this stack.

FROM base AS installer
ARG PYTHON
ENV PYTHON=${PYTHON}
COPY --from=tools /tools/uv /run/tools/uv
COPY docker/wheels.sh docker/finish.py src/verlstack/pyc_worker.py /run/docker/

FROM installer AS layer-torch
ARG TORCH
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${TORCH}"

FROM installer AS layer-nvidia-cudnn-cu12
ARG NVIDIA_CUDNN_CU12
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${NVIDIA_CUDNN_CU12}"

FROM installer AS layer-nvidia-cublas-cu12
ARG NVIDIA_CUBLAS_CU12
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${NVIDIA_CUBLAS_CU12}"

FROM installer AS layer-nvidia-cusparse-cu12
ARG NVIDIA_CUSPARSE_CU12
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${NVIDIA_CUSPARSE_CU12}"

FROM installer AS layer-nvidia-nccl-cu12
ARG NVIDIA_NCCL_CU12
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${NVIDIA_NCCL_CU12}"

FROM installer AS layer-triton
ARG TRITON
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${TRITON}"

FROM installer AS layer-nvidia-cusolver-cu12
ARG NVIDIA_CUSOLVER_CU12
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${NVIDIA_CUSOLVER_CU12}"

FROM installer AS layer-nvidia-cufft-cu12
ARG NVIDIA_CUFFT_CU12
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${NVIDIA_CUFFT_CU12}"

FROM installer AS layer-ray
ARG RAY
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${RAY}"

FROM installer AS layer-libs
ARG LIBS
RUN --mount=type=bind,from=sdists,source=out,target=/run/built --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${LIBS}"

FROM installer AS layer-nvidia-curand-cu12
ARG NVIDIA_CURAND_CU12
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${NVIDIA_CURAND_CU12}"

FROM installer AS layer-pyarrow
ARG PYARROW
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${PYARROW}"

FROM installer AS layer-wandb
ARG WANDB
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${WANDB}"

FROM installer AS layer-nvidia-nvjitlink-cu12
ARG NVIDIA_NVJITLINK_CU12
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${NVIDIA_NVJITLINK_CU12}"

FROM installer AS layer-cloud
ARG CLOUD
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${CLOUD}"

FROM installer AS layer-numpy
ARG NUMPY
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${NUMPY}"

FROM installer AS layer-pandas
ARG PANDAS
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${PANDAS}"

FROM installer AS layer-transformers
ARG TRANSFORMERS
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${TRANSFORMERS}"

FROM installer AS layer-setuptools
ARG SETUPTOOLS
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${SETUPTOOLS}"

FROM installer AS layer-tensordict
ARG TENSORDICT
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${TENSORDICT}"

FROM installer AS layer-datasets
ARG DATASETS
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${DATASETS}"

FROM installer AS layer-pytest
ARG PYTEST
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${PYTEST}"

FROM installer AS layer-accelerate
ARG ACCELERATE
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${ACCELERATE}"

FROM installer AS layer-peft
ARG PEFT
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${PEFT}"

FROM installer AS layer-pybind11
ARG PYBIND11
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${PYBIND11}"

FROM installer AS layer-hydra-core
ARG HYDRA_CORE
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${HYDRA_CORE}"

FROM installer AS layer-pylatexenc
ARG PYLATEXENC
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${PYLATEXENC}"

FROM installer AS layer-click
ARG CLICK
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${CLICK}"

FROM installer AS layer-dill
ARG DILL
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${DILL}"

FROM installer AS layer-einops
ARG EINOPS
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${EINOPS}"

FROM installer AS layer-codetiming
ARG CODETIMING
RUN --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${CODETIMING}"

FROM installer AS layer-flash-attn
ARG FLASH_ATTN
RUN --mount=type=bind,from=wheelhouse,target=/run/built --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${FLASH_ATTN}"

FROM installer AS layer-verl
ARG VERL
RUN --mount=type=bind,from=verl,source=out,target=/run/built --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    /run/docker/wheels.sh "${VERL}"

FROM installer AS layer-smoke
COPY smoke_tests/ /out/opt/verlstack/smoke_tests/
COPY src/verldoctor/ /out/opt/verlstack/verldoctor/
COPY --chmod=0755 src/verldoctor/launcher.py /out/opt/verl/bin/verldoctor
RUN /run/docker/wheels.sh ""

# ---- The image

FROM base AS runtime
ARG TORCH_COMPILE_DISABLE NVIDIA_REQUIRE_CUDA VERLSTACK_STACK
ENV VIRTUAL_ENV=/opt/verl \
    USER=verl \
    HOME=/tmp \
    LANG=C.UTF-8 \
    PYTHONNOUSERSITE=1 \
    XDG_CACHE_HOME=/tmp/.cache \
    HF_HOME=/tmp/.cache/huggingface \
    TRITON_CACHE_DIR=/tmp/.cache/triton \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    TORCH_COMPILE_DISABLE=${TORCH_COMPILE_DISABLE} \
    NVIDIA_REQUIRE_CUDA=${NVIDIA_REQUIRE_CUDA} \
    VERLSTACK_STACK=${VERLSTACK_STACK}
COPY --link --from=layer-torch /out/ /
COPY --link --from=layer-nvidia-cudnn-cu12 /out/ /
COPY --link --from=layer-nvidia-cublas-cu12 /out/ /
COPY --link --from=layer-nvidia-cusparse-cu12 /out/ /
COPY --link --from=layer-nvidia-nccl-cu12 /out/ /
COPY --link --from=layer-triton /out/ /
COPY --link --from=layer-nvidia-cusolver-cu12 /out/ /
COPY --link --from=layer-nvidia-cufft-cu12 /out/ /
COPY --link --from=layer-ray /out/ /
COPY --link --from=layer-libs /out/ /
COPY --link --from=layer-nvidia-curand-cu12 /out/ /
COPY --link --from=layer-pyarrow /out/ /
COPY --link --from=layer-wandb /out/ /
COPY --link --from=layer-nvidia-nvjitlink-cu12 /out/ /
COPY --link --from=layer-cloud /out/ /
COPY --link --from=layer-numpy /out/ /
COPY --link --from=layer-pandas /out/ /
COPY --link --from=layer-transformers /out/ /
COPY --link --from=layer-setuptools /out/ /
COPY --link --from=layer-tensordict /out/ /
COPY --link --from=layer-datasets /out/ /
COPY --link --from=layer-pytest /out/ /
COPY --link --from=layer-accelerate /out/ /
COPY --link --from=layer-peft /out/ /
COPY --link --from=layer-pybind11 /out/ /
COPY --link --from=layer-hydra-core /out/ /
COPY --link --from=layer-pylatexenc /out/ /
COPY --link --from=layer-click /out/ /
COPY --link --from=layer-dill /out/ /
COPY --link --from=layer-einops /out/ /
COPY --link --from=layer-codetiming /out/ /
COPY --link --from=layer-flash-attn /out/ /
COPY --link --from=layer-verl /out/ /
COPY --link --from=layer-smoke /out/ /
WORKDIR /
CMD ["bash"]

# ---- Compiling against torch and CUDA

# nvcc of the stack's CUDA (or of another minor release of the same major, said in a warning), and g++.
FROM base AS toolchain
ARG CUDA
ENV CUDA_HOME=/usr/local/cuda
RUN --mount=type=bind,source=docker/toolchain.sh,target=/run/docker/toolchain.sh \
    --mount=type=bind,source=docker/base.sh,target=/run/docker/base.sh \
    --mount=type=bind,from=cuda,source=usr/local,target=/run/cuda \
    --mount=type=bind,from=debs,target=/run/debs \
    --mount=type=secret,id=apt_sources --mount=type=secret,id=ca --mount=type=secret,id=proxy \
    /run/docker/toolchain.sh /run/cuda /run/debs

FROM toolchain AS compile
ARG COMPILE_REQUIREMENTS SOURCE_DATE_EPOCH
RUN --mount=type=bind,source=docker/build-env.sh,target=/run/docker/build-env.sh \
    --mount=type=bind,from=tools,source=tools,target=/run/tools \
    --mount=type=secret,id=uv_toml --mount=type=secret,id=ca \
    REQUIREMENTS="${COMPILE_REQUIREMENTS}" /run/docker/build-env.sh
# What was compiled stays in a cache of BuildKit's, so that a stopped compile goes on.
ARG CUDA_ARCHS EXTENSION MAX_JOBS COMPILE_KEY
RUN --mount=type=cache,target=/build,id=verlstack-compile-${COMPILE_KEY},sharing=locked \
    --mount=type=bind,source=docker/flash-attn.sh,target=/run/docker/flash-attn.sh \
    --mount=type=bind,source=docker/nvcc.py,target=/run/docker/nvcc.py \
    --mount=type=bind,from=extension-source,target=/run/source \
    --mount=type=secret,id=pip_conf --mount=type=secret,id=ca \
    /run/docker/flash-attn.sh /run/source /build /out

FROM scratch AS flash-attn
COPY --from=compile /out/ /

# What installing the compiler changed: files, dpkg's account of them, and the links of update-alternatives.
FROM runtime AS devel
ENV CUDA_HOME=/usr/local/cuda
COPY --link --from=toolchain /usr/ /usr/
COPY --link --from=toolchain /var/lib/dpkg/ /var/lib/dpkg/
COPY --link --from=toolchain /etc/alternatives/ /etc/alternatives/
