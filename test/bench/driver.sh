# shellcheck shell=bash
# Sourced by run.  9 and 10: what a worker with a plain driver sees (driver.py);
# one line a sample goes to $work/samples.
# shellcheck disable=SC2154 # work: script/lib.sh; variables of the user: run

# samples bench side sync count: measured by driver.py on a quiet, empty queue
samples() {
	local bench=$1 side=$2 sync=$3 count=$4 done

	fill "$side" 0
	run /usr/bin/python3 "$here/driver.py" "$bench" "$side" "$count" \
		"host=$work/server user=postgres dbname=postgres" "$payload" >"$work/driver" ||
		die "$bench of $side failed"
	done=$(jobs_in completed "$side")
	[ "$done" = "$count" ] || die "$bench of $side: $count samples, but $done jobs completed"
	sed "s/^/$bench $side $sync /" "$work/driver" >>"$work/samples"
	say "$bench, $side, synchronous_commit $sync: median $(sort -n "$work/driver" |
		awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)], "us of", NR }')"
	sql -c "TRUNCATE $(table_of "$side")"
}

# 9: the sides take turns, four times
latency() {
	local sync turn side

	for sync in $SYNCS; do
		set_guc synchronous_commit "$sync"
		for turn in 1 2 3 4; do
			for side in idemq skip; do
				samples latency "$side" "$sync" "$(((SAMPLES9 + turn - 1) / 4))"
			done
		done
	done
}

# 10: each way in which a worker can be lost
recovery() {
	local sync side

	for sync in $SYNCS; do
		set_guc synchronous_commit "$sync"
		for side in idemq-lease idemq-client idemq-backend; do
			samples recovery "$side" "$sync" "$SAMPLES10"
		done
	done
}
