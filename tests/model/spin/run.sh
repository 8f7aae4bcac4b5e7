#!/bin/bash
# Check chatlock.pml: the protocol must pass, and each weakened variant must fail for its own reason.
#   bash tests/model/spin/run.sh          everything
#   bash tests/model/spin/run.sh quick    without the two long liveness runs
# Needs spin and gcc (Debian: apt-get install spin gcc). KEEP=1 keeps the logs.
set -u
here=$(cd "$(dirname "$0")" && pwd)
for tool in spin gcc; do
	command -v "$tool" >/dev/null || { echo "$tool is missing: nothing was checked" >&2; exit 2; }
done
work=$(mktemp -d)
runs=0 unexpected=0

# check NAME pass|fail REASON-OF-THE-FAILURE SWITCHES [LTL-CLAIM]
check() {
	local name=$1 expected=$2 reason=$3 switches=$4 claim=${5:-}
	local build search dir=$work/$1 outcome verdict=ok
	if [ -n "$claim" ]; then
		build="" search="-a -f -N $claim"
	else
		build="-DSAFETY -DNOCLAIM" search="-E"
	fi
	mkdir "$dir"
	(
		cd "$dir" && spin -a $switches "$here/chatlock.pml" >spin.log 2>&1 &&
			gcc -O2 -w -DCOLLAPSE -DNFAIR=3 $build -o pan pan.c 2>gcc.log &&
			./pan -m2000000 $search >pan.log 2>&1
	)
	touch "$dir/pan.log"
	if ! grep -q 'errors: [0-9]' "$dir/pan.log" ||
		grep -qE 'max search depth too small|out of memory' "$dir/pan.log"; then
		outcome="no verdict"
	elif grep -q 'errors: 0$' "$dir/pan.log"; then
		outcome=pass
	elif grep -qF "pan:1: $reason" "$dir/pan.log"; then
		outcome=fail
	else
		outcome="wrong reason"
	fi
	runs=$((runs + 1))
	[ "$outcome" = "$expected" ] || { verdict=UNEXPECTED; unexpected=$((unexpected + 1)); }
	printf '%-20s %-12s %9s states  %-10s %s\n' "$name" "$outcome" \
		"$(sed -nE 's/^ *([0-9.e+]+) states, stored.*/\1/p' "$dir/pan.log")" "$verdict" \
		"$(grep -m1 '^pan:1' "$dir/pan.log" | cut -c8-70)"
}

alone="-DNOTIFY_ONLY -DNOPOLLER -DNODIE"
check safety pass "" ""
if [ "${1:-}" != quick ]; then
	check live-resolved pass "" "" resolved
	check live-outcome pass "" "-DNODIE" outcome
fi
check notify-outcome pass "" "$alone" outcome
check naive-finish fail "assertion violated ((st==2)&&(tok==my))" "-DNAIVE_FINISH"
check naive-release fail "assertion violated (tok==my)" "-DNAIVE_RELEASE"
check naive-noreset fail "assertion violated (seen&(1<<own[q]))" "-DNAIVE_NORESET"
check naive-fence fail "assertion violated (xv==n)" "-DNAIVE_FENCE"
check naive-attempts fail "assertion violated (tok<60)" "-DNAIVE_ATTEMPTS"
check naive-subscribe fail "acceptance cycle" "-DNAIVE_SUBSCRIBE $alone" outcome

if [ -n "${KEEP:-}" ]; then echo "logs: $work"; else rm -rf "$work"; fi
echo "$runs runs, $unexpected unexpected"
[ "$unexpected" = 0 ]
