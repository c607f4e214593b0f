# What the scripts beside this one have in common: they source it. Each has a function by_hand, which prints how to install
# the program without it, and one found, which reports that the program is in PATH.

have() { command -v "$1" >/dev/null 2>&1; }

# give_up REASON
give_up() {
	by_hand >&2
	echo "($1)" >&2
	exit 1
}

# as_root COMMAND... runs a command as root, if become_root found a way that asks no password.
become_root() {
	if [ "$(id -u)" -eq 0 ]; then
		as_root() { "$@"; }
	elif have sudo && sudo -n true 2>/dev/null; then
		as_root() { sudo -n "$@"; }
	else
		give_up "not root, and sudo would ask for a password"
	fi
}

# The lists of packages are empty in a fresh container, and out of date elsewhere.
apt_install() {
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" ||
		{ as_root apt-get update && as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; }
}
dnf_install() { as_root dnf install -y "$@"; }
apk_install() { as_root apk add --no-cache "$@"; }
pacman_install() { as_root pacman -S --noconfirm --needed "$@"; }
zypper_install() { as_root zypper --non-interactive install "$@"; }

# package_manager prints the one that is here.
package_manager() {
	for manager in apt-get dnf apk pacman zypper; do
		if have "$manager"; then
			echo "$manager"
			return
		fi
	done
	give_up "no package manager that this script knows"
}

# Debian's packages start their service as soon as they are installed. A policy of 101 forbids that (invoke-rc.d(8)). If the
# administrator has a policy, that one counts.
policy=/usr/sbin/policy-rc.d
without_service() {
	if [ ! -e "$policy" ]; then
		trap 'as_root rm -f "$policy"' EXIT
		trap 'exit 1' HUP INT TERM
		printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null && as_root chmod 755 "$policy" || return 1
	fi
	"$@"
}
