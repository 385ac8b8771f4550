# An image with the pinned packages, torch with CUDA inside (about 8 GB); without a GPU it runs on the CPU.
#
#   docker build --tag capsbench .
#   docker run --rm --gpus all --volume "$PWD/results:/capsbench/results" --volume "$PWD/data:/capsbench/data" \
#     capsbench --configfile configs/quick.yaml
FROM python:3.12-slim-bookworm

# git gives the commit that is noted in every run.yaml
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends --yes git \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /capsbench
COPY requirements.txt .
RUN pip install --no-cache-dir --require-hashes --requirement requirements.txt
COPY . .
RUN pip install --no-cache-dir --no-deps --editable . \
    && git config --system --add safe.directory /capsbench

ENV CAPSBENCH_DATA=/capsbench/data \
    MLFLOW_DISABLE_TELEMETRY=true
ENTRYPOINT ["snakemake", "--cores", "all"]
CMD ["--configfile", "configs/quick.yaml"]
