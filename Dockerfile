# lapae on a CPU:  docker build -t lapae .   docker run --rm -v "$PWD:/data" lapae train customers.csv
FROM python:3.12-slim

# torch's CPU wheels: the default ones bring gigabytes of CUDA
RUN pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu
COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN pip install --no-cache-dir "/src[export,parquet]" && useradd --create-home lapae
USER lapae
WORKDIR /data
# the explorer is reached from outside with: docker run -p 8765:8765 … explore RUN --host 0.0.0.0 --no-open
EXPOSE 8765
ENTRYPOINT ["lapae"]
CMD ["--help"]
