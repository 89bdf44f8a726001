# The whole pipeline without a GPU: docker build -f docker/cpu.Dockerfile -t real2sim:cpu .
FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/real2sim
COPY . .
# PIP_ARGS may name an index that serves CPU builds of torch; without one the CUDA build is installed, which also runs.
ARG PIP_ARGS=""
RUN pip install --no-cache-dir ${PIP_ARGS} torch && pip install --no-cache-dir ".[all]"
WORKDIR /data
ENTRYPOINT ["real2sim"]
