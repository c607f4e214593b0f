#!/bin/sh
# Does what a user does after the release of HEAD: fetches all modules by their version, from a clone with the release's
# tags, builds a program with their packages, and installs tiersim. It changes nothing outside a temporary directory.
set -eu

version=$(sed -n 's/^## \(v[0-9.]*\).*/\1/p' CHANGELOG.md | head -n 1)
module=$(go list -m)
packages=$(for m in contrib/*/; do
	(cd "$m" && go list -f '{{if ne .Name "main"}}{{.ImportPath}}{{end}}' ./... | grep -v -e /internal/ -e /bench)
done)
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

# Other modules come from the module cache where it has them. Ours must not get into it.
GOPROXY="file://$(go env GOMODCACHE)/cache/download,$(go env GOPROXY)"
export GOPROXY GOMODCACHE="$directory/modules" GOFLAGS=-modcacherw GOPRIVATE="$module" GOWORK=off GOBIN="$directory/bin"

git clone -q --bare . "$directory/origin.git"
git -C "$directory/origin.git" tag -f "$version" HEAD >/dev/null
for m in contrib/*/; do
	git -C "$directory/origin.git" tag -f "$m$version" HEAD >/dev/null
done
export GIT_CONFIG_GLOBAL="$directory/gitconfig"
git config --global "url.$directory/origin.git.insteadOf" "https://$module"

mkdir "$directory/user"
cd "$directory/user"
go mod init example.com/user 2>/dev/null
{
	echo "package main"
	for p in $packages; do echo "import _ \"$p\""; done
	echo "func main() {}"
} >main.go
quietly() { "$@" >"$directory/log" 2>&1 || { cat "$directory/log" >&2; exit 1; }; }
quietly go get "$module@$version" $(for p in $packages; do echo "$p@$version"; done)
quietly go build -o user .
quietly go install "$module/cmd/tiersim@$version"
"$GOBIN/tiersim" --version
echo "a user can fetch and build:"
go list -m all | grep "^$module"
