# shellcheck shell=bash
# What this machine has, and what stages install on it.

# What this machine has must be tested: a test that skips it fails. The rest is listed at the end.
export LOCKSTEP_REQUIRE_VARIANTS LOCKSTEP_REQUIRE_HOSTS LOCKSTEP_REQUIRE_CGROUPS LOCKSTEP_SKIPPED=$work/skipped
variants() {
	local flags found=()
	[[ $(uname -sm) == "Linux x86_64" ]] || return
	flags=" $(grep -m1 ^flags /proc/cpuinfo) "
	has() { local f; for f; do [[ $flags == *" $f "* ]] || return 1; done; }
	# as docs/cpus.md lists them
	has avx avx2 fma f16c && found+=(avx2) &&
		has avx512f avx512bw avx512dq avx512vl && found+=(avx512) &&
		has avx512_bf16 amx_tile amx_bf16 bmi2 && found+=(amx)
	local IFS=,
	echo "${found[*]}"
}
LOCKSTEP_REQUIRE_VARIANTS=$(variants)
# Root makes network namespaces, unless the machine forbids it to.
probe=lockstep-ci-$$
if ((EUID == 0)) && ip netns add "$probe" 2>/dev/null; then
	ip -n "$probe" link add v0 type veth peer name v1 2>/dev/null && LOCKSTEP_REQUIRE_HOSTS=namespaces
	ip netns del "$probe"
fi

# And groups with a limit of memory, where they are mounted for writing.
LOCKSTEP_REQUIRE_CGROUPS=
for group in "/sys/fs/cgroup/memory$(sed -n 's/^[0-9]*:[^:]*memory[^:]*://p' /proc/self/cgroup 2>/dev/null)" \
	"/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup 2>/dev/null)"; do
	[[ -z $LOCKSTEP_REQUIRE_CGROUPS && -d $group ]] && mkdir "$group/$probe" 2>/dev/null || continue
	[[ -e $group/$probe/memory.max || -e $group/$probe/memory.limit_in_bytes ]] && LOCKSTEP_REQUIRE_CGROUPS=memory
	rmdir "$group/$probe"
done

# The race detector needs a C compiler, arm64 and emulated an emulator, tests with two hosts network namespaces. Installs
# Debian's gcc, libc6-dev, qemu-user and iproute2 where they are missing.
stage_tools() {
	local missing=()
	command -v gcc || missing+=(gcc libc6-dev)
	{ emulator aarch64 && emulator x86_64; } 2>/dev/null || missing+=(qemu-user)
	[[ $(uname) != Linux ]] || { command -v ip && command -v tc; } || missing+=(iproute2)
	((${#missing[@]} == 0)) || install "${missing[@]}" || return 1
	command -v gcc && emulator aarch64 && emulator x86_64
}

# install installs packages of the distribution.
install() {
	local sudo=()
	((EUID == 0)) || sudo=(sudo)
	"${sudo[@]}" apt-get update && "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

# emulator prints the program that runs binaries of an architecture.
emulator() {
	command -v "qemu-$1" || command -v "qemu-$1-static" || { echo "no qemu-$1: .ci/run tools installs it" >&2; return 1; }
}
