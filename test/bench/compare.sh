# shellcheck shell=bash
# Sourced by run.  1 to 4: idemq and others, side by side; 8: idemq with more
# clients; 11: enqueue with and without NOTIFY; 17 and 18: what a job leaves in the
# WAL and in the files.  One line a piece goes to
# $work/pieces.
# shellcheck disable=SC2154 # work: script/lib.sh; variables of the user: run

# piece bench side script clients sync round seconds jobs-to-fill jobs-a-transaction
piece() {
	local bench=$1 side=$2 script=$3 clients=$4 sync=$5 round=$6 seconds=$7 rows=$8 size=$9
	local log=$work/pgbench.log what before after finished sent rate latency checkpoint

	what="$bench of $side, $clients clients, synchronous_commit $sync, round $round"
	while :; do
		fill "$side" "$rows"
		checkpoint=$(begun)
		before=$(counters "$side")
		! run bench_client "$log" "$clients" "$script" -T "$seconds" -D rows="$rows" || break
		if [ "$rows" -eq 0 ] || [ "$(jobs_in pending "$side")" -gt 0 ]; then piece_failed "$what" "$log"; fi
		say "$what: all $rows jobs were done before the time was over; again with twice as many"
		rows=$((rows * 2))
	done
	after=$(counters "$side")
	no_checkpoint "$checkpoint" "$what"
	read -r sent rate latency < <(client_said "$log")
	case $bench in
	enqueue | many | notify | keyed) finished=$(jobs_in pending "$side") ;;
	*) finished=$(jobs_in completed "$side") ;;
	esac
	# the floor comes round to rows that it has done already
	[[ $side != floor* ]] || finished=$((sent * size))
	agree "$what" "$(($(ended "$side" "$sent" "$clients") * size))" "$finished"
	rate=$(calc "$rate * $finished / ($sent * $size)")
	echo "$bench $side $clients $sync $round $finished $rate $size $latency $before $after" >>"$work/pieces"
	say "$what: $(calc "int($rate * $size)") jobs/s"
	sql -c "TRUNCATE $(table_of "$side")"
}

# compare bench clients seconds jobs-a-second-fsync jobs-a-second-async size sides...
# The rates say how much to fill: more than any side can finish.
compare() {
	local bench=$1 clients=$2 seconds=$3 rate_on=$4 rate_off=$5 size=$6 sync round side rows

	shift 6
	for sync in $SYNCS; do
		set_guc synchronous_commit "$sync"
		rows=$rate_off
		[ "$sync" != on ] || rows=$rate_on
		rows=$(awk "BEGIN { printf \"%d\", $rows * $seconds * $FILL }")
		for round in $(seq "$ROUNDS"); do
			for side in "$@"; do
				piece "$bench" "$side" "${bench}_$side" "$clients" "$sync" "$round" "$seconds" "$rows" "$size"
			done
		done
	done
}

# 8: the same side with 8 clients and with more
many_clients() {
	local sync round clients rows side

	for sync in $SYNCS; do
		set_guc synchronous_commit "$sync"
		rows=70000
		[ "$sync" != on ] || rows=30000
		rows=$(awk "BEGIN { printf \"%d\", $rows * $SECS * $FILL }")
		for round in $(seq "$ROUNDS"); do
			for clients in $CLIENTS8; do
				for side in idemq floor; do
					piece clients "$side-$clients" "cycle_$side" "$clients" "$sync" "$round" "$SECS" "$rows" 1
				done
			done
		done
	done
}

# 11: idemq's own NOTIFY on and off, and one by the enqueuing transaction.
# Somebody listens all the time; he must hear of jobs when it is on, and not a
# word when it is off.
notify_cost() {
	local sync round side script setting heard listener

	/usr/bin/python3 "$here/listen.py" "host=$work/server user=postgres dbname=postgres" idemq_bench "$work/heard" &
	listener=$!
	lasting=1
	for sync in $SYNCS; do
		set_guc synchronous_commit "$sync"
		for round in $(seq "$ROUNDS"); do
			for side in idemq-on idemq-off idemq-pgnotify; do
				script=enqueue_idemq
				setting=off
				[ "$side" != idemq-on ] || setting=on
				[ "$side" != idemq-pgnotify ] || script=enqueue_notify
				set_guc idemq.notify "$setting"
				heard=$(heard_so_far)
				piece notify "$side" "$script" 32 "$sync" "$round" "$SECS" 0 1
				heard=$(($(heard_so_far) - heard))
				case $setting:$heard in
				on:0 | off:[1-9]*) die "idemq.notify = $setting, but the listener heard of jobs $heard times" ;;
				esac
			done
		done
	done
	kill "$listener"
	wait "$listener" || true
	lasting=0
	sql -c "ALTER SYSTEM RESET idemq.notify" -c "SELECT pg_reload_conf()" >/dev/null
}

# What is under way is heard within a second.
heard_so_far() {
	sleep 1
	cat "$work/heard"
}

# 17: a cycle's WAL without full pages, at each wal_level: logical turns off what leaves
# out of an update's record the bytes that did not change
wal() {
	local level round side what sent before after

	set_guc synchronous_commit off
	set_guc full_page_writes off
	for level in replica logical; do
		sql -c "ALTER SYSTEM SET wal_level = $level"
		as_server "$bindir/pg_ctl" -D "$work/server/data" -l "$work/server/log" -s -w -m fast restart >&2
		for round in $(seq "$ROUNDS"); do
			for side in idemq idemq-next floor skip; do
				what="WAL of $side, wal_level $level, round $round"
				fill "$side" "$JOBS17"
				before=$(counters "$side")
				run bench_client "$work/pgbench.log" 8 "cycle_$side" -t "$((JOBS17 / 16))" -D rows="$JOBS17" ||
					piece_failed "$what" "$work/pgbench.log"
				after=$(counters "$side")
				read -r sent _ < <(client_said "$work/pgbench.log")
				sent=$(ended "$side" "$sent" 8)
				echo "$side $level $round $sent $before $after" >>"$work/wal"
				say "$what: $(((${after%% *} - ${before%% *}) / sent)) bytes a job"
			done
		done
	done
	sql -c "ALTER SYSTEM RESET wal_level" -c "ALTER SYSTEM RESET full_page_writes"
	as_server "$bindir/pg_ctl" -D "$work/server/data" -l "$work/server/log" -s -w -m fast restart >&2
}

# 18: what a finished job that is kept has in the table and in its indexes, when all of a
# table were enqueued, then done by 8 clients
kept() {
	local side

	set_guc synchronous_commit off
	for side in idemq skip; do
		fill "$side" "$JOBS18"
		run bench_client "$work/pgbench.log" 8 "cycle_$side" -t "$((JOBS18 / 8))" ||
			piece_failed "finished jobs of $side" "$work/pgbench.log"
		agree "finished jobs of $side" "$((JOBS18 / 8 * 8))" "$(jobs_in completed "$side")"
		sql -F ' ' -c "SELECT '$side', $JOBS18, pg_relation_size('$(table_of "$side")'), pg_indexes_size('$(table_of "$side")')" >>"$work/kept"
		say "finished jobs of $side: $(tail -n 1 "$work/kept" | awk '{ printf "%.0f + %.0f", $3 / $2, $4 / $2 }') bytes each, table and indexes"
		sql -c "TRUNCATE $(table_of "$side")"
	done
}
