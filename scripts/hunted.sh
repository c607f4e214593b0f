#!/bin/sh
# Writes into docs/internals/hunts.md that a hunt found nothing, with the date and the commit: sh scripts/hunted.sh NAME WHAT
set -eu
page=docs/internals/hunts.md
commit=$(git rev-parse --short HEAD 2>/dev/null) || commit="not in git"
[ -z "$(git status --porcelain --untracked-files=no -- . ":!$page" 2>/dev/null)" ] || commit="$commit, changed"
awk -v begin="| \`$1\` |" -v row="| \`$1\` | $2 | $(date -u +%F) | $commit |" '
	index($0, begin) == 1 { print row; found = 1; next }
	{ print }
	END { if (!found) print row }
' "$page" >"$page.new"
mv "$page.new" "$page"
