// Turns the lock into arguments of the Dockerfile's stages; the one place where the two meet.
//
//   docker buildx bake -f docker/docker-bake.hcl -f constraints/cu121.bake.json [TARGET]
//
// constraints/STACK.bake.json is written by `verlstack lock`. Where a registry, GitHub or the public index is out of reach,
// contexts and secrets come from the command line, as `verlstack reproduce --engine buildkit` gives them:
//   --set '*.contexts.os=docker-image://…'  --set '*.contexts.verl-source=DIR'  --set '*.secrets=id=uv_toml,src=FILE'

// "Can't access attributes" means that the second -f is missing.
variable "VERLSTACK_LOCK" {} // one variable with a name of our own: bake lets the environment override any of them

group "default" { targets = ["runtime"] }

target "_all" {
  dockerfile = "Dockerfile"
  args = merge(VERLSTACK_LOCK.args, {
    OS       = "os"
    PACKAGES = ""
  })
  contexts = VERLSTACK_LOCK.contexts
}

target "base" {
  inherits = ["_all"]
  target   = "base"
}

target "verl" {
  inherits = ["_all"]
  target   = "verl"
}

target "flash-attn" {
  inherits = ["_all"]
  target   = "flash-attn"
  contexts = VERLSTACK_LOCK.toolchain
}

target "runtime" {
  inherits = ["_all"]
  target   = "runtime"
  labels   = VERLSTACK_LOCK.labels
  tags     = ["verlstack:${VERLSTACK_LOCK.tag}-buildkit"]
}

target "devel" {
  inherits = ["_all"]
  target   = "devel"
  contexts = VERLSTACK_LOCK.toolchain
  tags     = ["verlstack:${VERLSTACK_LOCK.tag}-devel"]
}
