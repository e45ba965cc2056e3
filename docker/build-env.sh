#!/usr/bin/env bash
# Puts the pinned build tools, and whatever a compile links against, into the venv of a build stage, by hash.
#
# Environment: REQUIREMENTS, lines `name==version --hash=sha256:…`; SOURCE_DATE_EPOCH. Mounts and secrets as in wheels.sh.
set -euo pipefail
umask 022
export UV_CACHE_DIR=/opt/verl/.uv UV_NO_PROGRESS=1
[[ ! -s /run/secrets/uv_toml ]] || export UV_CONFIG_FILE=/run/secrets/uv_toml
[[ ! -s /run/secrets/ca ]] || export SSL_CERT_FILE=/run/secrets/ca
printf '%s\n' "$REQUIREMENTS" >/tmp/requirements.txt
/run/tools/uv pip install --quiet --python /opt/verl/bin/python --no-deps --only-binary :all: --require-hashes \
	--requirements /tmp/requirements.txt
rm -rf /opt/verl/.uv /tmp/requirements.txt
# A compile that goes on after this stage was built anew must not find every header changed.
find /opt/verl -newermt "@$SOURCE_DATE_EPOCH" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
