# shellcheck shell=bash
# Sourced by run.  16: what a call of idemq.admit costs, by pgbench and by a plain
# driver (driver.py).  One line a piece goes to $work/pieces, one a sample to
# $work/samples.
# shellcheck disable=SC2154 # work, here: run; variables of the user: run

admitted() {
	sql -c "SELECT allowed FROM idemq.admissions"
}

# admit_piece side round: 8 clients; the limit is never reached, so each call is one
# that was allowed
admit_piece() {
	local side=$1 round=$2 log=$work/pgbench.log script=hot_one what allowed before after sent rate latency

	what="admit: $side, 8 clients, round $round"
	[ "$side" = one ] || script=admit_$side
	allowed=$(admitted)
	before=$(counters idemq)
	run bench_client "$log" 8 "$script" -T "$SECS" -D buckets="$BUCKETS16" || piece_failed "$what" "$log"
	after=$(counters idemq)
	read -r sent rate latency < <(client_said "$log")
	[ "$side" = one ] || agree "$what" "$sent" "$(($(admitted) - allowed))"
	echo "admit $side 8 off $round $sent $rate 1 $latency $before $after" >>"$work/pieces"
	say "$what: $(calc "int($rate)") answers/s"
}

# admit_samples side: one call at a time through psycopg
admit_samples() {
	run /usr/bin/python3 "$here/driver.py" admit "$1" "$SAMPLES16" \
		"host=$work/server user=postgres dbname=postgres" "$payload" >"$work/driver" ||
		die "admit of $1 failed"
	sed "s/^/admit $1 off /" "$work/driver" >>"$work/samples"
}

# 16
admission() {
	local round side

	set_guc synchronous_commit off
	fill idemq 0
	for round in $(seq "$ROUNDS"); do
		for side in idemq-one idemq-many one; do
			admit_piece "$side" "$round"
		done
		[ -z "$QUICK" ] || continue
		for side in idemq-one idemq-many one; do
			admit_samples "$side"
		done
	done
}
