#!/bin/sh
# Makes sure that redis-server is in PATH, for tests that start one of their own.
#
# Does nothing when it is there. Otherwise installs it with the system's package manager, as root or through a sudo that
# asks no password. Starts no service. Where that cannot be done, says how to do it by hand and exits 1.
# REDIS_INSTALL=no forbids installing.
set -eu

have() { command -v "$1" >/dev/null 2>&1; }

if have redis-server; then
	exit 0
fi

give_up() {
	cat >&2 <<'TEXT'
redis-server is not in PATH, and the tests of this target start real ones. Install it by hand:

    Debian, Ubuntu    sudo apt-get install redis-server
    Fedora, RHEL      sudo dnf install redis        (or valkey valkey-compat-redis)
    Alpine            sudo apk add redis
    Arch              sudo pacman -S valkey         (it brings redis-server along)
    openSUSE          sudo zypper install redis
    macOS             brew install redis
    from source       https://redis.io/docs/latest/operate/oss_and_stack/install/

Redis 6.2 or later, or Valkey 7.2 or later. It need not be running.
TEXT
	echo "($1)" >&2
	exit 1
}

[ "${REDIS_INSTALL:-yes}" != no ] || give_up "REDIS_INSTALL=no forbids installing it"

if [ "$(id -u)" -eq 0 ]; then
	as_root() { "$@"; }
elif have sudo && sudo -n true 2>/dev/null; then
	as_root() { sudo -n "$@"; }
elif ! have brew; then # which installs for the user
	give_up "not root, and sudo would ask for a password"
fi

# Debian's package starts its service as soon as it is installed, on port 6379. A policy of 101 forbids that
# (invoke-rc.d(8)); where the administrator has one, that one counts.
policy=/usr/sbin/policy-rc.d
apt_install() { as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends redis-server; }
with_apt() {
	if [ ! -e "$policy" ]; then
		trap 'as_root rm -f "$policy"' EXIT
		trap 'exit 1' HUP INT TERM
		printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null && as_root chmod 755 "$policy" || return 1
	fi
	# The lists of packages are empty in a fresh container, and out of date elsewhere.
	apt_install || { as_root apt-get update && apt_install; }
}

install() {
	if have brew && [ "$(id -u)" -ne 0 ]; then # it refuses to run as root
		brew install redis
	elif have apt-get; then
		with_apt
	elif have dnf; then
		as_root dnf install -y redis || as_root dnf install -y valkey valkey-compat-redis
	elif have apk; then
		as_root apk add --no-cache redis
	elif have pacman; then
		as_root pacman -S --noconfirm --needed valkey
	elif have zypper; then
		as_root zypper --non-interactive install redis
	else
		give_up "no package manager that this script knows"
	fi
}

echo "redis-server is not in PATH: installing it (REDIS_INSTALL=no forbids this)" >&2
install || give_up "the package manager could not install it"
have redis-server || give_up "a package was installed, but it brought no redis-server into PATH"
