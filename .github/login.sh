# shellcheck shell=bash
# Sourced by the scripts that talk to a registry: `log_in FOLDER` writes there what `docker login` would, for the host of
# REPOSITORY, from USERNAME and PASSWORD, and points DOCKER_CONFIG at it. Without a password: anonymous; but at ghcr.io the
# workflow's own GITHUB_TOKEN, which is sent to no other host. FOLDER must be private. No secret is an argument.
log_in() {
    local host=${REPOSITORY%%/*} password=${PASSWORD:-}
    if [ -z "$password" ] && [ "$host" = ghcr.io ]; then password=${GITHUB_TOKEN:-}; fi
    unset PASSWORD GITHUB_TOKEN
    export DOCKER_CONFIG=$1
    [ -n "$password" ] || return 0
    printf '{"auths": {"%s": {"auth": "%s"}}}\n' \
        "$host" "$(printf '%s:%s' "${USERNAME:-}" "$password" | base64 --wrap=0)" >"$1/config.json"
}

# wanted NAME WHERE: a setting that only the owner of the repository can give.
wanted() {
    [ -n "${!1:-}" ] || { echo "$1 is empty: set it in $2, see docs/workflows.md" >&2; exit 2; }
}

# How the image is signed: with a key, or with SIGNING=keyless as this workflow.
signing_is_known() {
    case ${SIGNING:-key} in
        key | keyless) ;;
        *) echo "SIGNING is $SIGNING: the variable may be keyless, or not be, see docs/workflows.md" >&2; exit 2 ;;
    esac
}
