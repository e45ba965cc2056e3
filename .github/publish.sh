#!/usr/bin/env bash
# Pushes, attests and signs an image that two machines built alike: `.github/publish.sh STACK CANDIDATE PUBLISHED`.
#
# The image is that in dist; CANDIDATE is the folder that `.github/candidate.sh` made on the machine that tested it, and
# both must have one digest. PUBLISHED, a file, gets what `verlstack publish --record --json` says, for verify.sh and
# propose.sh. From the environment: REPOSITORY (HOST/REPOSITORY); SIGNING_KEY, a private key as `verlstack sign` takes it,
# and COSIGN_PASSWORD if it is encrypted, or SIGNING=keyless, which signs as this workflow; USERNAME and PASSWORD of the
# registry (login.sh); what GitHub says of the run.
set -euo pipefail
umask 077
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/login.sh"
stack=$1 candidate=$2 published=$3
wanted REPOSITORY "the variable PUBLISH_REPOSITORY"
signing_is_known
if [ "${SIGNING:-key}" != keyless ]; then
    wanted SIGNING_KEY "the secret SIGNING_KEY of the environment publish (or the variable SIGNING, to be keyless)"
fi

tested=$(<"$candidate/digest") built=$(jq --raw-output '.manifests[0].digest' "dist/$stack/index.json")
if [ "$tested" != "$built" ]; then
    echo "not published: the machine that tested $stack built $tested, this one built $built" >&2
    exit 1
fi

private=$(mktemp -d)
trap 'rm -rf -- "$private"' EXIT
log_in "$private"
if [ "${SIGNING:-key}" = keyless ]; then
    signer=(--keyless)
else
    printf '%s\n' "$SIGNING_KEY" >"$private/key"
    signer=(--key "$private/key")
fi
unset SIGNING_KEY

.venv/bin/verlstack publish "$stack" "$REPOSITORY" --record --json >"$published"
.venv/bin/verlstack attest "$stack" "$REPOSITORY" "${signer[@]}" --smoke "$candidate/smoke.json" \
    --builder "$GITHUB_SERVER_URL/$GITHUB_WORKFLOW_REF" \
    --invocation "$GITHUB_SERVER_URL/$GITHUB_REPOSITORY/actions/runs/$GITHUB_RUN_ID/attempts/$GITHUB_RUN_ATTEMPT"
.venv/bin/verlstack sign "$REPOSITORY@$built" "${signer[@]}"
