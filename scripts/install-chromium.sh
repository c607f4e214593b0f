#!/bin/sh
# Makes sure that a chromium is in PATH, for tests and screenshots of the simulator's web pages.
#
# Does nothing when there is one, or a Google Chrome. Otherwise installs it with the system's package manager, as root or
# through a sudo that asks no password. Where that cannot be done, says how to do it by hand and exits 1.
# CHROMIUM_INSTALL=no forbids installing.
set -eu

have() { command -v "$1" >/dev/null 2>&1; }
found() { have chromium || have chromium-browser || have google-chrome || have google-chrome-stable || have chrome; }

if found; then
	exit 0
fi

give_up() {
	cat >&2 <<'TEXT'
There is no chromium in PATH, and the tests of this target start one. Install it by hand:

    Debian            sudo apt-get install chromium
    Ubuntu            sudo snap install chromium
    Fedora            sudo dnf install chromium
    Alpine            sudo apk add chromium font-dejavu
    Arch              sudo pacman -S chromium
    openSUSE          sudo zypper install chromium
    macOS             brew install --cask chromium, or Google Chrome, linked into PATH as `chromium`

Google Chrome does as well. Nothing is sent anywhere: it opens files of this machine only.
TEXT
	echo "($1)" >&2
	exit 1
}

[ "${CHROMIUM_INSTALL:-yes}" != no ] || give_up "CHROMIUM_INSTALL=no forbids installing it"

if [ "$(id -u)" -eq 0 ]; then
	as_root() { "$@"; }
elif have sudo && sudo -n true 2>/dev/null; then
	as_root() { sudo -n "$@"; }
else
	give_up "not root, and sudo would ask for a password"
fi

# Fonts come along: without any a page has no text.
apt_install() { as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium fonts-dejavu-core; }

install() {
	if have apt-get; then
		# The lists of packages are empty in a fresh container, and out of date elsewhere.
		apt_install || { as_root apt-get update && apt_install; }
	elif have dnf; then
		as_root dnf install -y chromium
	elif have apk; then
		as_root apk add --no-cache chromium font-dejavu
	elif have pacman; then
		as_root pacman -S --noconfirm --needed chromium
	elif have zypper; then
		as_root zypper --non-interactive install chromium
	else
		give_up "no package manager that this script knows"
	fi
}

echo "There is no chromium in PATH: installing it (CHROMIUM_INSTALL=no forbids this)" >&2
install || give_up "the package manager could not install it"
found || give_up "a package was installed, but it brought no chromium into PATH"
