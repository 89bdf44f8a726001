# With gsplat compiled for the listed architectures: docker build -f docker/gpu.Dockerfile -t real2sim:gpu .
FROM pytorch/pytorch:2.8.0-cuda12.8-cudnn9-devel
ARG TORCH_CUDA_ARCH_LIST="8.0;8.6;8.9;9.0"
ENV TORCH_CUDA_ARCH_LIST=${TORCH_CUDA_ARCH_LIST}
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/real2sim
COPY . .
RUN pip install --no-cache-dir ".[all,gpu]" && python -c "from gsplat.cuda._backend import _C; assert _C is not None"
WORKDIR /data
ENTRYPOINT ["real2sim"]
