#!/bin/sh
# Makes sure that a chromium is in PATH, for scripts/look.sh, which looks at our web pages.
#
# Does nothing when there is one, or a Google Chrome. Otherwise installs it with the system's package manager, as root or
# through a sudo that asks no password. Where that cannot be done, says how to do it by hand and exits 1.
# CHROMIUM_INSTALL=no forbids installing.
set -eu
. "$(dirname "$0")/install.sh"

found() { have chromium || have chromium-browser || have google-chrome || have google-chrome-stable || have chrome; }

by_hand() {
	cat <<'TEXT'
There is no chromium in PATH, and this target starts one. Install it by hand:

    Debian            sudo apt-get install chromium
    Ubuntu            sudo snap install chromium
    Fedora            sudo dnf install chromium
    Alpine            sudo apk add chromium font-dejavu
    Arch              sudo pacman -S chromium
    openSUSE          sudo zypper install chromium
    macOS             brew install --cask chromium, or Google Chrome, linked into PATH as `chromium`

Google Chrome does as well. Nothing is sent anywhere: it opens files of this machine only.
TEXT
}

# Fonts come along: without any a page has no text.
install() {
	become_root
	case $(package_manager) in
	apt-get) apt_install chromium fonts-dejavu-core ;;
	dnf) dnf_install chromium ;;
	apk) apk_install chromium font-dejavu ;;
	pacman) pacman_install chromium ;;
	zypper) zypper_install chromium ;;
	*) exit 1 ;; # it has said why
	esac
}

if found; then
	exit 0
fi
[ "${CHROMIUM_INSTALL:-yes}" != no ] || give_up "CHROMIUM_INSTALL=no forbids installing it"
echo "There is no chromium in PATH: installing it (CHROMIUM_INSTALL=no forbids this)" >&2
install || give_up "the package manager could not install it"
found || give_up "a package was installed, but it brought no chromium into PATH"
