#!/usr/bin/env bash
# What anyone can check of a published image, on a machine that built nothing: `.github/verify.sh PUBLISHED`.
#
# PUBLISHED is the file that publish.sh wrote. The tag must lead to that digest; image, SBOMs, provenance and smoke report
# must be signed under this name with the key whose public half is in SIGNING_PUBLIC_KEY, or where SIGNING=keyless, by this
# workflow on this ref; and every blob, pulled, must be what its digest says. USERNAME and PASSWORD of the registry where it
# wants some (login.sh); reading is enough.
set -euo pipefail
umask 077
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/login.sh"
signing_is_known
if [ "${SIGNING:-key}" != keyless ]; then
    wanted SIGNING_PUBLIC_KEY "the variable SIGNING_PUBLIC_KEY (or the variable SIGNING, to be keyless)"
fi
reference=$(jq --raw-output .reference "$1") digest=$(jq --raw-output .digest "$1")
REPOSITORY=${reference%:*}

private=$(mktemp -d)
trap 'rm -rf -- "$private"' EXIT
log_in "$private"
if [ "${SIGNING:-key}" = keyless ]; then
    signer=(--certificate-identity "$GITHUB_SERVER_URL/$GITHUB_WORKFLOW_REF"
        --certificate-oidc-issuer https://token.actions.githubusercontent.com)
else
    printf '%s\n' "$SIGNING_PUBLIC_KEY" >"$private/key.pub"
    signer=(--key "$private/key.pub")
fi

verify() {
    .venv/bin/verlstack verify "$1" "${signer[@]}" --as "$REPOSITORY" --json \
        --attestation cyclonedx --attestation spdxjson --attestation slsaprovenance1 --attestation smoke
}
found=$(verify "$reference" | jq --raw-output .digest)
if [ "$found" != "$digest" ]; then
    echo "$reference leads to $found, and $digest was published" >&2
    exit 1
fi
.venv/bin/verlstack mirror "$REPOSITORY@$digest" "$private/pulled"
verify "$private/pulled"
