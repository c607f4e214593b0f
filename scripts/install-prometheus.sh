#!/bin/sh
# Makes sure that promtool is in PATH, for tests of the alerts.
#
# Does nothing when it is there. Otherwise installs it with the system's package manager, as root or through a sudo that
# asks no password. Starts no service. Where that cannot be done, says how to do it by hand and exits 1.
# PROMETHEUS_INSTALL=no forbids installing.
set -eu
. "$(dirname "$0")/install.sh"

found() { have promtool; }

by_hand() {
	cat <<'TEXT'
promtool is not in PATH, and the tests of the alerts run it. Install it by hand:

    Debian, Ubuntu    sudo apt-get install prometheus
    Fedora            sudo dnf install prometheus
    Alpine            sudo apk add prometheus
    Arch              sudo pacman -S prometheus
    macOS             brew install prometheus

Prometheus need not be running.
TEXT
}

install() {
	if have brew && [ "$(id -u)" -ne 0 ]; then # it refuses to run as root, and installs for the user
		brew install prometheus
		return
	fi
	become_root
	case $(package_manager) in
	apt-get) without_service apt_install prometheus ;;
	dnf) dnf_install prometheus ;;
	apk) apk_install prometheus ;;
	pacman) pacman_install prometheus ;;
	*) exit 1 ;; # openSUSE has none, or it has said why
	esac
}

if found; then
	exit 0
fi
[ "${PROMETHEUS_INSTALL:-yes}" != no ] || give_up "PROMETHEUS_INSTALL=no forbids installing it"
echo "promtool is not in PATH: installing it (PROMETHEUS_INSTALL=no forbids this)" >&2
install || give_up "the package manager could not install it"
found || give_up "a package was installed, but it brought no promtool into PATH"
