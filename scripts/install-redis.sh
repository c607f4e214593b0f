#!/bin/sh
# Makes sure that redis-server is in PATH, for tests that start one of their own.
#
# Does nothing when it is there. Otherwise installs it with the system's package manager, as root or through a sudo that
# asks no password. Starts no service. Where that cannot be done, says how to do it by hand and exits 1.
# REDIS_INSTALL=no forbids installing.
set -eu
. "$(dirname "$0")/install.sh"

found() { have redis-server; }

by_hand() {
	cat <<'TEXT'
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
}

install() {
	if have brew && [ "$(id -u)" -ne 0 ]; then # it refuses to run as root, and installs for the user
		brew install redis
		return
	fi
	become_root
	case $(package_manager) in
	apt-get) without_service apt_install redis-server ;;
	dnf) dnf_install redis || dnf_install valkey valkey-compat-redis ;;
	apk) apk_install redis ;;
	pacman) pacman_install valkey ;;
	zypper) zypper_install redis ;;
	*) exit 1 ;; # it has said why
	esac
}

if found; then
	exit 0
fi
[ "${REDIS_INSTALL:-yes}" != no ] || give_up "REDIS_INSTALL=no forbids installing it"
echo "redis-server is not in PATH: installing it (REDIS_INSTALL=no forbids this)" >&2
install || give_up "the package manager could not install it"
found || give_up "a package was installed, but it brought no redis-server into PATH"
