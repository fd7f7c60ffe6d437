# dsv4check in a container: docker run --rm -v "$PWD:/work" dsv4check gate .
FROM python:3.12-slim
COPY pyproject.toml README.md LICENSE /src/
COPY dsv4check /src/dsv4check
COPY rules /src/rules
# With NVML, so that it can ask the driver which GPU it runs beside.
RUN pip install --no-cache-dir --disable-pip-version-check "/src[gpu]" \
 && rm -rf /src \
 && useradd --create-home --uid 10001 dsv4check
USER dsv4check
WORKDIR /work
ENTRYPOINT ["dsv4check"]
